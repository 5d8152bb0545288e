#pragma once

#include "megatron/kernels/rotary.h"

namespace megatron::kernels {

// The norms of a layer's queries and keys, each over a head's d channels.
struct HeadNorms {
  ConstView q_weight, q_bias;  // [d]; the bias is null: RMSNorm
  ConstView k_weight, k_bias;
  float weight_offset = 0;  // 1 if the weight is stored minus 1
  float epsilon = 1e-5f;
};

// The rotation of a token's heads (rotary_inplace()).
struct HeadRotation {
  ConstView table{};         // null: none
  ConstView position_ids{};  // [b, s] int64; null: token i has position `offset` + i
  int64_t offset = 0;
  RotaryPairs pairs = RotaryPairs::kHalves;
};

// Normalizes every query and key of a fused projection and rotates it, in place, in one pass;
// values stay. The results are those of norm.h and then rotary_inplace(), with the same roundings.
//
//   qkv  [s, b, (heads + 2 groups) d]  in and out  fp32 | fp16 | bf16; parameters have its dtype
//
// REQUIRES: has_head_norms().
void norm_heads_inplace(TensorView qkv, int64_t heads, int64_t groups, const HeadNorms& norms,
                        const HeadRotation& rotation, Stream stream);
// True if parameters have the dtype of qkv, on a CPU; on a GPU if also d is a power of two from 8
// to 256, everything is aligned, and a lane's eight channels have all their pairs on one other
// lane.
bool has_head_norms(ConstView qkv, int64_t heads, int64_t groups, const HeadNorms& norms,
                    const HeadRotation& rotation, Stream stream);

namespace cpu {
decltype(kernels::norm_heads_inplace) norm_heads_inplace;
}  // namespace cpu

namespace cuda {
decltype(kernels::norm_heads_inplace) norm_heads_inplace;
decltype(kernels::has_head_norms) has_head_norms;
}  // namespace cuda

}  // namespace megatron::kernels
