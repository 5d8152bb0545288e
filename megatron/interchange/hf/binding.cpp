#include "megatron/interchange/hf/binding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "megatron/core/json.h"
#include "megatron/settings/edit_distance.h"

namespace megatron {

using nlohmann::json;

namespace {

constexpr HfActivation kActivations[] = {
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_fast", Activation::kGeluTanh},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu", Activation::kGeluErf},
    {"gelu", Activation::kGeluOnnx},
    {"relu", Activation::kRelu},
    {"relu2", Activation::kSquaredRelu},
};
constexpr HfActivation kSilu[] = {{"silu", Activation::kSwiglu}, {"swish", Activation::kSwiglu}};
constexpr HfActivation kGatedGelu[] = {{"gelu_pytorch_tanh", Activation::kGegluTanhFirst},
                                       {"gelu_new", Activation::kGegluTanhFirst}};

// Fields of every model: how it is trained or generates, and what transformers keeps for itself.
constexpr const char* kCommonFields[] = {
    "architectures",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cls_token_id",
    "cross_attention_hidden_size",
    "custom_pipelines",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
};

}  // namespace

const std::span<const HfActivation> kHfActivations = kActivations;
const std::span<const HfActivation> kHfSilu = kSilu;
const std::span<const HfActivation> kHfGatedGelu = kGatedGelu;

void HfBinding::also_named(std::string name, std::string older) {
  known_.insert(older);
  older_.emplace(std::move(name), std::move(older));
}

const json* HfBinding::find(const char* name) {
  known_.insert(name);
  if (!reads()) return nullptr;
  if (has(name)) return &(*from_)[name];
  const auto older = older_.find(name);
  return older != older_.end() && has(older->second.c_str()) ? &(*from_)[older->second] : nullptr;
}

const json* HfBinding::find_required(const char* name) {
  const json* value = find(name);
  if (value == nullptr && reads()) {
    report_.malformed.push_back(
        fmt::format("{}: has no {}; is this the config.json of the model?", file_->string(), name));
  }
  return value;
}

bool HfBinding::is_there(const char* name) const { return reads() && from_->contains(name); }

bool HfBinding::has(const char* name) const { return is_there(name) && !(*from_)[name].is_null(); }

bool HfBinding::is_empty() const { return from_->empty(); }

void HfBinding::wrong(const char* name, const char* expected) {
  report_.malformed.push_back(fmt::format("{}: {} is {}, expected {}", file_->string(), name,
                                          shortened_json(*find(name)), expected));
}

void HfBinding::unsupported(const char* name, std::string_view why) {
  const json* value = find(name);
  report_.unsupported.push_back(fmt::format("{}: {} is {}: {}", file_->string(), name,
                                            value != nullptr ? shortened_json(*value) : "absent",
                                            why));
}

void HfBinding::write(const char* name, const json& value) { (*to_)[name] = value; }

void HfBinding::write_texts(const char* name, const std::vector<std::string>& texts) {
  write(name, texts);
}

void HfBinding::write_sizes(const char* name, const std::vector<int>& sizes) { write(name, sizes); }

int64_t HfBinding::size_of(const char* name, int64_t otherwise) {
  const json* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_number_integer() || *value < 1 || *value > kMaxHfSize) {
    wrong(name, "a size");
    return otherwise;
  }
  return value->get<int64_t>();
}

double HfBinding::number_of(const char* name, double otherwise) {
  const json* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    wrong(name, "a number");
    return otherwise;
  }
  return value->get<double>();
}

double HfBinding::positive_of(const char* name, double otherwise) {
  const double value = number_of(name, otherwise);
  if (value > 0.0) return value;
  wrong(name, "a number above 0");
  return otherwise;
}

bool HfBinding::flag_of(const char* name, bool otherwise) {
  const json* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    wrong(name, "true or false");
    return otherwise;
  }
  return value->get<bool>();
}

double HfBinding::required_number(const char* name) {
  find_required(name);
  return number_of(name, 1.0);
}

std::string HfBinding::text_of(const char* name, const char* otherwise) {
  const json* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) {
    wrong(name, "a text");
    return otherwise;
  }
  return value->get<std::string>();
}

std::vector<std::string> HfBinding::texts(const char* name) {
  const json* value = find(name);
  if (value == nullptr) return {};
  const bool is_list = value->is_array() && std::ranges::all_of(*value, [](const json& item) {
                         return item.is_string();
                       });
  if (is_list) return value->get<std::vector<std::string>>();
  wrong(name, "a list of texts");
  return {};
}

std::vector<double> HfBinding::numbers(const char* name) {
  const json* value = find(name);
  if (value == nullptr) return {};
  const bool is_list = value->is_array() && std::ranges::all_of(*value, [](const json& item) {
                         return item.is_number();
                       });
  if (is_list) return value->get<std::vector<double>>();
  wrong(name, "a list of numbers");
  return {};
}

