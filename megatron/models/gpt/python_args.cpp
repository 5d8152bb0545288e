#include "megatron/models/gpt/python_args.h"

#include <optional>
#include <string>
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
  const auto disabled = args.find("disable_bias_linear");
  if (disabled != args.end() && std::holds_alternative<bool>(disabled->second)) {
    args["add_bias_linear"] = !std::get<bool>(disabled->second);
  }
  return args;
}

}  // namespace megatron
