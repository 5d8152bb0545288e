#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "megatron/serve/openai_request.h"

// Values of whole texts, without drawn tokens: embeddings and scores.
namespace megatron::serve {

// A request of /v1/embeddings.
struct EmbeddingRequest {
  std::vector<std::vector<int32_t>> inputs;
  int64_t dimensions = 0;     // the first so many; 0: all
  bool is_base64 = false;     // little-endian fp32 in base64 in place of numbers
  bool is_normalised = true;  // to length 1, after the cut
};
// Throws ApiError, which names the field.
EmbeddingRequest embedding_request_of(const ServedModel& model, const std::string& body);
// OpenAI's response. Throws ApiError, and as Service::submit().
nlohmann::ordered_json embedding_answer(const ServedModel& model, const EmbeddingRequest& request);

// A request of /v1/score: pairs of text_1 and text_2, as in vLLM.
struct ScoreRequest {
  struct Pair {
    std::vector<int32_t> first = {};   // of a BERT
    std::vector<int32_t> second = {};  // of a BERT; of a GPT both texts
    int64_t begin = 0;                 // of a GPT: the first token of text_2
  };
  std::vector<Pair> pairs;
};
ScoreRequest score_request_of(const ServedModel& model, const std::string& body);
// The score of a pair is, for a GPT, log p(text_2 | text_1), with the log-probability of each token
// of text_2 and whether greedy draws give text_2; for a BERT, the cosine of the embeddings.
nlohmann::ordered_json score_answer(const ServedModel& model, const ScoreRequest& request);

}  // namespace megatron::serve
