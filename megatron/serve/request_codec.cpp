#include "megatron/serve/request_codec.h"

#include <nlohmann/json.hpp>

namespace megatron::serve {

using nlohmann::json;

json encoded(const Request& request) {
  const SamplingOptions& sampling = request.sampling;
  json value = {{"text", request.text},
                {"prompt", request.prompt},
                {"max_new_tokens", request.max_new_tokens},
                {"temperature", sampling.temperature},
                {"top_k", sampling.top_k},
                {"top_p", sampling.top_p},
                {"top_p_decay", sampling.top_p_decay},
                {"top_p_bound", sampling.top_p_bound},
                {"min_p", sampling.min_p},
                {"repetition_penalty", sampling.repetition_penalty},
                {"presence_penalty", sampling.presence_penalty},
                {"frequency_penalty", sampling.frequency_penalty},
                {"logit_bias", sampling.logit_bias},
                {"seed", request.seed},
                {"row", request.row},
                {"vocab_size", request.vocab_size},
                {"is_constrained", request.is_constrained},
                {"stop_tokens", request.stop_tokens},
                {"stop_sequences", request.stop_sequences},
                {"min_new_tokens", request.min_new_tokens},
                {"return_log_probabilities", request.return_log_probabilities},
                {"scores_prompt", request.scores_prompt},
                {"first_scored", request.first_scored},
                {"num_top", request.num_top}};
  if (request.pooling) value["pooling"] = *request.pooling;
  if (request.never_after) value["never_after"] = *request.never_after;
  if (request.beams) {
    value["beam_width"] = request.beams->width;
    value["length_penalty"] = request.beams->length_penalty;
  }
  return value;
}

Request decoded(const json& value) {
  Request request;
  const auto take = [&](const char* key, auto& field) { value.at(key).get_to(field); };
  SamplingOptions& sampling = request.sampling;
  take("text", request.text);
  take("prompt", request.prompt);
  take("max_new_tokens", request.max_new_tokens);
  take("temperature", sampling.temperature);
  take("top_k", sampling.top_k);
  take("top_p", sampling.top_p);
  take("top_p_decay", sampling.top_p_decay);
  take("top_p_bound", sampling.top_p_bound);
  take("min_p", sampling.min_p);
  take("repetition_penalty", sampling.repetition_penalty);
  take("presence_penalty", sampling.presence_penalty);
  take("frequency_penalty", sampling.frequency_penalty);
  take("logit_bias", sampling.logit_bias);
  take("seed", request.seed);
  take("row", request.row);
  take("vocab_size", request.vocab_size);
  take("is_constrained", request.is_constrained);
  take("stop_tokens", request.stop_tokens);
  take("stop_sequences", request.stop_sequences);
  take("min_new_tokens", request.min_new_tokens);
  take("return_log_probabilities", request.return_log_probabilities);
  take("scores_prompt", request.scores_prompt);
  take("first_scored", request.first_scored);
  take("num_top", request.num_top);
  if (value.contains("pooling")) request.pooling = value.at("pooling").get<Pooling>();
  if (value.contains("never_after")) {
    request.never_after = value.at("never_after").get<std::pair<int32_t, int32_t>>();
  }
  if (value.contains("beam_width")) {
    request.beams = BeamOptions{value.at("beam_width"), value.at("length_penalty")};
  }
  return request;
}

}  // namespace megatron::serve
