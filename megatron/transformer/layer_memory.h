#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/device/allocator.h"
#include "megatron/transformer/config.h"

// The activation memory of a layer, from its config alone: the counterpart of what the ops of a
// TransformerLayer capture (kept) and allocate in their backward passes (steps). Change the two
// together; tests/models/gpt/gpt_plan_test.cpp compares them with the allocator's own count.
namespace megatron {

struct MemoryRow {
  std::string what;
  int64_t bytes = 0;
};
int64_t total_bytes(const std::vector<MemoryRow>& rows);

// A piece of the backward pass. Frees follow allocations: both exist for a moment.
struct MemoryStep {
  std::string what;
  int64_t allocates = 0;
  int64_t frees = 0;
};
// The most that the steps, one after the other, add to what was there before.
int64_t peak_bytes(const std::vector<MemoryStep>& steps);

// A microbatch as one rank sees it.
struct MicrobatchSizes {
  int64_t micro_batch_size = 1;
  int64_t tp = 1;
  int64_t cp = 1;
  bool sequence_parallel = false;  // norms, residuals and their gradients are divided by tp too
  DeviceType device = DeviceType::kCpu;
  bool is_deterministic = false;  // --deterministic-mode

  int64_t tokens(const TransformerConfig& config) const {
    return config.seq_length / cp * micro_batch_size;
  }
  // Tokens in the regions that only sequence parallelism divides.
  int64_t residual_tokens(const TransformerConfig& config) const {
    return tokens(config) / (sequence_parallel ? tp : 1);
  }
  // What a tensor of that size takes of the device.
  int64_t block(int64_t elements, DType dtype) const {
    return MemorySource::of(device).block_bytes(elements * size_of(dtype));
  }
};

struct LayerMemory {
  MemoryRow input;                   // x, which the first norm keeps
  std::vector<MemoryRow> kept;       // the rest of what the backward pass needs
  std::vector<MemoryStep> backward;  // from the gradient of the output, which exists already
  int64_t workspace = 0;             // scratch of the kernel that needs most

  int64_t kept_bytes() const { return input.bytes + total_bytes(kept); }
};

// `is_recomputed`: the layer ends a region of recompute(), which holds its output and the gradient
// of that while the region runs backward.
LayerMemory layer_memory(const TransformerConfig& config, const MicrobatchSizes& sizes,
                         bool is_recomputed = false);

// With sequence parallelism: a tensor of the residual stream in whole, which column-parallel layers
// make of their input and of its gradient, and row-parallel ones of the gradient of their output.
int64_t gathered_bytes(const TransformerConfig& config, const MicrobatchSizes& sizes);

// What a norm keeps of its statistics.
int64_t norm_statistics_bytes(const TransformerConfig& config, const MicrobatchSizes& sizes);

}  // namespace megatron
