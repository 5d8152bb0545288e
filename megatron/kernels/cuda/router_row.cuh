#pragma once

#include "megatron/core/error.h"
#include "megatron/kernels/cuda/expert_choice.cuh"
#include "megatron/kernels/cuda/launch.cuh"

// Routers: a warp handles a token.
namespace megatron::kernels::cuda {

inline constexpr int kWarpsOfBlock = kThreads / kWarp;
inline constexpr int64_t kMaxExperts = 1024;
inline constexpr int64_t kMaxChoices = kWarp;

// Calls f(token, lane) by the warps of the grid for each token.
template <class F>
__device__ __forceinline__ void for_warp_tokens(int64_t tokens, const F& f) {
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarpsOfBlock + threadIdx.x / kWarp;
  for (int64_t t = warp; t < tokens; t += static_cast<int64_t>(gridDim.x) * kWarpsOfBlock) {
    f(t, lane_of_thread());
  }
}

// Calls f.template operator()<kLane>() with the values of a lane that E experts need.
template <class F>
void with_lane_values(int64_t experts, const F& f) {
  if (experts > kMaxExperts) {
    throw Unsupported("a router on a GPU chooses from at most 1024 experts");
  }
  if (experts <= 32) {
    f.template operator()<1>();
  } else if (experts <= 64) {
    f.template operator()<2>();
  } else if (experts <= 128) {
    f.template operator()<4>();
  } else if (experts <= 256) {
    f.template operator()<8>();
  } else {
    f.template operator()<32>();
  }
}

// Calls f.template operator()<kLane, T>() with the type T of logits, too.
template <class F>
void with_logits(const ConstView& logits, const F& f) {
  with_lane_values(logits.size(1), [&]<int kLane>() {
    if (logits.dtype == DType::kFloat64) {
      f.template operator()<kLane, double>();
    } else {
      f.template operator()<kLane, float>();
    }
  });
}

inline void expect_few_choices(int64_t k) {
  if (k > kMaxChoices)
    throw Unsupported("a router on a GPU chooses at most 32 experts for a token");
}

inline unsigned token_blocks(int64_t tokens) { return blocks_for(tokens, kWarpsOfBlock); }
inline int count_of(int64_t n) { return static_cast<int>(n); }

}  // namespace megatron::kernels::cuda
