#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/device/allocator.h"
#include "megatron/parallel/config.h"
#include "megatron/transformer/config.h"

// The activation memory of a layer, computed from its config alone: the tensors that the ops of a
// TransformerLayer capture (kept) and allocate in their backward passes (steps). Change this with
// the ops; tests/models/gpt/gpt_plan_test.cpp compares it with the allocator's count.
namespace megatron {

struct MemoryRow {
  std::string what;
  int64_t bytes = 0;
};
int64_t total_bytes(const std::vector<MemoryRow>& rows);

// A piece of the backward pass. It allocates before it frees.
struct MemoryStep {
  std::string what;
  int64_t allocates = 0;
  int64_t frees = 0;
};
// The peak of the memory that the steps add, one after the other.
int64_t peak_bytes(const std::vector<MemoryStep>& steps);

// A microbatch as one rank sees it.
struct MicrobatchSizes {
  int64_t micro_batch_size = 1;
  int64_t tp = 1;
  int64_t cp = 1;
  ContextExchange exchange = ContextExchange::kP2p;
  bool sequence_parallel = false;  // norms, residuals and their gradients are divided by tp too
  DeviceType device = DeviceType::kCpu;
  bool is_deterministic = false;  // --deterministic-mode
  int64_t encoder_length = 0;  // tokens that the layers' cross-attention reads; 0: it is not there

  int64_t tokens(const TransformerConfig& config) const {
    return config.seq_length / cp * micro_batch_size;
  }
  // Tokens in the regions that only sequence parallelism divides.
  int64_t residual_tokens(const TransformerConfig& config) const {
    return tokens(config) / (sequence_parallel ? tp : 1);
  }
  // Bytes that the allocator takes from the device for a tensor of that size.
  int64_t block(int64_t elements, DType dtype) const {
    return MemorySource::of(device).block_bytes(elements * size_of(dtype));
  }
};

struct LayerMemory {
  MemoryRow input;                   // x, which the first norm keeps
  std::vector<MemoryRow> kept;       // all else that the backward pass needs
  std::vector<MemoryStep> backward;  // begins when the gradient of the output exists
  int64_t workspace = 0;             // scratch memory of the kernel that needs most

  int64_t kept_bytes() const { return input.bytes + total_bytes(kept); }
};

// `is_recomputed`: the layer ends a region of recompute(), which holds the layer's output and its
// gradient while the region runs backward.
LayerMemory layer_memory(const TransformerConfig& config, const MicrobatchSizes& sizes,
                         bool is_recomputed = false);

// With sequence parallelism: a whole tensor of the residual stream. Column-parallel layers gather
// their input and its gradient so, row-parallel layers the gradient of their output.
int64_t gathered_bytes(const TransformerConfig& config, const MicrobatchSizes& sizes);

// The statistics that a norm keeps.
int64_t norm_statistics_bytes(const TransformerConfig& config, const MicrobatchSizes& sizes);

}  // namespace megatron
