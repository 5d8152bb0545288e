#include "megatron/parallel/context/ring_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

namespace megatron {
namespace {

std::array<int64_t, 2> chunks_of(int rank, int size) { return {rank, 2 * size - 1 - rank}; }

// Calls f(query, key, is_diagonal) with the chunks of the rank and of the block that meet. Queries
// of a causal part see as many chunks of keys fewer as chunks of queries come after them.
template <class F>
void for_each_pair(const RingPart& part, const F& f) {
  for (int64_t i = 0; i < part.num_queries; ++i) {
    const int64_t hidden = part.is_causal ? part.num_queries - 1 - i : 0;
    for (int64_t j = 0; j < part.num_keys - hidden; ++j) {
      const bool is_diagonal = part.is_causal && j == part.num_keys - hidden - 1;
      f(part.first_query + i, part.first_key + j, is_diagonal);
    }
  }
}

// Of two chunks, queries see all keys of an earlier one, and of their own those up to themselves.
TEST(RingPlanTest, EveryVisiblePairIsComputedOnce) {
  for (int size = 2; size <= 7; ++size) {
    for (const bool by_position : {false, true}) {
      std::map<std::pair<int64_t, int64_t>, bool> is_causal;  // by chunks of queries and keys
      for (int rank = 0; rank < size; ++rank) {
        for (int source = 0; source < size; ++source) {
          for (const RingPart& part : ring_parts(rank, source, size, by_position)) {
            if (by_position) {
              const auto query = static_cast<size_t>(part.first_query);
              const auto key = static_cast<size_t>(part.first_key);
              EXPECT_EQ(part.num_queries, 1);
              EXPECT_EQ(part.num_keys, 1);
              EXPECT_EQ(part.query_offset, chunks_of(rank, size)[query]);
              EXPECT_EQ(part.key_offset, chunks_of(source, size)[key]);
            }
            for_each_pair(part, [&](int64_t query, int64_t key, bool is_diagonal) {
              const int64_t queries = chunks_of(rank, size)[static_cast<size_t>(query)];
              const int64_t keys = chunks_of(source, size)[static_cast<size_t>(key)];
              EXPECT_TRUE(is_causal.emplace(std::pair(queries, keys), is_diagonal).second)
                  << queries << " " << keys;
            });
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
  for (int size = 2; size <= 7; ++size) {
    for (const bool by_position : {false, true}) {
      for (int rank = 0; rank < size; ++rank) {
        for (int source = 0; source < size; ++source) {
          const std::vector<RingPart> parts = ring_parts(rank, source, size, by_position);
          EXPECT_EQ(parts.size(), !by_position ? 1u : source == rank ? 3u : 2u);
          double pairs = 0;  // of chunks
          for (const RingPart& part : parts) {
            for_each_pair(part, [&](auto, auto, bool is_half) { pairs += is_half ? 0.5 : 1; });
          }
          EXPECT_EQ(pairs, 2);
        }
      }
    }
  }
}

// What goes around is what the ranks behind see.
TEST(RingPlanTest, SeenChunksAreSent) {
  for (int size = 2; size <= 5; ++size) {
    for (int source = 0; source < size; ++source) {
      int64_t most = 0;
      for (int rank = 0; rank < size; ++rank) {
        if (rank != source) most = std::max(most, num_seen_chunks(rank, source));
      }
      EXPECT_EQ(num_sent_chunks(source), most);
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
          if (rank == source && parts.size() > 1) parts.pop_back();
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
