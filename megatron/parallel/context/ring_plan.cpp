#include "megatron/parallel/context/ring_plan.h"

#include <utility>

namespace megatron {
namespace {

struct Half {
  int64_t half = 0, num_halves = 2;
};

std::vector<Half> halves(bool is_halved) {
  if (!is_halved) return {{}};
  return {{0, 1}, {1, 1}};
}

// The rank that is `steps` behind (or, if negative, before) this one.
int neighbour(const Ring& ring, int steps) { return (ring.rank + steps + ring.size) % ring.size; }

std::vector<RingCall> calls_of(const Ring& ring, int step, Half half) {
  std::vector<RingCall> calls;
  const int source = neighbour(ring, -step);
  for (const RingPart& part : ring_parts(ring, source)) {
    calls.push_back({source, part, half.half, half.num_halves});
  }
  return calls;
}

// The messages that bring the block of the next step.
std::vector<RingMessage> keys_after(const Ring& ring, int step, Half half) {
  const auto message = [&](bool is_send, int peer, int source) {
    return RingMessage{.is_send = is_send,
                       .peer = peer,
                       .source = source,
                       .num_chunks = num_sent_chunks(source),
                       .half = half.half,
                       .num_halves = half.num_halves};
  };
  return {message(true, neighbour(ring, 1), neighbour(ring, -step)),
          message(false, neighbour(ring, -1), neighbour(ring, -step - 1))};
}

// The messages that take home the gradients of a step's block.
std::vector<RingMessage> gradients_of(const Ring& ring, int step, Half half) {
  const auto message = [&](bool is_send, int peer, int source, int64_t num_chunks) {
    return RingMessage{.is_send = is_send,
                       .peer = peer,
                       .source = source,
                       .is_gradient = true,
                       .num_chunks = num_chunks,
                       .half = half.half,
                       .num_halves = half.num_halves};
  };
  const int to = neighbour(ring, -step);
  const int from = neighbour(ring, step);
  return {message(true, to, to, num_seen_chunks(ring.rank, to)),
          message(false, from, ring.rank, num_seen_chunks(from, ring.rank))};
}

// Starts the messages that bring the block after that of `step`, if there is one. The second half
// of the last block may be late by a step.
void start_keys(RingStep& now, const Ring& ring, int step, bool may_be_late) {
  if (step + 1 == ring.size) return;
  const bool is_halved = ring.halves_last_block && step + 2 == ring.size;
  for (const Half half : halves(is_halved)) now.batches.push_back(keys_after(ring, step, half));
  if (is_halved && may_be_late) now.num_travelling = 1;
}

// Starts the messages that take home what the step before left, beside the first keys.
void start_home(RingStep& now, std::vector<RingMessage>& home) {
  if (home.empty()) return;
  if (now.batches.empty()) now.batches.emplace_back();
  std::vector<RingMessage>& first = now.batches.front();
  first.insert(first.end(), home.begin(), home.end());
  home.clear();
}

// The calls for a rank's own block in the backward pass: at least two, the last of them kept.
std::vector<RingCall> own_calls(const Ring& ring) {
  std::vector<RingCall> calls = calls_of(ring, 0, {});
  if (calls.size() > 1) return calls;
  calls.clear();
  for (const Half half : halves(true)) calls.push_back(calls_of(ring, 0, half)[0]);
  return calls;
}

}  // namespace

int64_t num_seen_chunks(int rank, int source) { return source < rank ? 1 : 2; }

// The last rank that a block reaches is the one before its own: none is before rank 0.
int64_t num_sent_chunks(int source) { return source == 0 ? 1 : 2; }

bool halves_last_ring_block(int64_t length, int64_t batch, int64_t heads, int64_t groups,
                            bool by_position) {
  const bool has_halves = batch > 1 || groups > 1;
  return has_halves && !by_position && length * (heads / groups) < kShortRingChunk;
}

std::vector<RingPart> ring_parts(const Ring& ring, int source) {
  const int rank = ring.rank;
  const bool is_own = source == rank;
  if (!ring.by_position) {
    const int64_t queries = source > rank ? 1 : 2;
    return {{.first_query = 2 - queries,
             .num_queries = queries,
             .first_key = 0,
             .num_keys = num_seen_chunks(rank, source),
             .is_causal = is_own,
             .query_offset = 0,
             .key_offset = 0}};
  }
  // Chunks in order: early ones by rank, then late ones by falling rank.
  const int64_t queries[] = {rank, 2 * ring.size - 1 - rank};
  const int64_t keys[] = {source, 2 * ring.size - 1 - source};
  const auto pair = [&](int query, int key, bool is_causal) {
    return RingPart{.first_query = query,
                    .num_queries = 1,
                    .first_key = key,
                    .num_keys = 1,
                    .is_causal = is_causal,
                    .query_offset = queries[query],
                    .key_offset = keys[key]};
  };
  if (source < rank) return {pair(0, 0, false), pair(1, 0, false)};
  std::vector<RingPart> parts = {pair(1, 0, false), pair(1, 1, is_own)};
  if (is_own) parts.push_back(pair(0, 0, true));
  return parts;
}

double num_pairs(const RingPart& part) {
  const auto queries = static_cast<double>(part.num_queries);
  const auto keys = static_cast<double>(part.num_keys);
  return queries * (keys - (part.is_causal ? queries / 2 : 0));
}

double num_pairs(const RingStep& step) {
  double pairs = 0;
  for (const RingCall& call : step.calls) {
    pairs += num_pairs(call.part) * static_cast<double>(call.num_halves) / 2;
  }
  return pairs;
}

std::vector<RingStep> forward_steps(const Ring& ring) {
  const int last = ring.size - 1;
  // The other blocks are complete before the attention to them.
  const bool is_halved =
      ring.halves_last_block && num_seen_chunks(ring.rank, neighbour(ring, -last)) == 2;
  std::vector<RingStep> steps;
  for (int step = 0; step <= last; ++step) {
    for (const Half half : halves(is_halved && step == last)) {
      steps.push_back({.calls = calls_of(ring, step, half)});
    }
    start_keys(steps.back(), ring, step, is_halved);
  }
  return steps;
}

std::vector<RingStep> backward_steps(const Ring& ring) {
  const int last = ring.size - 1;
  std::vector<RingCall> own = own_calls(ring);
  const RingCall kept = own.back();
  own.pop_back();
  std::vector<RingStep> steps = {{.calls = std::move(own)}};
  start_keys(steps.back(), ring, 0, true);
  std::vector<RingMessage> home;
  for (int step = 1; step <= last; ++step) {
    for (const Half half : halves(ring.halves_last_block && step == last)) {
      steps.push_back({.calls = calls_of(ring, step, half)});
      start_keys(steps.back(), ring, step, true);
      start_home(steps.back(), home);
      home = gradients_of(ring, step, half);
    }
  }
  steps.push_back({.calls = {kept}});
  start_home(steps.back(), home);
  return steps;
}

}  // namespace megatron
