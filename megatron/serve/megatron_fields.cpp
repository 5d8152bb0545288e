#include "megatron/serve/megatron_fields.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace megatron::serve {
namespace {

using nlohmann::json;

constexpr size_t kMaxPrompts = 128;

void require(bool holds, const char* text) {
  if (!holds) throw Refusal(text);
}

// Python's isinstance(value, int): true and false are integers.
bool is_int(const json& value) { return value.is_number_integer() || value.is_boolean(); }

int64_t int_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  // Saturates larger numbers.
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::numeric_limits<int64_t>::max();
  }
  return value.get<int64_t>();
}

std::vector<std::string> checked_prompts(const json& request) {
  const auto early = [](bool holds, const char* text) {
    if (!holds) throw Refusal(text, false);
  };
  early(request.is_object() && request.contains("prompts"), "prompts argument required");
  early(!request.contains("max_len"),
        "max_len is no longer used.  Replace with tokens_to_generate");
  early(!request.contains("sentences"), "sentences is no longer used.  Replace with prompts");
  const json& prompts = request.at("prompts");
  early(prompts.is_array(), "prompts is not a list of strings");
  early(!prompts.empty(), "prompts is empty");
  early(prompts.size() <= kMaxPrompts, "Maximum number of prompts is 128");
  std::vector<std::string> texts;
  for (const json& prompt : prompts) {
    early(prompt.is_string(), "prompts is not a list of strings");
    texts.push_back(prompt.get<std::string>());
  }
  return texts;
}

// Calls f with the value of a field, if present.
template <class F>
void when_given(const json& request, const char* name, const F& f) {
  const auto place = request.find(name);
  if (place != request.end()) f(*place);
}

void take_bool(const json& request, const char* name, bool& field, const char* text) {
  when_given(request, name, [&](const json& value) {
    require(value.is_boolean(), text);
    field = value.get<bool>();
  });
}

void take_length(const json& request, Fields& fields) {
  when_given(request, "tokens_to_generate", [&](const json& value) {
    require(is_int(value), "tokens_to_generate must be an integer greater than 0");
    fields.tokens_to_generate = int_of(value);
    require(fields.tokens_to_generate >= 0,
            "tokens_to_generate must be an integer greater than or equal to 0");
  });
  take_bool(request, "logprobs", fields.logprobs, "logprobs must be a boolean value");
  require(fields.tokens_to_generate > 0 || fields.logprobs,
          "tokens_to_generate=0 implies logprobs should be True");
}

void take_temperature(const json& request, Fields& fields) {
  when_given(request, "temperature", [&](const json& value) {
    constexpr const char* kText =
        "temperature must be a positive number less than or equal to 100.0";
    require(value.is_number(), kText);
    fields.temperature = value.get<double>();
    require(fields.temperature > 0.0 && fields.temperature <= 100.0, kText);
  });
}

void take_top_k(const json& request, Fields& fields) {
  when_given(request, "top_k", [&](const json& value) {
    require(value.is_number_integer(),
            "top_k must be an integer equal to or greater than 0 and less than or equal to 1000");
    fields.top_k = int_of(value);
    require(fields.top_k >= 0 && fields.top_k <= 1000,
            "top_k must be equal to or greater than 0 and less than or equal to 1000");
  });
}

// These accept only numbers written with a point or an exponent.
void take_top_p(const json& request, Fields& fields) {
  when_given(request, "top_p", [&](const json& value) {
    require(value.is_number_float(), "top_p must be a positive float less than or equal to 1.0");
    fields.top_p = value.get<double>();
    require(!(fields.top_p > 0.0 && fields.top_k > 0),
            "cannot set both top-k and top-p samplings.");
    require(fields.top_p >= 0.0 && fields.top_p <= 1.0, "top_p must be less than or equal to 1.0");
  });
  when_given(request, "top_p_decay", [&](const json& value) {
    require(value.is_number_float(),
            "top_p_decay must be a positive float less than or equal to 1.0");
    fields.top_p_decay = value.get<double>();
    require(fields.top_p != 0.0, "top_p_decay cannot be set without top_p");
    require(fields.top_p_decay >= 0.0 && fields.top_p_decay <= 1.0,
            "top_p_decay must be less than or equal to 1.0");
  });
  when_given(request, "top_p_bound", [&](const json& value) {
    require(value.is_number_float(),
            "top_p_bound must be a positive float less than or equal to top_p");
    fields.top_p_bound = value.get<double>();
    require(fields.top_p != 0.0, "top_p_bound cannot be set without top_p");
    require(fields.top_p_bound > 0.0 && fields.top_p_bound <= fields.top_p,
            "top_p_bound must be greater than 0 and less than top_p");
  });
}

void take_beams(const json& request, Fields& fields) {
  when_given(request, "beam_width", [&](const json& value) {
    require(is_int(value), "beam_width must be integer");
    fields.beam_width = int_of(value);
    require(*fields.beam_width >= 1, "beam_width must be an integer > 1");
    require(fields.prompts.size() == 1, "When doing beam_search, batch size must be 1");
  });
  when_given(request, "stop_token", [&](const json& value) {
    require(is_int(value), "stop_token must be an integer");
    const int64_t id = int_of(value);
    // Not an id of any vocabulary: nothing stops the search.
    const bool is_id = id >= 0 && id <= std::numeric_limits<int32_t>::max();
    fields.stop_token = is_id ? static_cast<int32_t>(id) : -1;
  });
  when_given(request, "length_penalty", [&](const json& value) {
    require(value.is_number_float(), "length_penalty must be a float");
    fields.length_penalty = value.get<double>();
  });
}

}  // namespace

Fields checked_fields(const json& request) {
  Fields fields;
  fields.prompts = checked_prompts(request);
  take_length(request, fields);
  take_temperature(request, fields);
  take_top_k(request, fields);
  take_top_p(request, fields);
  take_bool(request, "add_BOS", fields.add_bos, "add_BOS must be a boolean value");
  for (const std::string& prompt : fields.prompts) {
    require(!prompt.empty() || fields.add_bos, "Empty prompts require add_BOS=true");
  }
  take_bool(request, "stop_on_double_eol", fields.stop_on_double_eol,
            "stop_on_double_eol must be a boolean value");
  take_bool(request, "stop_on_eol", fields.stop_on_eol, "stop_on_eol must be a boolean value");
  take_bool(request, "prevent_newline_after_colon", fields.prevent_newline_after_colon,
            "prevent_newline_after_colon must be a boolean value");
  when_given(request, "random_seed", [&](const json& value) {
    require(is_int(value), "random_seed must be integer");
    fields.random_seed = int_of(value);
    require(*fields.random_seed >= 0, "random_seed must be a positive integer");
  });
  take_bool(request, "no_log", fields.no_log, "no_log must be a boolean value");
  take_beams(request, fields);
  return fields;
}

}  // namespace megatron::serve
