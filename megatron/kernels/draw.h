#pragma once

#include <cstdint>
#include <span>

#include "megatron/core/view.h"
#include "megatron/device/device.h"

namespace megatron::kernels {

// How a token is drawn from a row of logits. The filters apply in the order top_k, top_p, min_p.
struct Draw {
  double temperature = 1;  // > 0
  double top_p = 0;        // 0: off
  double min_p = 0;        // 0: off
  double uniform = 0;      // the random number, in [0, 1)
  int32_t top_k = 0;       // 0: off; 1: the most probable token, whatever the rest says
  int32_t vocab_size = 0;  // ids from here on are never drawn; 0: nothing is drawn
};

// Draws a token for each row.
//
//   tokens     [rows]     out  int32; kNoToken if a logit below vocab_size is NaN or none is drawn
//   logits     [rows, v]  in   fp32 | fp16 | bf16
//   draws      [rows]     in   Draw, on the stream's device, as sizeof(Draw) uint8 each
//   workspace             scratch, draw_workspace_bytes(); null if that is 0
//
// The weight of a token is exp((logit - largest logit) / temperature), rounded to a multiple of
// 2^-34, so that sums of weights are exact and do not depend on their order. With top_k > 1 the k
// largest weights compete (and what ties with the k-th); of these with top_p > 0 the largest
// weights, equal ones by index, up to the one whose sum crosses top_p; min_p drops weights below
// it. The draw is the inverse of the cumulative distribution, in the order of indices. Ties of the
// largest logit go to the lowest index.
void draw_tokens(TensorView tokens, ConstView logits, ConstView draws, TensorView workspace,
                 Stream stream);
int64_t draw_workspace_bytes(int64_t rows, int64_t v, Stream stream);

inline constexpr int32_t kNoToken = -1;
inline constexpr int kWeightBits = 34;  // of the largest weight, 1

// The view of an array of draws on the host.
inline ConstView view_of(std::span<const Draw> draws) {
  return {draws.data(), {static_cast<int64_t>(draws.size_bytes())}, DType::kUInt8};
}

namespace cpu {
int32_t drawn_token(std::span<const float> logits, const Draw& draw);
void draw_tokens(TensorView tokens, ConstView logits, ConstView draws, Stream stream);
}  // namespace cpu

namespace cuda {
void draw_tokens(TensorView tokens, ConstView logits, ConstView draws, TensorView workspace,
                 Stream stream);
}  // namespace cuda

}  // namespace megatron::kernels