std::vector<int64_t> HfBinding::tokens(const char* name) {
  const json* value = find(name);
  if (value == nullptr) return {};
  const json list = value->is_array() ? *value : json::array({*value});
  std::vector<int64_t> ids;
  for (const json& id : list) {
    if (!id.is_number_integer()) {
      wrong(name, "a token id or a list of them");
      return {};
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

std::optional<int64_t> HfBinding::token(const char* name) {
  const std::vector<int64_t> all = tokens(name);
  return all.empty() ? std::nullopt : std::optional(all.front());
}

HfBinding* HfBinding::object(const char* name) {
  if (!reads()) {
    json& made = (*to_)[name] = json::object();
    return (objects_[name] = std::make_unique<HfBinding>(made, report_)).get();
  }
  const json* value = find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_object()) {
    wrong(name, "an object");
    return nullptr;
  }
  std::unique_ptr<HfBinding>& inside = objects_[name];
  if (inside == nullptr) inside = std::make_unique<HfBinding>(*file_, *value, report_);
  return inside.get();
}

std::vector<HfBinding*> HfBinding::objects() {
  std::vector<HfBinding*> found;
  for (const auto& [name, value] : from_->items()) {
    if (value.is_object()) found.push_back(object(name.c_str()));
  }
  return found;
}

void HfBinding::size(const char* name, int64_t& setting) {
  bind(setting);
  if (!reads()) return write(name, setting);
  find_required(name);
  setting = size_of(name, 1);
}

void HfBinding::size(const char* name, int64_t& setting, int64_t otherwise) {
  bind(setting);
  if (!reads()) return write(name, setting);
  setting = size_of(name, otherwise);
}

void HfBinding::size_from_zero(const char* name, int64_t& setting, int64_t otherwise) {
  bind(setting);
  if (!reads()) return write(name, setting);
  const json* value = find(name);
  setting = value != nullptr && *value == 0 ? 0 : size_of(name, otherwise);
}

void HfBinding::size_or_null(const char* name, int64_t& setting, int64_t otherwise) {
  bind(setting);
  if (!reads()) return write(name, setting == 0 ? json() : json(setting));
  const json* value = find(name);
  const bool is_none = is_there(name) && (value == nullptr || *value == 0);
  setting = is_none ? 0 : size_of(name, otherwise);
}

void HfBinding::number(const char* name, double& setting, double otherwise) {
  bind(setting);
  if (!reads()) return write(name, setting);
  setting = number_of(name, otherwise);
}

void HfBinding::positive(const char* name, double& setting, double otherwise) {
  bind(setting);
  if (!reads()) return write(name, setting);
  setting = positive_of(name, otherwise);
}

void HfBinding::number_or_null(const char* name, double& setting, double otherwise) {
  bind(setting);
  if (!reads()) return write(name, setting == 0.0 ? json() : json(setting));
  find(name);
  setting = is_there(name) && !has(name) ? 0.0 : number_of(name, otherwise);
}

void HfBinding::flag(const char* name, bool& setting, bool otherwise) {
  bind(setting);
  if (!reads()) return write(name, setting);
  setting = flag_of(name, otherwise);
}

void HfBinding::opposite(const char* name, bool& setting, bool otherwise) {
  bind(setting);
  bool field = !setting;
  flag(name, field, otherwise);
  setting = !field;
}

void HfBinding::activation(const char* name, Activation& setting,
                           std::span<const HfActivation> known, const char* otherwise) {
  bind(setting);
  if (!reads()) {
    const auto found = std::ranges::find(known, setting, &HfActivation::activation);
    if (found == known.end()) return differs("the activation");
    return write(name, found->name);
  }
  const std::string text = text_of(name, otherwise);
  std::vector<std::string> names;
  for (const HfActivation& row : known) {
    if (text == row.name) {
      setting = row.activation;
      return;
    }
    if (names.empty() || names.back() != row.name) names.emplace_back(row.name);
  }
  const std::string last = names.back();
  names.pop_back();
  unsupported(name, fmt::format("known are {} and {}", fmt::join(names, ", "), last));
}

void HfBinding::only(const char* name, bool value, std::string_view why) {
  bool field = value;
  flag(name, field, value);
  if (field != value) unsupported(name, why);
}

void HfBinding::only(const char* name, int64_t value, std::string_view why) {
  int64_t field = value;
  size(name, field, value);
  if (field != value) unsupported(name, why);
}

void HfBinding::only(const char* name, double value, std::string_view why) {
  double field = value;
  number(name, field, value);
  if (field != value) unsupported(name, why);
}

void HfBinding::only(const char* name, const char* value, std::string_view why) {
  if (!reads()) return write(name, value);
  if (text_of(name, value) != value) unsupported(name, why);
}

void HfBinding::ignore(std::span<const char* const> names) {
  known_.insert(names.begin(), names.end());
}

void HfBinding::report_unknown() const {
  if (ignores_others_) return;
  for (const auto& [name, object] : objects_) object->report_unknown();
  for (const auto& [name, value] : from_->items()) {
    const bool is_common =
        name.starts_with("_") || std::ranges::find(kCommonFields, name) != std::end(kCommonFields);
    if (is_common || known_.contains(name)) continue;
    constexpr size_t kMaxDistance = 3;
    const std::string* nearest = nullptr;
    size_t least = std::min(kMaxDistance, name.size() / 3);
    for (const std::string& known : known_) {
      const size_t distance = edit_distance(name, known);
      if (distance > least || (distance == least && nearest != nullptr)) continue;
      nearest = &known;
      least = distance;
    }
    report_.unknown.push_back(
        fmt::format("{} is {}", name, shortened_json(value)) +
        (nearest != nullptr ? fmt::format(" (did you mean {}?)", *nearest) : ""));
  }
}

}  // namespace megatron
