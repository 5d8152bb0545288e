#include "megatron/inference/t5_stages.h"

#include "megatron/inference/stages.h"

namespace megatron {
namespace {

// Receives decoder states [s, b, h], applies decode(states) and sends the result.
template <class F>
Variable through_decoder(const InferenceModel& model, const Shape& ids, const F& decode) {
  const T5Chunk& chunk = model.t5->chunk();
  if (!chunk.has_decoder()) return {};
  Variable states;
  if (!chunk.embeds_decoder) {
    states = received_from_previous(model.parallel, {ids[1], ids[0], model.config().hidden_size},
                                    residual_dtype(model.config()), model.stream());
  }
  Variable y = decode(states);
  send_to_next(model.parallel, y);
  return y;
}

}  // namespace

Variable run_encoder(const InferenceModel& model, const ModelInput& input) {
  const TransformerConfig& config = model.config();
  const T5Chunk& chunk = model.t5->chunk();
  const Shape& ids = input.tokens.ids.shape();
  RandomState random(0);
  random.set_training(false);
  Variable x;
  if (!chunk.embeds_encoder) {
    x = received_from_previous(model.parallel, {ids[1], ids[0], config.hidden_size},
                               chunk.has_encoder() ? residual_dtype(config) : config.params_dtype,
                               model.stream());
  }
  if (chunk.has_encoder()) x = model.t5->encode(input, x, random);
  send_to_next(model.parallel, x);
  return chunk.has_decoder() ? x : Variable();
}

Variable run_decoder(const InferenceModel& model, const ModelInput& input,
                     const Variable& encoded) {
  RandomState random(0);
  random.set_training(false);
  return through_decoder(model, input.decoder_tokens.ids.shape(), [&](const Variable& states) {
    return model.t5->decode(input, encoded, states, random);
  });
}

Variable run_cached_decoder(const InferenceModel& model, const RowIds& tokens,
                            const RowIds& position_ids, const Tensor& distance_bias,
                            CachedBatch& cached) {
  return through_decoder(model, tokens.ids.shape(), [&](const Variable& states) {
    return model.t5->decode_cached(tokens, position_ids, states, distance_bias, cached);
  });
}

}  // namespace megatron
