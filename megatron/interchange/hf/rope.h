#pragma once

#include "megatron/interchange/hf/binding.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The fields of rotary positions in which families differ.
struct HfRope {
  const char* theta = "rope_theta";
  double default_theta = 10000.0;
  const char* part = "partial_rotary_factor";
  double default_part = 1.0;
  // transformers turns the stated part of each head; else it turns whole heads, whatever is stated.
  bool turns_parts = false;
  bool is_interleaved = false;  // pairs (2i, 2i + 1)
};

// Rotary positions, as rope_parameters (transformers 5) or the older fields state them. Compat: as
// in transformers 5.23, nothing of rope_parameters counts beside rope_scaling.
void bind_hf_rope(HfBinding& fields, TransformerConfig& config, const HfRope& rope = {});

// The same with another base in layers with a window (Gemma 3): rope_local_base_freq, or
// rope_parameters of each type of layers.
void bind_hf_local_rope(HfBinding& fields, TransformerConfig& config, const HfRope& rope = {});

}  // namespace megatron
