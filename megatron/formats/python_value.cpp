#include "megatron/formats/python_value.h"

#include <fmt/format.h>

namespace megatron {
namespace {

template <class T>
const T* content_of(const PyNode* node) {
  return node == nullptr ? nullptr : std::get_if<T>(&node->content);
}

}  // namespace

bool PyTensor::is_contiguous() const {
  int64_t expected = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    if (shape[axis] == 0) return true;
    if (shape[axis] != 1 && strides[static_cast<size_t>(axis)] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

int64_t PyTensor::extent() const {
  int64_t last = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] == 0) return 0;
    last += (shape[axis] - 1) * strides[static_cast<size_t>(axis)];
  }
  return last + 1;
}

bool PyValue::is_none() const {
  return node_ == nullptr || content_of<std::monostate>(node_) != nullptr;
}

std::optional<bool> PyValue::boolean() const {
  const bool* value = content_of<bool>(node_);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

std::optional<int64_t> PyValue::integer() const {
  const int64_t* value = content_of<int64_t>(node_);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

std::optional<double> PyValue::number() const {
  if (const double* value = content_of<double>(node_)) return *value;
  if (const auto value = integer()) return static_cast<double>(*value);
  return std::nullopt;
}

std::optional<std::string_view> PyValue::text() const {
  const auto* value = content_of<std::string>(node_);
  return value != nullptr ? std::optional<std::string_view>(*value) : std::nullopt;
}

std::optional<DType> PyValue::dtype() const {
  const DType* value = content_of<DType>(node_);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

const PyTensor* PyValue::tensor() const {
  const auto* value = content_of<std::unique_ptr<PyTensor>>(node_);
  return value != nullptr ? value->get() : nullptr;
}

const PyObject* PyValue::object() const {
  const auto* value = content_of<std::unique_ptr<PyObject>>(node_);
  return value != nullptr ? value->get() : nullptr;
}

const PyGlobal* PyValue::global() const { return content_of<PyGlobal>(node_); }
const PyBytes* PyValue::bytes() const { return content_of<PyBytes>(node_); }
bool PyValue::is_dict() const { return content_of<PyDict>(node_) != nullptr; }
bool PyValue::is_list() const {
  return content_of<PyList>(node_) != nullptr || content_of<PyTuple>(node_) != nullptr;
}

std::span<const PyValue> PyValue::items() const {
  if (const auto* list = content_of<PyList>(node_)) return list->items;
  if (const auto* tuple = content_of<PyTuple>(node_)) return tuple->items;
  return {};
}

std::span<const std::pair<PyValue, PyValue>> PyValue::entries() const {
  if (const auto* dict = content_of<PyDict>(node_)) return dict->entries;
  const PyObject* instance = object();
  if (instance == nullptr) return {};
  const auto* attributes = content_of<PyDict>(instance->state.node());
  if (attributes == nullptr) return {};
  return attributes->entries;
}

const PyValue* PyValue::find(std::string_view key) const {
  const auto all = entries();
  for (size_t i = all.size(); i-- > 0;) {
    const auto* text = content_of<std::string>(all[i].first.node());
    if (text != nullptr && *text == key) return &all[i].second;
  }
  return nullptr;
}

const PyValue* PyValue::find_path(std::initializer_list<std::string_view> keys) const {
  const PyValue* value = this;
  for (const std::string_view key : keys) {
    value = value->find(key);
    if (value == nullptr) return nullptr;
  }
  return value;
}

std::string PyValue::description() const {
  if (is_none()) return "None";
  if (const auto value = boolean()) return *value ? "True" : "False";
  if (const auto value = integer()) return fmt::format("{}", *value);
  if (const auto value = number()) return fmt::format("{}", *value);
  if (const auto value = text()) return fmt::format("'{}'", *value);
  if (const auto value = dtype()) return fmt::format("torch.{}", name_of(*value));
  if (const PyBytes* value = bytes()) return fmt::format("{} bytes", value->bytes.size());
  if (is_dict()) return fmt::format("dict of {}", entries().size());
  if (is_list()) {
    return fmt::format("{} of {}", content_of<PyList>(node_) != nullptr ? "list" : "tuple",
                       items().size());
  }
  if (const PyGlobal* value = global()) return value->name;
  if (const PyTensor* value = tensor()) {
    return fmt::format("tensor {} {}", name_of(value->dtype), value->shape.str());
  }
  if (const PyObject* value = object()) return fmt::format("object {}", value->type);
  return "storage";
}

}  // namespace megatron
