#include "megatron/tokenizers/bpe_merges.h"

#include <gmock/gmock.h>

#include <map>
#include <random>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/rounds.h"

namespace megatron {
namespace {

// The definition: find the adjacent pair of lowest rank, replace all its occurrences or the
// leftmost, again.
std::vector<int32_t> plain_apply(const std::vector<BpeMerge>& merges, std::vector<int32_t> word,
                                 MergeOrder order = MergeOrder::kAllOfOnePair) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    ranks[{merges[rank].left, merges[rank].right}] = rank;
  }
  while (true) {
    size_t best = merges.size();
    for (size_t i = 0; i + 1 < word.size(); ++i) {
      const auto found = ranks.find({word[i], word[i + 1]});
      if (found != ranks.end()) best = std::min(best, found->second);
    }
    if (best == merges.size()) return word;
    std::vector<int32_t> merged;
    bool goes_on = true;
    for (size_t i = 0; i < word.size();) {
      const bool here = goes_on && i + 1 < word.size() && word[i] == merges[best].left &&
                        word[i + 1] == merges[best].right;
      if (here && order == MergeOrder::kOneByOne) goes_on = false;
      merged.push_back(here ? merges[best].result : word[i]);
      i += here ? 2 : 1;
    }
    word = merged;
  }
}

// Symbols are the strings over {a, b} of up to 4 letters; merges join two of them.
std::vector<BpeMerge> random_merges(std::mt19937& random, std::vector<std::string>& strings) {
  strings = {"a", "b"};
  std::vector<BpeMerge> merges;
  for (int i = 0; i < 40; ++i) {
    const auto left = static_cast<int32_t>(random() % strings.size());
    const auto right = static_cast<int32_t>(random() % strings.size());
    const std::string result =
        strings[static_cast<size_t>(left)] + strings[static_cast<size_t>(right)];
    if (result.size() > 8) continue;
    const auto found = std::find(strings.begin(), strings.end(), result);
    merges.push_back({left, right, static_cast<int32_t>(found - strings.begin())});
    if (found == strings.end()) strings.push_back(result);
  }
  std::shuffle(merges.begin(), merges.end(), random);  // also tables no trainer would make
  return merges;
}

TEST(BpeMerges, EqualsTheDefinitionOnShortAndLongWords) {
  std::mt19937 random(3);
  for (int64_t round = 0; round < rounds(300); ++round) {
    std::vector<std::string> strings;
    const std::vector<BpeMerge> merges = random_merges(random, strings);
    for (const MergeOrder order : {MergeOrder::kAllOfOnePair, MergeOrder::kOneByOne}) {
      const BpeMerges table(merges, order);
      for (const size_t length : {0u, 1u, 2u, 3u, 9u, 40u, 95u, 96u, 97u, 98u, 300u}) {
        std::vector<int32_t> word(length);
        for (int32_t& symbol : word) symbol = static_cast<int32_t>(random() % 2);
        const std::vector<int32_t> want = plain_apply(merges, word, order);
        table.apply(word);
        ASSERT_EQ(word, want) << "round " << round << ", length " << length;
      }
    }
  }
}

TEST(BpeMerges, ARepeatedPairKeepsItsLastRank) {
  // (0 1) is listed first and last, so (1 2) wins.
  const std::vector<BpeMerge> merges = {{0, 1, 3}, {1, 2, 4}, {0, 1, 3}};
  std::vector<int32_t> word = {0, 1, 2};
  BpeMerges(merges).apply(word);
  EXPECT_THAT(word, testing::ElementsAre(0, 4));
}

TEST(BpeMerges, WithoutMergesNothingChanges) {
  std::vector<int32_t> word(200, 7);
  BpeMerges({}).apply(word);
  EXPECT_EQ(word, std::vector<int32_t>(200, 7));
}

// Numbers above those of merges stay as they are, whatever pair their bits might look like.
TEST(BpeMerges, LeavesLargeNumbersAlone) {
  constexpr int32_t kLarge = 1 << 21;
  const std::vector<BpeMerge> list = {{5, 7, 8}, {4, 7, 9}};
  const BpeMerges merges(list);
  for (const size_t length : {size_t{2}, size_t{300}}) {
    std::vector<int32_t> symbols(length, kLarge + 7);
    symbols[0] = 4;
    const std::vector<int32_t> before = symbols;
    merges.apply(symbols);
    EXPECT_EQ(symbols, before);
  }
}

TEST(BpeMerges, RefusesLargeNumbersInMerges) {
  constexpr int32_t kLarge = BpeMerges::kMaxNumber + 1;
  const std::vector<BpeMerge> of_symbol = {{0, 1, 2}, {0, kLarge, 3}};
  const std::vector<BpeMerge> of_rank = {{0, 1, 2, kLarge}};
  EXPECT_THAT(message_of<FormatError>([&] { BpeMerges{of_symbol}; }),
              testing::HasSubstr("merge 1 has a piece or a rank of number 2097151"));
  EXPECT_THAT(message_of<FormatError>([&] { BpeMerges{of_rank}; }),
              testing::HasSubstr("merge 0 has a piece or a rank of number 2097151"));
}

}  // namespace
}  // namespace megatron
