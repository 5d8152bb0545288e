#include "megatron/tasks/text_rows.h"

#include <gmock/gmock.h>

#include <numeric>

#include "megatron/core/error.h"

namespace megatron {
namespace {

using testing::ElementsAre;

std::vector<int32_t> count_to(int32_t n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(SlidingWindowsTest, CountEachTokenOnce) {
  for (const int64_t length : {1, 2, 5, 8}) {
    for (const int64_t stride : {1, 2, 3, 5, 8, 9}) {
      for (int32_t tokens = 2; tokens < 30; ++tokens) {
        std::vector<int32_t> counted;
        for (const TextRow& row : sliding_windows(count_to(tokens), length, stride)) {
          EXPECT_LE(std::ssize(row.ids), length + 1);
          counted.insert(counted.end(), row.ids.begin() + row.first_label, row.ids.end());
        }
        std::vector<int32_t> all = count_to(tokens);
        all.erase(all.begin());
        EXPECT_EQ(counted, all) << length << " " << stride << " " << tokens;
      }
    }
  }
}

TEST(SlidingWindowsTest, GiveContextBeforeTheStride) {
  EXPECT_THAT(sliding_windows(count_to(8), 4, 2),
              ElementsAre(TextRow{{0, 1, 2, 3, 4}, 1}, TextRow{{2, 3, 4, 5, 6}, 3},
                          TextRow{{4, 5, 6, 7}, 3}));
  EXPECT_THAT(sliding_windows(count_to(1), 4, 2), ElementsAre());
}

// A letter is an id.
class Letters final : public Tokenizer {
 public:
  std::unique_ptr<Encoder> make_encoder() const override { return nullptr; }
  std::vector<int32_t> encode(std::string_view text) const override {
    return {text.begin(), text.end()};
  }
  std::string decode(std::span<const int32_t> ids) const override {
    return {ids.begin(), ids.end()};
  }
  std::string piece(int32_t id) const override { return {static_cast<char>(id)}; }
  std::optional<int32_t> id_of(std::string_view) const override { return std::nullopt; }
  int64_t vocab_size() const override { return 128; }
  std::optional<int32_t> special_id(SpecialToken) const override { return std::nullopt; }
  std::string_view type() const override { return "letters"; }
  std::string source() const override { return {}; }
  TokenizerDescription description() const override { return {}; }
};

std::string context_of(const TextRow& row) {
  return {row.ids.begin(), row.ids.begin() + row.first_label};
}
std::string labels_of(const TextRow& row) {
  return {row.ids.begin() + row.first_label, row.ids.end()};
}

TEST(ClozeRowTest, AsksForTheLastTokenOrTheLastWord) {
  const Letters letters;
  const TextRow last = cloze_row("a dog", letters, 10, false);
  EXPECT_EQ(context_of(last), "a do");
  EXPECT_EQ(labels_of(last), "g");
  const TextRow word = cloze_row(" a dog, a dog \n", letters, 20, true);
  EXPECT_EQ(context_of(word), "a dog, a");
  EXPECT_EQ(labels_of(word), " dog");
}

TEST(ClozeRowTest, KeepsTheEndOfALongText) {
  const TextRow row = cloze_row("one two three", Letters(), 8, true);
  EXPECT_EQ(context_of(row), "two");
  EXPECT_EQ(labels_of(row), " three");
}

TEST(ClozeRowTest, NeedsSomethingToPredictFrom) {
  const Letters letters;
  EXPECT_THROW(cloze_row("", letters, 8, false), ConfigError);
  EXPECT_THROW(cloze_row("a", letters, 8, false), ConfigError);
  EXPECT_THROW(cloze_row(" \n", letters, 8, true), ConfigError);
  EXPECT_THROW(cloze_row("word", letters, 8, true), ConfigError);
  EXPECT_THROW(cloze_row("one three", letters, 5, true), ConfigError);
}

}  // namespace
}  // namespace megatron
