#include "megatron/parallel/context/ring_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <utility>
#include <vector>

namespace megatron {
namespace {

std::array<int64_t, 2> chunks_of(int rank, int size) { return {rank, 2 * size - 1 - rank}; }

// Of two chunks, queries see all keys of an earlier one, and of their own those up to themselves.
TEST(RingPlanTest, EveryVisiblePairIsComputedOnce) {
  for (int size = 2; size <= 7; ++size) {
    for (const bool by_position : {false, true}) {
      std::map<std::pair<int64_t, int64_t>, bool> is_causal;  // by chunks of queries and keys
      for (int rank = 0; rank < size; ++rank) {
        for (int source = 0; source < size; ++source) {
          for (const RingPart& part : ring_parts(rank, source, size, by_position)) {
            const int64_t queries = chunks_of(rank, size)[part.queries];
            if (by_position) {
              EXPECT_EQ(part.num_keys, 1);
              EXPECT_EQ(part.query_offset, queries);
              EXPECT_EQ(part.key_offset,
                        chunks_of(source, size)[static_cast<size_t>(part.first_key)]);
            }
            for (int64_t i = 0; i < part.num_keys; ++i) {
              const int64_t keys = chunks_of(source, size)[static_cast<size_t>(part.first_key + i)];
              const bool is_last = i + 1 == part.num_keys;
              const bool is_new =
                  is_causal.emplace(std::pair(queries, keys), part.is_causal && is_last).second;
              EXPECT_TRUE(is_new) << queries << " " << keys;
            }
          }
        }
      }
      for (int64_t queries = 0; queries < 2 * size; ++queries) {
        for (int64_t keys = 0; keys < 2 * size; ++keys) {
          const auto found = is_causal.find({queries, keys});
          ASSERT_EQ(found != is_causal.end(), keys <= queries) << queries << " " << keys;
          if (keys <= queries) {
            EXPECT_EQ(found->second, keys == queries);
          }
        }
      }
    }
  }
}

TEST(RingPlanTest, RanksHaveTheSameWorkInEveryStep) {
  const auto work = [](int rank, int source, int size) {
    double pairs = 0;  // of chunks
    for (const RingPart& part : ring_parts(rank, source, size, false)) {
      pairs += static_cast<double>(part.num_keys) - (part.is_causal ? 0.5 : 0);
    }
    return pairs;
  };
  for (int size = 2; size <= 7; ++size) {
    for (int rank = 0; rank < size; ++rank) {
      for (int source = 0; source < size; ++source) EXPECT_EQ(work(rank, source, size), 2);
    }
  }
}

// The gradients that travel home are those of the chunks that were touched, and the last part of
// the own block touches no chunk first.
TEST(RingPlanTest, PartsTouchWhatIsSeen) {
  for (int size = 2; size <= 5; ++size) {
    for (const bool by_position : {false, true}) {
      for (int rank = 0; rank < size; ++rank) {
        for (int source = 0; source < size; ++source) {
          std::vector<RingPart> parts = ring_parts(rank, source, size, by_position);
          if (rank == source) parts.pop_back();
          std::array<bool, 2> is_touched{};
          for (const RingPart& part : parts) {
            for (int64_t i = 0; i < part.num_keys; ++i) {
              is_touched[static_cast<size_t>(part.first_key + i)] = true;
            }
          }
          EXPECT_TRUE(is_touched[0]);
          EXPECT_EQ(is_touched[1], num_seen_chunks(rank, source) == 2);
        }
      }
    }
  }
}

}  // namespace
}  // namespace megatron
