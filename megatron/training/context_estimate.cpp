#include "megatron/training/context_estimate.h"

#include <algorithm>

#include "megatron/parallel/context/ring_plan.h"

namespace megatron {
namespace {

// Bytes of an element whose sum has `terms` terms in 16 bits: the sum of several is in fp32
// (context/head_sums.h).
double sum_bytes(int64_t terms) {
  const double first = 2 + 2, sum = 4, last = 2;
  if (terms <= 2) return first + last;
  return first + sum + static_cast<double>(terms - 3) * (sum + 2 + sum) + sum + 2 + last;
}

}  // namespace

bool attends_by_position(const TransformerConfig& config, bool has_documents) {
  return config.attention_dropout > 0 || has_documents ||
         config.position_embedding_type == PositionEmbedding::kAlibi;
}

std::vector<AttentionPart> attention_parts(const TransformerConfig& config,
                                           const ParallelConfig& parallel, bool by_position) {
  const auto whole = static_cast<double>(config.seq_length);
  const int64_t ranks = parallel.context_parallel_size / head_exchange_size(parallel);
  if (ranks == 1) return {{.work = 1, .keys = whole / 2}};
  const auto size = static_cast<double>(2 * ranks);  // chunks; a rank's work in pairs of them, too
  const double length = whole / size;
  if (parallel.context_exchange == ContextExchange::kAllGather) {  // chunks in the middle
    std::vector<AttentionPart> parts;
    for (const double before : {size / 2 - 1, size / 2}) {
      parts.push_back({(before + 0.5) / size, (before + 0.5) * length, false});
    }
    return parts;
  }
  // The last rank sees one chunk of each block.
  const int rank = static_cast<int>(ranks) - 1;
  const Ring ring{.rank = rank, .size = static_cast<int>(ranks), .by_position = by_position};
  std::vector<AttentionPart> parts;
  for (int source = 0; source <= rank; ++source) {
    for (const RingPart& part : ring_parts(ring, source)) {
      const double pairs = num_pairs(part);
      parts.push_back({pairs / size, pairs / static_cast<double>(part.num_queries) * length,
                       !part.is_causal || part.num_queries == part.num_keys});
    }
  }
  return parts;
}

double context_copy_bytes(const ParallelConfig& parallel, double q, double k) {
  const int64_t head_ranks = head_exchange_size(parallel);
  const int64_t ranks = parallel.context_parallel_size / head_ranks;
  constexpr double kCopy = 4;  // read and written
  // Projections, outputs and their gradients.
  double bytes = head_ranks > 1 ? 2 * kCopy * (2 * q + 2 * k) : 0;
  if (ranks == 1) return bytes;
  bytes += 2 * kCopy * 2 * k;  // keys and values, into what is sent, both passes
  if (parallel.context_exchange == ContextExchange::kAllGather) {
    // Zeros, the sum of the first half, and its copy.
    const auto all = static_cast<double>(ranks) * 2 * k;
    return bytes + 2 * all + 6 * all / 2 + kCopy * 2 * k;
  }
  // Outputs, and gradients of queries, of keys and of values.
  return bytes + sum_bytes(ranks) * (2 * q + 2 * k);
}

}  // namespace megatron
