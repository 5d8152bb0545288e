#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/serve/service.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::serve {

// What the interfaces of the server answer with.
struct ServedModel {
  Service& service;
  const Tokenizer& tokenizer;
  std::string name;
  int64_t vocab_size = 0;  // ids that mean something
  int64_t max_positions = 0;
  std::string chat_template;                  // a name of chat_template.h
  std::chrono::milliseconds request_time{0};  // for all tokens of a request; 0: any
  int64_t max_tokens_to_oom = 12000;          // /api: of a request, padded
  bool strict_http_status = false;            // /api: 400 for every refusal
  bool pads_beams = false;                    // /api: texts of beams end as Megatron-LM's
  uint64_t seed = 1234;                       // of requests without one, with their ordinal
  std::atomic<uint64_t> num_unseeded = 0;
  std::vector<int32_t> end_tokens = {};  // each of them ends a text
  // Of a T5, whose encoder reads the prompts: the token with which its decoder begins.
  std::optional<int32_t> decoder_start = {};

  bool has_encoder() const { return decoder_start.has_value(); }
  // The token between two documents of the training.
  std::optional<int32_t> eod() const { return tokenizer.special_id(SpecialToken::kEod); }
  // What stands for a prompt without tokens: the beginning of a document, or, as the encoder of a
  // T5 reads it, the end of a text. Nothing if it is not known.
  std::optional<int32_t> empty_prompt() const {
    const auto end = end_tokens.empty() ? std::nullopt : std::optional(end_tokens.front());
    return has_encoder() || !eod() ? end : eod();
  }
  // False for a text that is longer than all positions can hold, which is not worth tokenizing: no
  // token of any vocabulary stands for so many bytes.
  bool may_hold(const std::string& text) const {
    constexpr int64_t kMostBytes = 1024;
    return has_encoder() || static_cast<int64_t>(text.size()) / kMostBytes <= max_positions;
  }
  uint64_t next_seed();
};

// Why a request got no (further) answer.
enum class Outcome { kDone, kGone, kTimeout };

// Calls `take` for every event of a ticket until `num_left` requests are finished, its client is
// gone, or the time is over. `take` returns false for an event after which nothing is of interest.
// Throws Unavailable.
Outcome each_event(const ServedModel& model, Ticket& ticket, size_t num_left,
                   const std::function<bool(const RequestEvent&)>& take);

}  // namespace megatron::serve
