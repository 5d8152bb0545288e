#include "megatron/interchange/megatron/python_args.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron {
namespace {

std::optional<ArgValue> plain_value(PyValue value) {
  if (value.is_none()) return ArgValue();
  if (const auto flag = value.boolean()) return ArgValue(*flag);
  if (const auto number = value.integer()) return ArgValue(*number);
  if (const auto number = value.number()) return ArgValue(*number);
  if (const auto text = value.text()) return ArgValue(std::string(*text));
  if (const auto dtype = value.dtype()) return ArgValue(*dtype);
  if (!value.is_list()) return std::nullopt;
  std::vector<int64_t> numbers;
  std::vector<std::string> texts;
  for (const PyValue item : value.items()) {
    if (const auto number = item.integer()) numbers.push_back(*number);
    if (const auto text = item.text()) texts.emplace_back(*text);
  }
  if (texts.size() == value.items().size() && !texts.empty()) return ArgValue(texts);
  if (numbers.size() == value.items().size()) return ArgValue(numbers);
  return std::nullopt;
}

// BigScience's enumeration of position embeddings, by its value or by name.
std::optional<ArgValue> position_embedding(PyValue value) {
  const PyObject* object = value.object();
  if (object == nullptr || object->arguments.items().empty()) return std::nullopt;
  const PyValue member = object->arguments.items().back();
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"rotary", "rope"}, {"absolute", "learned_absolute"}, {"alibi", "alibi"}};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (member.integer() == static_cast<int64_t>(i) + 1 || member.text() == kNames[i].first) {
      return ArgValue(std::string(kNames[i].second));
    }
  }
  return std::nullopt;
}

struct Renamed {
  const char* theirs;
  const char* ours;
};
constexpr Renamed kRenamed[] = {
    {"layernorm_epsilon", "norm_epsilon"},                    // Megatron Core's configuration
    {"layernorm_zero_centered_gamma", "apply_layernorm_1p"},  // the same
    {"model_parallel_size", "tensor_model_parallel_size"},    // before version 2
    {"embed_layer_norm", "embed_layernorm"},
};

}  // namespace

ArgMap plain_args(PyValue names) {
  ArgMap args;
  for (const auto& [key, value] : names.entries()) {
    const auto name = key.text();
    if (!name) continue;
    if (std::optional<ArgValue> plain = plain_value(value)) {
      args[std::string(*name)] = std::move(*plain);
    }
  }
  return args;
}

ArgMap megatron_args(PyValue names) {
  ArgMap args = plain_args(names);
  const auto is_set = [&](const char* name) {
    const auto found = args.find(name);
    return found != args.end() && !std::holds_alternative<std::monostate>(found->second);
  };
  for (const Renamed& row : kRenamed) {
    if (is_set(row.theirs) && !is_set(row.ours)) args[row.ours] = args.at(row.theirs);
  }
  if (const PyValue* position = names.find("position_embedding_type")) {
    if (auto value = position_embedding(*position)) {
      args["position_embedding_type"] = std::move(*value);
    }
  }
  const auto disabled = args.find("disable_bias_linear");
  if (disabled != args.end() && std::holds_alternative<bool>(disabled->second)) {
    args["add_bias_linear"] = !std::get<bool>(disabled->second);
  }
  return args;
}

ArgMap scheduler_args(PyValue scheduler, const ArgMap& settings) {
  constexpr std::pair<const char*, const char*> kOldNames[] = {{"start_lr", "max_lr"},
                                                               {"warmup_iter", "lr_warmup_steps"},
                                                               {"warmup_steps", "lr_warmup_steps"},
                                                               {"end_iter", "lr_decay_steps"},
                                                               {"decay_steps", "lr_decay_steps"},
                                                               {"decay_style", "lr_decay_style"},
                                                               {"num_iters", "num_steps"}};
  ArgMap map = plain_args(scheduler);
  for (const auto& [old, now] : kOldNames) {
    const auto found = map.find(old);
    if (found != map.end() && !map.contains(now)) map[now] = found->second;
  }
  const auto decay = settings.find("weight_decay");
  if (decay != settings.end() && !map.contains("wd_incr_style")) {
    map["start_wd"] = map["end_wd"] = decay->second;
    map["wd_incr_style"] = std::string("constant");
    map["wd_incr_steps"] = int64_t{0};
  }
  return map;
}

}  // namespace megatron
