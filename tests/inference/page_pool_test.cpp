#include "megatron/inference/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Tokens = std::vector<int32_t>;

// Takes pages for `tokens`, whole ones published, as the engine does.
std::vector<int32_t> filled(PagePool& pool, const Tokens& tokens) {
  std::vector<int32_t> pages;
  PagePool::Serial before = 0;
  const auto width = static_cast<size_t>(pool.page_tokens());
  for (size_t i = 0; i < tokens.size(); i += width) {
    pages.push_back(pool.allocate());
    if (i + width > tokens.size()) break;
    before = pool.publish(pages.back(), before, std::span(tokens).subspan(i, width));
  }
  return pages;
}

void release(PagePool& pool, const std::vector<int32_t>& pages) {
  for (const int32_t page : pages) pool.release(page);
}

TEST(PagePoolTest, GivesEveryPageOnce) {
  PagePool pool(3, 4);
  EXPECT_EQ(pool.num_available(), 3);
  const std::vector<int32_t> pages = {pool.allocate(), pool.allocate(), pool.allocate()};
  EXPECT_THAT(pages, ElementsAre(0, 1, 2));
  EXPECT_EQ(pool.num_available(), 0);
  EXPECT_EQ(pool.num_owned(), 3);
  pool.release(1);
  EXPECT_EQ(pool.num_available(), 1);
  EXPECT_EQ(pool.allocate(), 1);
}

TEST(PagePoolTest, APageOfTwoTextsStaysUntilBothAreGone) {
  PagePool pool(1, 4);
  const int32_t page = pool.allocate();
  pool.retain(page);
  pool.release(page);
  EXPECT_EQ(pool.num_available(), 0);
  pool.release(page);
  EXPECT_EQ(pool.num_available(), 1);
}

TEST(PagePoolTest, FindsTheLongestBeginning) {
  PagePool pool(8, 2);
  const std::vector<int32_t> first = filled(pool, {1, 2, 3, 4, 5});
  const auto match = [&](const Tokens& tokens) {
    const PagePool::Match found = pool.match(tokens);
    release(pool, found.pages);
    return found.pages;
  };
  EXPECT_THAT(match({1, 2, 3, 4, 5, 6}), ElementsAre(first[0], first[1]));
  EXPECT_THAT(match({1, 2, 3, 4}), ElementsAre(first[0], first[1]));
  EXPECT_THAT(match({1, 2, 9, 4}), ElementsAre(first[0]));
  EXPECT_THAT(match({1}), IsEmpty());
  EXPECT_THAT(match({3, 4}), IsEmpty());  // the same tokens behind others are other keys
}

TEST(PagePoolTest, KnownPagesOutliveTheirTexts) {
  PagePool pool(4, 2);
  const std::vector<int32_t> pages = filled(pool, {1, 2, 3, 4});
  release(pool, pages);
  EXPECT_EQ(pool.num_available(), 4);
  const PagePool::Match found = pool.match(Tokens{1, 2, 3, 4});
  EXPECT_EQ(found.pages, pages);
  EXPECT_EQ(pool.num_available(), 2);
}

TEST(PagePoolTest, TheLongestUnusedPageIsForgottenFirst) {
  PagePool pool(2, 2);
  release(pool, filled(pool, {1, 2}));
  release(pool, filled(pool, {3, 4}));
  release(pool, pool.match(Tokens{1, 2}).pages);  // used again
  pool.allocate();
  EXPECT_EQ(pool.match(Tokens{1, 2}).pages.size(), 1u);
  EXPECT_THAT(pool.match(Tokens{3, 4}).pages, IsEmpty());
}

// A page behind a forgotten one is not found behind another page that took its memory.
TEST(PagePoolTest, ForgottenPagesTakeTheirFollowersAlong) {
  PagePool pool(2, 2);
  const std::vector<int32_t> pages = filled(pool, {1, 2, 3, 4});
  pool.release(pages[0]);
  pool.release(pages[1]);
  const int32_t taken = pool.allocate();
  EXPECT_EQ(taken, pages[0]);
  pool.publish(taken, 0, Tokens{7, 8});
  EXPECT_THAT(pool.match(Tokens{7, 8, 3, 4}).pages, ElementsAre(taken));
}

TEST(PagePoolTest, EqualPagesAreKnownOnce) {
  PagePool pool(4, 2);
  const std::vector<int32_t> a = filled(pool, {1, 2});
  const std::vector<int32_t> b = filled(pool, {1, 2});
  EXPECT_NE(a, b);
  EXPECT_EQ(pool.match(Tokens{1, 2}).pages, a);
  pool.release(a[0]);
  release(pool, a);
  release(pool, b);
  EXPECT_EQ(pool.num_available(), 4);
}

}  // namespace
}  // namespace megatron
