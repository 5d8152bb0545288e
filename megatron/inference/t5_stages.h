#pragma once

#include "megatron/inference/model_step.h"

// How the stages of a T5 pass texts on. The stages of the encoder read a text once, and all stages
// of the decoder get what it makes of it; the tokens of the decoder go through its stages alone.
// Every rank of the model calls each function.
namespace megatron {

// The output of the encoder for input.tokens [b, se]: [se, b, h] on the stages of the
// decoder, undefined on the others.
Variable run_encoder(const InferenceModel& model, const ModelInput& input);

// Runs input.decoder_tokens [b, s] through this rank's stage of the decoder: [s, b, h], which is
// the whole decoder's on the last stage alone. Undefined on the stages of the encoder.
Variable run_decoder(const InferenceModel& model, const ModelInput& input, const Variable& encoded);

// The same for tokens [1, t] of several texts, as T5Model::decode_cached() takes them.
Variable run_cached_decoder(const InferenceModel& model, const RowIds& tokens,
                            const RowIds& position_ids, const Tensor& distance_bias,
                            CachedBatch& cached);

}  // namespace megatron
