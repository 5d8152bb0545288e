#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/inference/token_guide.h"
#include "megatron/serve/chat_template.h"
#include "megatron/serve/service.h"
#include "megatron/serve/tool_calls.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::serve {

// The model behind the server's interfaces.
struct ServedModel {
  Service& service;
  const Tokenizer& tokenizer;
  std::string name;
  int64_t vocab_size = 0;  // ids with a meaning; larger ones are padding
  int64_t max_positions = 0;
  ChatTemplate chat_template;
  std::chrono::milliseconds request_time{0};  // time-out for all tokens of a request; 0: none
  int64_t max_tokens_to_oom = 12000;          // /api: of a request, padded
  bool strict_http_status = false;            // /api: status 400 for all invalid requests
  bool pads_beams = false;                    // /api: ends the texts of beams as Megatron-LM does
  uint64_t seed = 1234;                       // combined with a counter for requests without a seed
  std::atomic<uint64_t> num_unseeded = 0;
  std::vector<int32_t> end_tokens = {};  // ids that each end a text
  // The decoder's start token of a T5, whose encoder reads the prompts.
  std::optional<int32_t> decoder_start = {};

  Pooling pooling = Pooling::kLast;  // of embeddings
  // Format of tool calls in responses; empty: that of the chat template.
  std::optional<ToolCallFormat> tool_calls = {};

  bool has_encoder() const { return decoder_start.has_value(); }
  // A BERT, which has embeddings only.
  bool is_bert() const { return service.model().bert != nullptr; }
  // The token that separated documents in training.
  std::optional<int32_t> eod() const { return tokenizer.special_id(SpecialToken::kEod); }
  // Replacement of an empty prompt: the beginning-of-document token, or, for the encoder of a T5,
  // the end-of-text token. Nothing if unknown.
  std::optional<int32_t> empty_prompt() const {
    const auto end = end_tokens.empty() ? std::nullopt : std::optional(end_tokens.front());
    return has_encoder() || !eod() ? end : eod();
  }
  // The tokens of a text; of a BERT between [CLS] and [SEP], whatever the tokenizer adds.
  std::vector<int32_t> encoded(const std::string& text) const;
  // False for a text that cannot fit into the positions even if every token were the longest of the
  // vocabulary, and need not be tokenized.
  bool may_hold(const std::string& text) const {
    constexpr int64_t kMostBytes = 1024;
    return has_encoder() || static_cast<int64_t>(text.size()) / kMostBytes <= max_positions;
  }
  uint64_t next_seed();
  // The texts of the tokens, for responses of a given form; made at the first call.
  std::shared_ptr<const TokenTexts> token_texts();

  // Sampling of requests that say nothing: of the model's generation_config.json, as in vLLM.
  SamplingOptions sampling = {};
  std::shared_ptr<const TokenTexts> texts = {};
  std::mutex texts_mutex = {};
};

// The sampling settings of a model folder's generation_config.json: temperature, top_k, top_p,
// min_p and repetition_penalty; all others, and a folder without the file, leave the defaults.
// Throws FormatError for a value that no request may have.
SamplingOptions sampling_of_folder(const std::filesystem::path& folder);

// The reason why a request got no (further) response.
enum class Outcome { kDone, kGone, kTimeout };

// Calls `take` for every event of a ticket until `num_left` requests are finished, the client has
// disconnected, or the time is over. `take` returns false to stop early. Throws Unavailable.
Outcome each_event(const ServedModel& model, Ticket& ticket, size_t num_left,
                   const std::function<bool(const RequestEvent&)>& take);

}  // namespace megatron::serve
