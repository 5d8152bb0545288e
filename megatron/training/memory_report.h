#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/parallel/config.h"
#include "megatron/transformer/config.h"

namespace megatron {

// What the memory of a rank depends on besides the model.
struct MemoryLayout {
  int64_t micro_batch_size = 1;
  int64_t num_microbatches = 1;
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t vp = 0;  // virtual stages per rank; 0: not interleaved
  int64_t dp = 1;
  bool use_distributed_optimizer = false;
};
MemoryLayout memory_layout_of(const ParallelConfig& config, int64_t micro_batch_size,
                              int64_t num_microbatches);

// Memory of a rank of the first pipeline stage, for 16-bit training with sequence parallelism and
// selective recompute (Korthikanti et al. 2022, arXiv:2205.05198, sec. 4). Biases and the position
// table are not counted, and the MLP has width 4 h.
struct TheoreticalMemory {
  double layer_parameters = 0.0;        // of all transformer layers
  double total_parameters = 0.0;        // with the embeddings
  double most_loaded_parameters = 0.0;  // of a rank of the first stage
  double other_parameters = 0.0;        // of a rank of another stage
  double bytes_per_parameter = 0.0;     // with gradient and optimizer state
  double layer_activation_bytes = 0.0;  // of one layer on one rank
  double interleaving_penalty = 1.0;    // activations over those without virtual stages
  int64_t in_flight_microbatches = 1;
  double weight_and_optimizer_bytes = 0.0;
  double activation_bytes = 0.0;

  double total_bytes() const { return weight_and_optimizer_bytes + activation_bytes; }
};
TheoreticalMemory theoretical_memory(const TransformerConfig& config, const MemoryLayout& layout);

// The lines Megatron-LM prints; MB are 2^20 bytes.
std::vector<std::string> report_lines(const TheoreticalMemory& memory, const MemoryLayout& layout);

}  // namespace megatron
