#pragma once

#include <cstdint>

#include "megatron/inference/model_step.h"
#include "megatron/kernels/decode_text.h"

namespace megatron {

// A decode step of one text as one kernel (kernels/decode_text.h), for a model on one rank.
class TextStep {
 public:
  // True if the kernel supports the model: on a GPU of compute capability 9.0, GPTs in 16 bits with
  // learned, rotary or no positions, layers as kernels::decode_text computes them, all of them
  // dense or all with experts, and weights that are not quantized to 8 bits.
  static bool takes(const InferenceModel& model, const KvCache& cache);

  // REQUIRES: takes(model, cache). Both outlive it.
  TextStep(const InferenceModel& model, KvCache& cache);

  // The logits [1, 1, v] of the text's last token.
  //   ids, positions [1, 1] int64; pages [1, max pages], length [1] int32   on the device
  //   max_length  length is not larger
  Tensor logits(const Tensor& ids, const Tensor& positions, const Tensor& pages,
                const Tensor& length, int64_t max_length);

 private:
  InferenceModel model_;
  kernels::DecodeText text_;
  Tensor layers_;  // kernels::DecodeTextLayer of each layer
  Tensor workspace_;
};

}  // namespace megatron
