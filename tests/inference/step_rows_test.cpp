#include "megatron/inference/step_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Ids = std::vector<int64_t>;
using Pages = std::vector<int32_t>;

TEST(StepRowsTest, ATextKeepsItsRow) {
  StepRows rows;
  EXPECT_THAT(rows.of(Ids{7, 8, 9}), ElementsAre(0, 1, 2));
  EXPECT_THAT(rows.of(Ids{9, 7, 8}), ElementsAre(2, 0, 1));
  // 7 leaves, and 10 takes its row.
  EXPECT_THAT(rows.of(Ids{8, 9, 10}), ElementsAre(1, 2, 0));
  // 8 leaves: rows have no gaps, so the last one moves.
  EXPECT_THAT(rows.of(Ids{9, 10}), ElementsAre(1, 0));
  EXPECT_THAT(rows.of(Ids{}), IsEmpty());
  EXPECT_THAT(rows.of(Ids{10, 9}), ElementsAre(0, 1));
}

// The pages of a row of the device's table, to which all changes went.
Pages row_of(const Pages& table, int64_t row, size_t count) {
  const auto begin = table.begin() + row * 4;
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

TEST(PageTableCopyTest, TellsWhatChanges) {
  PageTableCopy copy(3, 4);
  Pages device(12, 0);
  const auto put = [&](int64_t row, int64_t text, const Pages& pages) {
    Pages changes = {-1};  // what is there stays
    copy.put(row, text, pages, changes);
    EXPECT_EQ(changes.front(), -1);
    for (size_t i = 1; i < changes.size(); i += 2) {
      device[static_cast<size_t>(changes[i])] = changes[i + 1];
    }
    EXPECT_EQ(row_of(device, row, pages.size()), pages);
    return (changes.size() - 1) / 2;
  };
  EXPECT_EQ(put(2, 1, {5, 6}), 2u);
  EXPECT_EQ(put(2, 1, {5, 6}), 0u);
  EXPECT_EQ(put(2, 1, {5, 6, 9}), 1u);
  EXPECT_EQ(put(0, 2, {7, 0, 3, 1}), 3u);  // one page is as in the beginning
  EXPECT_EQ(put(2, 3, {8, 6}), 1u);        // another text, which has a page of the one before
  EXPECT_EQ(put(2, 3, {8, 6, 9}), 0u);     // the place still has it
  EXPECT_EQ(put(2, 1, {4, 6, 9}), 1u);     // the first text has come back with another page
  EXPECT_THAT(copy.first_rows(3), testing::ElementsAreArray(device));
  EXPECT_THAT(copy.first_rows(1), ElementsAre(7, 0, 3, 1));
}

}  // namespace
}  // namespace megatron
