#include "megatron/interchange/megatron/shard_parts.h"

#include <gtest/gtest.h>

#include "megatron/core/error.h"

namespace megatron {
namespace {

// The parts of all ranks tile the shard and the whole, whatever the number of ranks.
TEST(ShardPartsTest, PartsTileShardAndWhole) {
  const Shape whole{24, 12};
  const Sharding kinds[] = {{{.axis = 0}}, {{.axis = 1}}, {{.axis = 0, .parts = 2}}};
  for (const Sharding& kind : kinds) {
    for (const int64_t ranks : {1, 2, 3, 4}) {
      std::vector<int> seen(static_cast<size_t>(whole.numel()), 0);
      const Shape shard = kind.on_rank(0, ranks).local(whole);
      EXPECT_EQ(kind.on_rank(0, ranks).whole(shard), whole);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        int64_t rows = 0;
        for (const ShardPart& part : shard_parts(kind.on_rank(rank, ranks), whole)) {
          EXPECT_EQ(part.begin, rows);
          rows += part.region.shape[0];
          ASSERT_TRUE(is_inside(part.region, whole));
          for (int64_t r = 0; r < part.region.shape[0]; ++r) {
            for (int64_t c = 0; c < part.region.shape[1]; ++c) {
              ++seen[static_cast<size_t>((part.region.offset[0] + r) * whole[1] +
                                         part.region.offset[1] + c)];
            }
          }
        }
        EXPECT_EQ(rows, shard[0]);
      }
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
    }
  }
  EXPECT_THROW(shard_parts(kinds[0].on_rank(0, 5), whole), ShapeError);
}

// Four heads of three channels on two ranks: row (kind, head, channel) of the whole model has the
// number it has in our order, and lies in the shards where the old formulas say.
TEST(ShardPartsTest, OldOrdersOfQueriesKeysAndValues) {
  constexpr int64_t kHeads = 4;
  constexpr int64_t kChannels = 3;
  constexpr int64_t kRanks = 2;
  const Shape whole{3 * kHeads * kChannels, 5};
  for (const int64_t version : {0, 1}) {
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      constexpr int64_t kLocal = kHeads / kRanks;
      std::vector<int64_t> of_row(static_cast<size_t>(whole[0] / kRanks), -1);
      for (const ShardPart& part : old_qkv_parts(version, whole, rank, kRanks, kHeads, kChannels)) {
        for (int64_t r = 0; r < part.region.shape[0]; ++r) {
          of_row[static_cast<size_t>(part.begin + r)] = part.region.offset[0] + r;
        }
      }
      for (int64_t kind = 0; kind < 3; ++kind) {
        for (int64_t head = 0; head < kLocal; ++head) {
          for (int64_t channel = 0; channel < kChannels; ++channel) {
            const int64_t row = version == 0 ? (kind * kLocal + head) * kChannels + channel
                                             : (head * kChannels + channel) * 3 + kind;
            const int64_t want = ((rank * kLocal + head) * 3 + kind) * kChannels + channel;
            EXPECT_EQ(of_row[static_cast<size_t>(row)], want);
          }
        }
      }
    }
  }
  EXPECT_THROW(old_qkv_parts(0, Shape{35, 5}, 0, 2, 4, 3), ShapeError);
}

}  // namespace
}  // namespace megatron
