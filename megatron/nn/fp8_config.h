#pragma once

#include <cstdint>

namespace megatron {

// The 8-bit types of matrix products: E4M3 for all tensors, or hybrid: E4M3 for activations and
// weights, E5M2 for gradients.
enum class Fp8Format { kNone, kE4M3, kHybrid };
// Scaling of a tensor: delayed (from the amax history of earlier iterations), per tensor (from its
// own amax), or per block (kernels/fp8_blocks.h): 128 elements along the summed axis of a product,
// 128 by 128 for weights.
enum class Fp8Recipe { kDelayed, kTensorwise, kBlockwise };
// The element of the history that gives the scale.
enum class Fp8AmaxAlgorithm { kMostRecent, kMax };

// Linear layers in FP8. Names are Megatron's flag names without the dashes and fp8.
struct Fp8Config {
  Fp8Format format = Fp8Format::kNone;
  Fp8Recipe recipe = Fp8Recipe::kDelayed;
  int64_t margin = 0;            // scales are divided by 2^margin, not those of blocks
  int64_t interval = 1;          // iterations between two updates of delayed scales
  int64_t amax_history_len = 1;  // iterations
  Fp8AmaxAlgorithm amax_compute_algo = Fp8AmaxAlgorithm::kMostRecent;
  bool wgrad = true;          // the gradients of weights, too
  bool param_gather = false;  // data-parallel ranks gather and store weights only in FP8
  // Weights are kept by columns, too, for the gradients of inputs; false: each product transposes
  // the one copy.
  bool keep_transpose_cache = true;
  bool first_last_layers_bf16 = false;
  int64_t num_layers_at_start_in_bf16 = 1;  // with first_last_layers_bf16
  int64_t num_layers_at_end_in_bf16 = 1;

  bool is_on() const { return format != Fp8Format::kNone; }
  // True if sequence-parallel ranks gather inputs and output gradients in FP8: a tensor has one
  // scale, and nothing else reads it in 16 bits.
  bool gathers_in_fp8() const { return is_on() && recipe != Fp8Recipe::kBlockwise && wgrad; }
};

}  // namespace megatron
