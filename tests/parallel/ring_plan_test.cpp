#include "megatron/parallel/context/ring_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
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
          for (const RingPart& part : ring_parts({rank, size, by_position}, source)) {
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
          const std::vector<RingPart> parts = ring_parts({rank, size, by_position}, source);
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
          std::vector<RingPart> parts = ring_parts({rank, size, by_position}, source);
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

const char* half_of(int64_t half, int64_t num_halves) {
  return num_halves == 2 ? "" : half == 0 ? " a" : " b";
}

std::string name_of(const RingMessage& message) {
  return (message.is_gradient ? "g" : "k") + std::to_string(message.source) +
         (message.num_chunks == 1 ? " 0" : " 01") + half_of(message.half, message.num_halves);
}

// A picture of steps, one a line: batches of messages, those to a rank and those from it, `|`, and
// calls: the chunks of queries and of keys, `\\` if causal. `k` are keys and values, `g` their
// gradients, with the rank of their block, its chunks, and a half. `..` is on its way after a step.
std::string picture(const std::vector<RingStep>& steps) {
  const auto chunks = [](int64_t first, int64_t count) {
    return count == 2 ? "01" : first == 0 ? "0" : "1";
  };
  std::string out;
  for (const RingStep& step : steps) {
    for (const std::vector<RingMessage>& batch : step.batches) {
      for (const RingMessage& message : batch) {
        out += (&message == &batch.front() ? "[" : ", ") + name_of(message) +
               (message.is_send ? " to " : " from ") + std::to_string(message.peer);
      }
      out += "] ";
    }
    out += "|";
    for (const RingCall& call : step.calls) {
      out += std::string(" q") + chunks(call.part.first_query, call.part.num_queries) +
             (call.part.is_causal ? "\\" : "x") + "k" + std::to_string(call.source) + " " +
             chunks(call.part.first_key, call.part.num_keys) + half_of(call.half, call.num_halves);
    }
    out += step.num_travelling > 0 ? " ..\n" : "\n";
  }
  return out;
}

// Rank 0 sees both chunks of rank 1, which sees one of rank 0: rank 0 attends to a half of the
// heads while the other half travels.
TEST(RingPlanTest, TheLastBlockOfTwoRanksTravelsInHalves) {
  EXPECT_EQ(picture(forward_steps({.rank = 0, .size = 2, .halves_last_block = true})),
            "[k0 0 a to 1, k1 01 a from 1] [k0 0 b to 1, k1 01 b from 1] | q01\\k0 01 ..\n"
            "| q1xk1 01 a\n"
            "| q1xk1 01 b\n");
  EXPECT_EQ(picture(forward_steps({.rank = 1, .size = 2, .halves_last_block = true})),
            "[k1 01 a to 0, k0 0 a from 0] [k1 01 b to 0, k0 0 b from 0] | q01\\k1 01\n"
            "| q01xk0 0\n");
  EXPECT_EQ(picture(backward_steps({.rank = 0, .size = 2, .halves_last_block = true})),
            "[k0 0 a to 1, k1 01 a from 1] [k0 0 b to 1, k1 01 b from 1] | q01\\k0 01 a ..\n"
            "| q1xk1 01 a\n"
            "[g1 01 a to 1, g0 0 a from 1] | q1xk1 01 b\n"
            "[g1 01 b to 1, g0 0 b from 1] | q01\\k0 01 b\n");
  EXPECT_EQ(picture(backward_steps({.rank = 1, .size = 2, .halves_last_block = true})),
            "[k1 01 a to 0, k0 0 a from 0] [k1 01 b to 0, k0 0 b from 0] | q01\\k1 01 a ..\n"
            "| q01xk0 0 a\n"
            "[g0 0 a to 0, g1 01 a from 0] | q01xk0 0 b\n"
            "[g0 0 b to 0, g1 01 b from 0] | q01\\k1 01 b\n");
}

TEST(RingPlanTest, BlocksTravelWholeWhereAttentionHidesThem) {
  EXPECT_EQ(picture(forward_steps({.rank = 0, .size = 2})),
            "[k0 0 to 1, k1 01 from 1] | q01\\k0 01\n"
            "| q1xk1 01\n");
  EXPECT_EQ(picture(backward_steps({.rank = 0, .size = 2})),
            "[k0 0 to 1, k1 01 from 1] | q01\\k0 01 a\n"
            "| q1xk1 01\n"
            "[g1 01 to 1, g0 0 from 1] | q01\\k0 01 b\n");
  EXPECT_EQ(picture(backward_steps({.rank = 1, .size = 2, .by_position = true})),
            "[k1 01 to 0, k0 0 from 0] | q1xk1 0 q1\\k1 1\n"
            "| q0xk0 0 q1xk0 0\n"
            "[g0 0 to 0, g1 01 from 0] | q0\\k1 0\n");
}

// Only the last of several blocks travels in halves.
TEST(RingPlanTest, ARingOfThreeHalvesItsLastBlock) {
  EXPECT_EQ(picture(backward_steps({.rank = 1, .size = 3, .halves_last_block = true})),
            "[k1 01 to 2, k0 0 from 0] | q01\\k1 01 a\n"
            "[k0 0 a to 2, k2 01 a from 0] [k0 0 b to 2, k2 01 b from 0] | q01xk0 0 ..\n"
            "[g0 0 to 0, g1 0 from 2] | q1xk2 01 a\n"
            "[g2 01 a to 2, g1 01 a from 0] | q1xk2 01 b\n"
            "[g2 01 b to 2, g1 01 b from 0] | q01\\k1 01 b\n");
}

// Keys are at a rank before the calls that read them, every send meets a receive, in the same order
// between two ranks, and two blocks' memory suffices.
TEST(RingPlanTest, MessagesMeetAndArriveInTime) {
  for (int size = 2; size <= 6; ++size) {
    for (const auto& [by_position, halves] :
         {std::pair{false, false}, std::pair{true, false}, std::pair{false, true}}) {
      for (const auto& steps_of : {forward_steps, backward_steps}) {
        // By sender, receiver: those of either side.
        std::map<std::pair<int, int>, std::array<std::vector<std::string>, 2>> messages;
        for (int rank = 0; rank < size; ++rank) {
          const std::vector<RingStep> steps = steps_of({rank, size, by_position, halves});
          std::set<std::pair<int, int64_t>> held = {{rank, 0}, {rank, 1}};  // sources and halves
          std::vector<const std::vector<RingMessage>*> batches;
          for (const RingStep& step : steps) {
            for (const std::vector<RingMessage>& batch : step.batches) {
              batches.push_back(&batch);
              for (const RingMessage& message : batch) {
                const auto route =
                    message.is_send ? std::pair{rank, message.peer} : std::pair{message.peer, rank};
                messages[route][message.is_send ? 0 : 1].push_back(name_of(message));
                for (int64_t i = 0; i < message.num_halves && message.is_send; ++i) {
                  EXPECT_TRUE(message.is_gradient ||
                              held.contains({message.source, message.half + i}));
                }
              }
            }
            for (const RingCall& call : step.calls) {
              for (int64_t i = 0; i < call.num_halves; ++i) {
                EXPECT_TRUE(held.contains({call.source, call.half + i}));
              }
            }
            for (; batches.size() > step.num_travelling; batches.erase(batches.begin())) {
              for (const RingMessage& message : *batches.front()) {
                for (int64_t i = 0; i < message.num_halves && !message.is_send; ++i) {
                  if (!message.is_gradient) held.insert({message.source, message.half + i});
                }
              }
            }
          }
          EXPECT_TRUE(batches.empty());
          EXPECT_EQ(held.size(), static_cast<size_t>(2 * size));
        }
        for (const auto& [route, sides] : messages) EXPECT_EQ(sides[0], sides[1]);
      }
    }
  }
}

TEST(RingPlanTest, HalvesWhatAttentionIsTooShortToHide) {
  EXPECT_TRUE(halves_last_ring_block(512, 8, 16, 16, false));
  EXPECT_FALSE(halves_last_ring_block(512, 8, 16, 16, true));
  EXPECT_FALSE(halves_last_ring_block(512, 8, 16, 4, false));  // a quarter of the keys
  EXPECT_FALSE(halves_last_ring_block(2048, 8, 16, 16, false));
  EXPECT_TRUE(halves_last_ring_block(512, 1, 16, 16, false));
  EXPECT_FALSE(halves_last_ring_block(16, 1, 16, 1, false));  // one head
}

}  // namespace
}  // namespace megatron
