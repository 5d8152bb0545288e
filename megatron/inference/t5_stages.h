#pragma once

#include "megatron/inference/model_step.h"

// Pipeline stages of a T5. The encoder's stages read a text once, and its output is sent to all
// stages of the decoder; decoder tokens pass through the decoder's stages only. Every rank of the
// model calls each function.
namespace megatron {

// The output of the encoder for input.tokens [b, se]: [se, b, h] on the stages of the
// decoder, undefined on the others.
Variable run_encoder(const InferenceModel& model, const ModelInput& input);

// Runs input.decoder_tokens [b, s] through this rank's stage of the decoder: [s, b, h], the
// decoder's output on the last stage only. Undefined on the stages of the encoder.
Variable run_decoder(const InferenceModel& model, const ModelInput& input, const Variable& encoded);

// The same for tokens [1, t] of several texts, as T5Model::decode_cached() takes them.
Variable run_cached_decoder(const InferenceModel& model, const RowIds& tokens,
                            const RowIds& position_ids, const Tensor& distance_bias,
                            CachedBatch& cached);

}  // namespace megatron
