#include "megatron/serve/text_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "megatron/core/json.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron::serve {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kMaxTexts = 2048;  // of a request, as OpenAI

// The last progress of each request, with the log-probabilities of all of them.
std::vector<RequestProgress> run_to_end(const ServedModel& model, std::vector<Request> requests) {
  std::vector<RequestProgress> results(requests.size());
  const auto ticket = model.service.submit(std::move(requests));
  const Outcome outcome =
      each_event(model, *ticket, results.size(), [&](const RequestEvent& event) {
        RequestProgress progress = event.progress;
        if (progress.finish == Finish::kFailed) throw ApiError(500, kNotANumber);
        RequestProgress& result = results[event.index];
        progress.prompt_log_probabilities.insert(progress.prompt_log_probabilities.begin(),
                                                 result.prompt_log_probabilities.begin(),
                                                 result.prompt_log_probabilities.end());
        progress.prompt_top.insert(progress.prompt_top.begin(), result.prompt_top.begin(),
                                   result.prompt_top.end());
        result = std::move(progress);
        return true;
      });
  if (outcome == Outcome::kTimeout) throw ApiError(503, "the request took too long");
  return results;
}

Request embedding_of(const ServedModel& model, std::vector<int32_t> text) {
  return {.prompt = std::move(text), .max_new_tokens = 0, .pooling = model.pooling};
}

// Divides a vector by its length; a zero stays.
void normalise(std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  if (sum == 0) return;
  const double scale = 1 / std::sqrt(sum);
  for (float& value : values) value = static_cast<float>(static_cast<double>(value) * scale);
}

std::string base64_of(std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little);
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes(values.size_bytes(), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t word = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    for (size_t i = 0; i < 3; ++i) {
      word = word << 8 | (i < count ? static_cast<uint8_t>(bytes[at + i]) : 0U);
    }
    for (size_t i = 0; i < 4; ++i) {
      text += i <= count ? kDigits[word >> (18 - 6 * i) & 63] : '=';
    }
  }
  return text;
}

int64_t now_in_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

ordered_json usage_of(int64_t prompt_tokens) {
  return {{"prompt_tokens", prompt_tokens}, {"total_tokens", prompt_tokens}};
}

// text_1 and text_2 of each pair; one text_1 may stand for all.
std::vector<std::pair<std::string, std::string>> text_pairs(const json& request) {
  const auto texts = [&](const char* name) {
    const auto place = request.find(name);
    const bool is_given = place != request.end();
    const bool is_list =
        is_given && place->is_array() && !place->empty() &&
        std::all_of(place->begin(), place->end(), [](const json& one) { return one.is_string(); });
    if (is_given && place->is_string()) return std::vector{place->get<std::string>()};
    if (!is_list) {
      throw ApiError(400, fmt::format("{} must be a string or a list of strings", name), name);
    }
    return place->get<std::vector<std::string>>();
  };
  const std::vector<std::string> first = texts("text_1");
  const std::vector<std::string> second = texts("text_2");
  if (first.size() != 1 && first.size() != second.size()) {
    throw ApiError(400,
                   fmt::format("text_1 has {} texts and text_2 has {}; give one text_1, or as many",
                               first.size(), second.size()),
                   "text_1");
  }
  if (std::ssize(second) > kMaxTexts) {
    throw ApiError(
        400, fmt::format("text_2 has {} texts; at most {} are allowed", second.size(), kMaxTexts),
        "text_2");
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t i = 0; i < second.size(); ++i) {
    pairs.emplace_back(first[first.size() == 1 ? 0 : i], second[i]);
  }
  return pairs;
}

// The tokens of a text and its continuation, and the first that is not the text's. Blanks between
// them belong to the continuation, with whose word tokenizers join them.
ScoreRequest::Pair continued(const ServedModel& model, std::string text, std::string more) {
  const size_t end = text.find_last_not_of(" \n\t") + 1;
  more.insert(0, text, end);
  text.resize(end);
  ScoreRequest::Pair pair;
  std::vector<int32_t> before = model.encoded(text);
  pair.second = model.encoded(text + more);
  if (before.empty() && model.empty_prompt()) {
    before = {*model.empty_prompt()};
    pair.second.insert(pair.second.begin(), before.front());
  }
  const auto common = std::ranges::mismatch(before, pair.second).in2 - pair.second.begin();
  pair.begin = std::max<int64_t>(1, common);
  if (pair.begin >= std::ssize(pair.second)) {
    throw ApiError(400, "text_2 has no tokens; give it some text", "text_2");
  }
  return pair;
}

}  // namespace

