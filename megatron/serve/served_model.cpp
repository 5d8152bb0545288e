#include "megatron/serve/served_model.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/device/philox.h"
#include "megatron/formats/json_file.h"
#include "megatron/http/http_server.h"

namespace megatron::serve {

uint64_t ServedModel::next_seed() { return mixed_key(seed, num_unseeded++); }

std::vector<int32_t> ServedModel::encoded(const std::string& text) const {
  std::vector<int32_t> ids = tokenizer.encode(text);
  const auto cls = tokenizer.special_id(SpecialToken::kCls);
  const auto sep = tokenizer.special_id(SpecialToken::kSep);
  if (!is_bert() || !cls || !sep || (!ids.empty() && ids.front() == *cls)) return ids;
  ids.insert(ids.begin(), *cls);
  ids.push_back(*sep);
  return ids;
}

std::shared_ptr<const TokenTexts> ServedModel::token_texts() {
  const std::lock_guard lock(texts_mutex);
  if (texts == nullptr) texts = std::make_shared<const TokenTexts>(tokenizer, vocab_size);
  return texts;
}

SamplingOptions sampling_of_folder(const std::filesystem::path& folder) {
  SamplingOptions sampling;
  const std::filesystem::path file = folder / "generation_config.json";
  if (!std::filesystem::exists(file)) return sampling;
  const nlohmann::json config = read_json(file);
  if (!config.is_object()) return sampling;
  const auto take = [&](const char* name, auto& field, double least, double most) {
    const auto value = config.find(name);
    if (value == config.end() || value->is_null()) return;
    const bool fits = value->is_number() && *value >= least && *value <= most;
    if (!fits) {
      throw FormatError(fmt::format("{}: {} {} must be a number between {} and {}; correct it",
                                    file.string(), name, shortened_json(*value), least, most));
    }
    value->get_to(field);
  };
  take("temperature", sampling.temperature, 0, 100);
  take("top_k", sampling.top_k, -1, std::numeric_limits<int32_t>::max());
  take("top_p", sampling.top_p, 0, 1);
  take("min_p", sampling.min_p, 0, 1);
  take("repetition_penalty", sampling.repetition_penalty, 1e-6, 1e6);
  return sampling;
}

Outcome each_event(const ServedModel& model, Ticket& ticket, size_t num_left,
                   const std::function<bool(const RequestEvent&)>& take) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLook(200);  // how often to look for the client
  const auto deadline = Clock::now() + model.request_time;
  while (num_left > 0) {
    if (HttpServer::client_is_gone()) return Outcome::kGone;
    if (model.request_time.count() > 0 && Clock::now() >= deadline) return Outcome::kTimeout;
    const std::optional<RequestEvent> event = ticket.wait(kLook);
    if (!event) continue;
    if (event->progress.finish != Finish::kNone) --num_left;
    if (!take(*event)) return Outcome::kDone;
  }
  return Outcome::kDone;
}

}  // namespace megatron::serve
