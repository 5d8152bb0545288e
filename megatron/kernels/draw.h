#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/device/host_device.h"

namespace megatron::kernels {

// Parameters of sampling a token from a row of logits: first the penalties of tokens that occur in
// the text, then the filters in the order top_k, top_p, min_p.
struct Draw {
  double temperature = 1;  // > 0
  double top_p = 0;        // 0: off
  double min_p = 0;        // 0: off
  double uniform = 0;      // the random number, in [0, 1)
  // For every token that occurs in the text: divides a positive logit, multiplies a negative one
  // (Keskar et al. 2019, arXiv:1909.05858). 1: off
  double repetition_penalty = 1;
  double presence_penalty = 0;   // subtracted once from a token that occurs after the prompt
  double frequency_penalty = 0;  // subtracted once per occurrence after the prompt
  int32_t prompt_length = 0;     // tokens of the text's prompt
  int32_t top_k = 0;             // 0: off; 1: greedy, ignoring the other filters
  int32_t vocab_size = 0;        // ids >= vocab_size are never drawn; 0: draws nothing
  int32_t known_size = 0;        // ids below it have probabilities; at least vocab_size
  // Log-probabilities to return, at most kMaxLogProbabilities: 1: of the drawn token, 1 + n: also
  // of the n most probable ones, below known_size.
  int32_t num_probabilities = 0;

  MG_HOST_DEVICE bool has_penalty() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
};
inline constexpr int kMaxLogProbabilities = 21;

struct TokenLogProbability {
  double log_probability = 0;  // log(softmax(logits))[token] of the logits before any penalty
  int32_t token = 0;
};

// The tokens of the texts, in pages as keys are; penalties need them.
struct DrawTexts {
  TensorView ids{};     // [pages, tokens of a page] i/o int32
  ConstView pages{};    // [rows, max pages] int32: the pages of a text, in the order of its tokens
  ConstView lengths{};  // [rows] int32: tokens of the text; 0: no such row
  // [rows] int64: the last tokens, written to their pages before anything is drawn. Null:
  // they are there already.
  ConstView last{};
};

// Draws a token for each row.
//
//   tokens         [rows]     out  int32; kNoToken if a logit below vocab_size is NaN or none is
//                                  drawn
//   probabilities             out  [rows, kMaxLogProbabilities] TokenLogProbability, as uint8: the
//                                  drawn token's, then the most probable ones, equal ones by index.
//                                  Rows without a token, and other entries, are not written.
//                                  Null if no row requests any.
//   logits         [rows, v]  in   fp32 | fp16 | bf16
//   draws          [rows]     in   Draw, on the stream's device, as sizeof(Draw) uint8 each
//   texts                     i/o  null if no row has a penalty
//   workspace                 scratch, draw_workspace_bytes(); null if that is 0
//
// The weight of a token is exp((logit - largest logit) / temperature), rounded to a multiple of
// 2^-34, so that sums of weights are exact and do not depend on their order. With top_k > 1 the k
// largest weights compete (and what ties with the k-th); of these with top_p > 0 the largest
// weights, equal ones by index, up to the one whose sum crosses top_p; min_p drops weights below
// it. The draw is the inverse of the cumulative distribution, in the order of indices. Ties of the
// largest logit go to the lowest index.
void draw_tokens(TensorView tokens, TensorView probabilities, ConstView logits, ConstView draws,
                 const DrawTexts& texts, TensorView workspace, Stream stream);
int64_t draw_workspace_bytes(int64_t rows, int64_t v, Stream stream);

// Puts tokens of texts into pages.
//   ids    [pages, tokens of a page]  i/o  int32
//   tokens [t]                        in   int32
//   slots  [t]                        in   int32: page * tokens of a page + place in the page
void put_ids(TensorView ids, ConstView tokens, ConstView slots, Stream stream);

inline constexpr int32_t kNoToken = -1;
inline constexpr int kWeightBits = 34;  // of the largest weight, 1

// The view of an array of draws on the host.
inline ConstView view_of(std::span<const Draw> draws) {
  return {draws.data(), {static_cast<int64_t>(draws.size_bytes())}, DType::kUInt8};
}

namespace cpu {
int32_t drawn_token(std::span<const float> logits, const Draw& draw);
// Applies the penalties of a draw; `tokens` is the text.
void apply_penalties(std::span<float> logits, const Draw& draw, std::span<const int32_t> tokens);
// Finds the log-probability of a token and those of the most probable ones; kNoToken where there
// are no more.
void find_probabilities(std::span<TokenLogProbability> found, std::span<const float> logits,
                        int32_t token);
// The `count` indices of the largest logits, largest first, equal ones by index.
std::vector<int64_t> largest_logits(std::span<const float> logits, int64_t count);
// log(sum(exp(logits))), the difference between a logit and its log-probability, in fp64.
double log_sum_exp(std::span<const float> logits);

void draw_tokens(TensorView tokens, TensorView probabilities, ConstView logits, ConstView draws,
                 const DrawTexts& texts, Stream stream);
decltype(kernels::put_ids) put_ids;
}  // namespace cpu

namespace cuda {
decltype(kernels::draw_tokens) draw_tokens;
decltype(kernels::put_ids) put_ids;
}  // namespace cuda

}  // namespace megatron::kernels