EmbeddingRequest embedding_request_of(const ServedModel& model, const std::string& body) {
  const json request = object_of(body);
  require_model(model, request);
  if (model.has_encoder()) {
    throw ApiError(400, "the model is a T5, which has no embeddings; use a GPT or a BERT", "model");
  }
  EmbeddingRequest result;
  for (TextIds& text : texts_of_field(model, request, "input", kMaxTexts)) {
    result.inputs.push_back(std::move(text.ids));
  }
  const auto format = request.find("encoding_format");
  if (format != request.end() && !format->is_null()) {
    if (*format != "float" && *format != "base64") {
      throw ApiError(
          400, fmt::format("encoding_format {} must be float or base64", shortened_json(*format)),
          "encoding_format");
    }
    result.is_base64 = *format == "base64";
  }
  const int64_t width = model.service.model().config().hidden_size;
  const auto dimensions = request.find("dimensions");
  if (dimensions != request.end() && !dimensions->is_null()) {
    const bool fits = dimensions->is_number_integer() && *dimensions >= 1 && *dimensions <= width;
    if (!fits) {
      throw ApiError(400,
                     fmt::format("dimensions {} must be an integer between 1 and {}",
                                 shortened_json(*dimensions), width),
                     "dimensions");
    }
    dimensions->get_to(result.dimensions);
  }
  const auto normalises = request.find("normalize");
  if (normalises != request.end() && !normalises->is_null()) {
    if (!normalises->is_boolean())
      throw ApiError(400, "normalize must be true or false", "normalize");
    normalises->get_to(result.is_normalised);
  }
  return result;
}

ordered_json embedding_answer(const ServedModel& model, const EmbeddingRequest& request) {
  std::vector<Request> requests;
  int64_t tokens = 0;
  for (const std::vector<int32_t>& input : request.inputs) {
    requests.push_back(embedding_of(model, input));
    tokens += std::ssize(input);
  }
  ordered_json data = ordered_json::array();
  for (RequestProgress& progress : run_to_end(model, std::move(requests))) {
    std::vector<float>& values = progress.embedding;
    if (request.dimensions > 0) values.resize(static_cast<size_t>(request.dimensions));
    if (request.is_normalised) normalise(values);
    ordered_json one = {{"object", "embedding"}, {"index", data.size()}};
    one["embedding"] = request.is_base64 ? ordered_json(base64_of(values)) : ordered_json(values);
    data.push_back(std::move(one));
  }
  return {{"object", "list"},
          {"data", std::move(data)},
          {"model", model.name},
          {"usage", usage_of(tokens)}};
}

ScoreRequest score_request_of(const ServedModel& model, const std::string& body) {
  const json request = object_of(body);
  require_model(model, request);
  if (model.has_encoder()) {
    throw ApiError(400, "the model is a T5, which has no scores; use a GPT or a BERT", "model");
  }
  ScoreRequest result;
  for (auto& [first, second] : text_pairs(request)) {
    for (const std::string* text : {&first, &second}) require_room(model, *text);
    result.pairs.push_back(model.is_bert() ? ScoreRequest::Pair{.first = model.encoded(first),
                                                                .second = model.encoded(second)}
                                           : continued(model, std::move(first), std::move(second)));
  }
  return result;
}

ordered_json score_answer(const ServedModel& model, const ScoreRequest& request) {
  std::vector<Request> requests;
  int64_t tokens = 0;
  for (const ScoreRequest::Pair& pair : request.pairs) {
    tokens += std::ssize(pair.first) + std::ssize(pair.second);
    if (model.is_bert()) {
      requests.push_back(embedding_of(model, pair.first));
      requests.push_back(embedding_of(model, pair.second));
      continue;
    }
    requests.push_back({.prompt = pair.second,
                        .max_new_tokens = 0,
                        .vocab_size = model.vocab_size,
                        .return_log_probabilities = true,
                        .first_scored = pair.begin,
                        .num_top = 1});
  }
  std::vector<RequestProgress> results = run_to_end(model, std::move(requests));
  ordered_json data = ordered_json::array();
  for (const ScoreRequest::Pair& pair : request.pairs) {
    const size_t index = data.size();
    ordered_json one = {{"index", index}, {"object", "score"}};
    double score = 0;
    if (model.is_bert()) {
      std::vector<float>& a = results[2 * index].embedding;
      std::vector<float>& b = results[2 * index + 1].embedding;
      normalise(a);
      normalise(b);
      for (size_t i = 0; i < a.size(); ++i) {
        score += static_cast<double>(a[i]) * static_cast<double>(b[i]);
      }
      one["score"] = score;
    } else {
      const RequestProgress& result = results[index];
      const auto ids = std::span(pair.second).subspan(static_cast<size_t>(pair.begin));
      bool is_greedy = true;
      ordered_json texts = ordered_json::array();
      for (size_t i = 0; i < ids.size(); ++i) {
        score += result.prompt_log_probabilities[i];
        is_greedy = is_greedy && result.prompt_top[i].token == ids[i];
        texts.push_back(with_valid_utf8(model.tokenizer.token_bytes(ids[i])));
      }
      one["score"] = score;
      one["is_greedy"] = is_greedy;
      one["tokens"] = std::move(texts);
      one["token_logprobs"] = result.prompt_log_probabilities;
    }
    data.push_back(std::move(one));
  }
  return {{"object", "list"},
          {"created", now_in_seconds()},
          {"model", model.name},
          {"data", std::move(data)},
          {"usage", usage_of(tokens)}};
}

}  // namespace megatron::serve
