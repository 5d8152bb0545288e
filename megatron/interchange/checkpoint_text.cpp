#include "megatron/interchange/checkpoint_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megatron/checkpoint/manifest.h"
#include "megatron/core/json.h"
#include "megatron/interchange/model_kind.h"

namespace megatron {
namespace {

using nlohmann::json;

constexpr size_t kMaxItems = 16;  // of a list that is shown

json json_of(const Shape& shape) {
  return std::vector<int64_t>(shape.dims().begin(), shape.dims().end());
}

json json_of(const ArgMap& args) { return parse_json(args_text(args), {}, "the arguments"); }

// Keys and texts of a foreign file need not be UTF-8.
std::string dumped(const json& value) {
  return value.dump(1, ' ', false, json::error_handler_t::replace);
}

void add_text(PyValue value, const std::string& name, size_t depth, std::string& text) {
  text += fmt::format("{:{}}{}{}\n", "", 2 * depth, name, value.description());
  const PyObject* object = value.object();
  if (object != nullptr && !object->arguments.items().empty()) {
    add_text(object->arguments, "arguments: ", depth + 1, text);
  }
  for (const auto& [key, entry] : value.entries()) {
    add_text(entry, key.description() + ": ", depth + 1, text);
  }
  const auto items = value.items();
  for (size_t i = 0; i < std::min(items.size(), kMaxItems); ++i) {
    add_text(items[i], "", depth + 1, text);
  }
  if (items.size() > kMaxItems) {
    text += fmt::format("{:{}}... {} more\n", "", 2 * depth + 2, items.size() - kMaxItems);
  }
}

json json_of(PyValue value) {
  if (value.is_none()) return nullptr;
  if (const auto flag = value.boolean()) return *flag;
  if (const auto number = value.integer()) return *number;
  if (const auto number = value.number()) return *number;
  if (const auto text = value.text()) return std::string(*text);
  if (const PyTensor* tensor = value.tensor()) {
    return {{"dtype", name_of(tensor->dtype)}, {"shape", json_of(tensor->shape)}};
  }
  if (value.is_list()) {
    json items = json::array();
    for (const PyValue item : value.items()) items.push_back(json_of(item));
    return items;
  }
  const PyObject* object = value.object();
  if (!value.is_dict() && object == nullptr) return value.description();
  json fields = json::object();
  if (object != nullptr) {
    fields["class"] = object->type;
    if (!object->arguments.items().empty()) fields["arguments"] = json_of(object->arguments);
  }
  for (const auto& [key, entry] : value.entries()) {
    fields[key.text() ? std::string(*key.text()) : key.description()] = json_of(entry);
  }
  return fields;
}

}  // namespace

std::string contents_text(const CheckpointContents& contents) {
  std::string text;
  for (const auto& [section, tensors] : contents.sections) {
    int64_t elements = 0;
    for (const auto& [name, tensor] : tensors) elements += tensor.shape.numel();
    text += fmt::format("{}: {} tensors, {} elements\n", section, tensors.size(), elements);
    for (const auto& [name, tensor] : tensors) {
      text += fmt::format("  {} {} {}", name, name_of(tensor.dtype), tensor.shape.str());
      if (tensor.pieces.size() > 1) text += fmt::format(" in {} pieces", tensor.pieces.size());
      text += "\n";
    }
  }
  if (!text.empty()) text.pop_back();
  return text;
}

std::string contents_json(const CheckpointContents& contents, std::string_view format) {
  json sections = json::object();
  for (const auto& [section, tensors] : contents.sections) {
    json& list = sections[section] = json::object();
    for (const auto& [name, tensor] : tensors) {
      json pieces = json::array();
      for (const TensorPiece& piece : tensor.pieces) {
        pieces.push_back({{"offset", piece.region.offset}, {"shape", json_of(piece.region.shape)}});
      }
      list[name] = {{"dtype", name_of(tensor.dtype)},
                    {"shape", json_of(tensor.shape)},
                    {"pieces", std::move(pieces)}};
    }
  }
  json scalars = json::object();
  for (const auto& [owner, values] : contents.scalars) scalars[owner] = json_of(values);
  const bool is_model = contents.sections.contains(kWeightsSection);
  return dumped({{"format", format},
                 {"model", is_model ? json(name_of(kind_of(contents))) : json()},
                 {"directory", contents.directory.string()},
                 {"iteration", contents.iteration},
                 {"consumed_train_samples", contents.consumed_train_samples},
                 {"consumed_valid_samples", contents.consumed_valid_samples},
                 {"sections", std::move(sections)},
                 {"scalars", std::move(scalars)},
                 {"args", json_of(contents.args)}});
}

std::string value_text(PyValue value) {
  std::string text;
  add_text(value, "", 0, text);
  text.pop_back();
  return text;
}

std::string value_json(PyValue value) { return dumped(json_of(value)); }

}  // namespace megatron
