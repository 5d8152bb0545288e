#include "megatron/interchange/hf/fields.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/core/json.h"

namespace megatron {

using nlohmann::json;

bool HfFields::is_empty() const { return object_.empty(); }

bool HfFields::has(const char* name) const {
  return object_.contains(name) && !object_[name].is_null();
}

int64_t HfFields::size(const char* name) const {
  const json& value = required(name);
  if (!value.is_number_integer() || value < 1 || value > kMaxHfSize) wrong(name, "a size");
  return value.get<int64_t>();
}

double HfFields::number(const char* name) const {
  const json& value = required(name);
  if (!value.is_number() || !std::isfinite(value.get<double>())) wrong(name, "a number");
  return value.get<double>();
}

bool HfFields::flag(const char* name, bool otherwise) const {
  if (!has(name)) return otherwise;
  if (!object_[name].is_boolean()) wrong(name, "true or false");
  return object_[name].get<bool>();
}

std::string HfFields::text(const char* name, const char* otherwise) const {
  if (!has(name)) return otherwise;
  if (!object_[name].is_string()) wrong(name, "a text");
  return object_[name].get<std::string>();
}

std::vector<std::string> HfFields::texts(const char* name) const {
  std::vector<std::string> texts;
  if (!has(name)) return texts;
  if (!object_[name].is_array()) wrong(name, "a list of texts");
  for (const json& value : object_[name]) {
    if (!value.is_string()) wrong(name, "a list of texts");
    texts.push_back(value.get<std::string>());
  }
  return texts;
}

std::optional<int64_t> HfFields::token(const char* name) const {
  const std::vector<int64_t> all = tokens(name);
  return all.empty() ? std::nullopt : std::optional(all.front());
}

std::vector<int64_t> HfFields::tokens(const char* name) const {
  if (!has(name)) return {};
  const json& value = object_[name];
  const json list = value.is_array() ? value : json::array({value});
  std::vector<int64_t> ids;
  for (const json& id : list) {
    if (!id.is_number_integer()) wrong(name, "a token id or a list of them");
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

std::optional<HfFields> HfFields::object(const char* name) const {
  if (!has(name)) return std::nullopt;
  if (!object_[name].is_object()) wrong(name, "an object");
  return HfFields(path_, object_[name]);
}

void HfFields::unsupported(const char* name, std::string_view why) const {
  const std::string value = has(name) ? shortened_json(object_[name]) : "absent";
  throw Unsupported(fmt::format("{}: {} is {}: {}", path_.string(), name, value, why));
}

void HfFields::wrong(const char* name, const char* expected) const {
  throw FormatError(fmt::format("{}: {} is {}, expected {}", path_.string(), name,
                                shortened_json(object_[name]), expected));
}

const json& HfFields::required(const char* name) const {
  if (!has(name)) {
    throw FormatError(
        fmt::format("{}: has no {}; is this the config.json of the model?", path_.string(), name));
  }
  return object_[name];
}

Activation hf_activation(const HfFields& fields, const char* name, const char* otherwise) {
  const std::string text = fields.text(name, otherwise);
  if (text == "gelu_new" || text == "gelu_fast" || text == "gelu_pytorch_tanh") {
    return Activation::kGeluTanh;
  }
  if (text == "gelu") return Activation::kGeluErf;
  if (text == "relu") return Activation::kRelu;
  if (text == "relu2") return Activation::kSquaredRelu;
  fields.unsupported(name, "known are gelu_new, gelu_fast, gelu_pytorch_tanh, gelu, relu, relu2");
}

const char* hf_activation_name(Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh:
      return "gelu_new";
    case Activation::kGeluErf:
    case Activation::kGeluOnnx:
      return "gelu";
    case Activation::kRelu:
      return "relu";
    case Activation::kSquaredRelu:
      return "relu2";
    default:
      return "";
  }
}

}  // namespace megatron
