#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// The order of ring_attention() as plain data: its messages, and the calls of attention beside
// them.
namespace megatron {

// Two chunks of keys take as long to reach a GPU over NVLink as it attends to them if they have
// about 1,100 tokens for each query head of a group of keys. Longer ones travel unseen.
constexpr int64_t kShortRingChunk = 2048;

// A ring of ranks as one of them sees it.
struct Ring {
  int rank = 0, size = 1;
  // Scores or dropout depend on positions, so queries and keys of a call are adjacent in the
  // sequence.
  bool by_position = false;
  // The last block travels, and is attended to, in two halves of its heads.
  bool halves_last_block = false;
};

// Queries of a rank's chunks, and keys of a block, the two chunks of the rank or of another one.
// Chunks are numbered by their places in the sequence (ContextParallel::chunks).
struct RingPart {
  int64_t first_query;  // 0 or 1: the first of the rank's chunks ...
  int64_t num_queries;  // 1 or 2: ... and how many
  int64_t first_key;    // the same of the block
  int64_t num_keys;
  bool is_causal;  // the last chunk of keys is that of the last queries; otherwise all are seen
  int64_t query_offset;  // chunks before the queries, and before the keys; if positions do not
  int64_t key_offset;    // matter, chunks are counted from the first of the part
};

// The parts in which `rank` of `size` attends to the block of `source`: together all visible pairs
// of a query and a key. The work is equal for all blocks of other ranks, and all ranks have equal
// work for their own block. One part suffices, because it can cover chunks that are adjacent in
// memory; by position a block takes two, the own block three.
//
// Parts are ordered by the keys that they touch first; the last part of the own block is that of
// chunk 0, whose keys the parts before it touch, too.
std::vector<RingPart> ring_parts(const Ring& ring, int source);

// The number of chunks of the block of `source`, from its first on, that are visible to `rank`: 1
// or 2.
int64_t num_seen_chunks(int rank, int source);

// The number of chunks that are visible to a rank behind `source` and are therefore sent around the
// ring.
int64_t num_sent_chunks(int source);

// True if the last block of a ring is worth halving: another rank needs both chunks of it, and they
// are too short for their attention to hide that. A single head of keys has no halves.
bool halves_last_ring_block(int64_t length, int64_t batch, int64_t heads, int64_t groups,
                            bool by_position);

// A message between two ranks.
struct RingMessage {
  bool is_send = false;
  int peer = 0;
  int source = 0;                    // the rank of the block
  bool is_gradient = false;          // of the block's keys and values, which goes to `source`
  int64_t num_chunks = 2;            // the first of the block
  int64_t half = 0, num_halves = 2;  // of the heads (HeadsRegion)
};

// A call of attention to a part of a block, or to a half of its heads.
struct RingCall {
  int source = 0;
  RingPart part = {};
  int64_t half = 0, num_halves = 2;
};

// The work of a call, in units of one chunk of queries on one of keys, all heads.
double num_pairs(const RingPart& part);

// A step of the schedule of a rank: messages and the calls beside them. Its calls have one block
// and one half.
struct RingStep {
  std::vector<std::vector<RingMessage>> batches = {};  // of messages, started before the calls
  std::vector<RingCall> calls = {};
  // Batches arrive in the order of their start. After the calls, all but the last `num_travelling`
  // are waited for.
  size_t num_travelling = 0;
};
double num_pairs(const RingStep& step);

// The steps of a pass. Step 0 is the attention of a rank's own chunks, step i that to the block of
// the i-th rank before it; during a step the next block comes from the rank before, and the present
// one is sent to the next rank. With halves_last_block the first half of the last block is attended
// to while the second one travels, if both its chunks are visible.
//
// The backward pass also sends the gradients of a block's keys and values to their rank, during the
// step after. The last ones travel beside a half of step 0 that was kept for that (of a part of it,
// by position); with halves_last_block the first half of them travels beside the gradients of the
// second.
std::vector<RingStep> forward_steps(const Ring& ring);
std::vector<RingStep> backward_steps(const Ring& ring);

}  // namespace megatron
