#include "megatron/formats/torch_globals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "megatron/core/error.h"

namespace megatron {
namespace {

// Libraries whose objects occur in checkpoints; kept as inert objects.
constexpr std::string_view kLibraries[] = {
    "apex.",
    "argparse.",
    "collections.",
    "deepspeed.",
    "fp16.",
    "megatron.",
    "numpy.",
    "omegaconf.",
    "packaging.version.",
    "pathlib.",
    "pytorch_lightning.",
    "signal.",
    "tokenizers.",
    "torch.",
    "transformer_engine.",
    "transformers.",
    "types.",
    "typing.",
    "dataclasses.",
    "enum.",
    "__main__.",
    "datetime.",
    "functools.partial",
};

constexpr std::string_view kFunctions[] = {
    "_codecs.encode",     "_io.BytesIO",    "builtins.bool",
    "builtins.bytearray", "builtins.bytes", "builtins.complex",
    "builtins.dict",      "builtins.float", "builtins.frozenset",
    "builtins.getattr",   "builtins.int",   "builtins.list",
    "builtins.object",    "builtins.set",   "builtins.slice",
    "builtins.str",       "builtins.tuple", "copyreg._reconstructor",
};

struct StorageClass {
  std::string_view name;
  DType dtype;
};
constexpr StorageClass kStorages[] = {
    {"torch.FloatStorage", DType::kFloat32},
    {"torch.DoubleStorage", DType::kFloat64},
    {"torch.HalfStorage", DType::kFloat16},
    {"torch.BFloat16Storage", DType::kBFloat16},
    {"torch.LongStorage", DType::kInt64},
    {"torch.IntStorage", DType::kInt32},
    {"torch.ShortStorage", DType::kInt16},
    {"torch.CharStorage", DType::kInt8},
    {"torch.ByteStorage", DType::kUInt8},
    {"torch.BoolStorage", DType::kBool},
    {"torch.storage.UntypedStorage", DType::kUInt8},
};

struct DTypeGlobal {
  std::string_view name;
  DType dtype;
};
constexpr DTypeGlobal kDTypes[] = {
    {"torch.float32", DType::kFloat32},   {"torch.float", DType::kFloat32},
    {"torch.float64", DType::kFloat64},   {"torch.double", DType::kFloat64},
    {"torch.float16", DType::kFloat16},   {"torch.half", DType::kFloat16},
    {"torch.bfloat16", DType::kBFloat16}, {"torch.int64", DType::kInt64},
    {"torch.long", DType::kInt64},        {"torch.int32", DType::kInt32},
    {"torch.int", DType::kInt32},         {"torch.int16", DType::kInt16},
    {"torch.int8", DType::kInt8},         {"torch.uint8", DType::kUInt8},
    {"torch.uint16", DType::kUInt16},     {"torch.uint32", DType::kUInt32},
    {"torch.uint64", DType::kUInt64},     {"torch.bool", DType::kBool},
};

constexpr size_t kMaxKey = 64;  // characters of the name of a storage

[[noreturn]] void malformed(const std::string& what) { throw FormatError(what); }

PyValue inert(PyDocument& document, std::string type, PyValue arguments) {
  auto object = std::make_unique<PyObject>();
  object->type = std::move(type);
  object->arguments = arguments;
  return document.make(std::move(object));
}

std::vector<int64_t> integers_of(PyValue value, const char* what) {
  std::vector<int64_t> numbers;
  if (!value.is_list() || value.items().size() > Shape::kMaxDims) {
    malformed(fmt::format("the {} of a tensor is {}, expected up to {} numbers", what,
                          value.description(), Shape::kMaxDims));
  }
  for (const PyValue item : value.items()) {
    const auto number = item.integer();
    if (!number || *number < 0) {
      malformed(fmt::format("the {} of a tensor holds {}", what, item.description()));
    }
    numbers.push_back(*number);
  }
  return numbers;
}

// Checks that every element is inside the storage and no product overflows.
void check_window(const PyTensor& tensor, int64_t storage_begin) {
  bool is_empty = false;
  int64_t numel = size_of(tensor.dtype);
  int64_t last = tensor.offset;
  bool overflows = false;
  for (int axis = 0; axis < tensor.shape.rank(); ++axis) {
    const int64_t extent = tensor.shape[axis];
    is_empty |= extent == 0;
    int64_t span = 0;
    overflows |= __builtin_mul_overflow(numel, std::max<int64_t>(extent, 1), &numel);
    overflows |= __builtin_mul_overflow(std::max<int64_t>(extent, 1) - 1,
                                        tensor.strides[static_cast<size_t>(axis)], &span);
    overflows |= __builtin_add_overflow(last, span, &last);
  }
  if (overflows || tensor.offset < storage_begin || (!is_empty && last >= tensor.storage_numel)) {
    malformed(fmt::format("a tensor of shape {} at element {} does not fit its storage of {}",
                          tensor.shape.str(), tensor.offset, tensor.storage_numel));
  }
}

const PyStorage* storage_of(PyValue value) {
  if (value.node() == nullptr) return nullptr;
  const auto* storage = std::get_if<std::unique_ptr<PyStorage>>(&value.node()->content);
  return storage != nullptr ? storage->get() : nullptr;
}

// _rebuild_tensor_v2(storage, offset, size, stride, ...); v3 has the dtype as its seventh argument.
PyValue rebuilt_tensor(PyDocument& document, PyValue arguments, bool has_dtype) {
  const auto args = arguments.items();
  if (args.size() < (has_dtype ? 7u : 4u)) malformed("a tensor is made from too few arguments");
  const PyStorage* storage = storage_of(args[0]);
  // An element type that this program does not have.
  if (storage == nullptr || (has_dtype && !args[6].dtype())) {
    return inert(document, "torch.Tensor", arguments);
  }
  const auto offset = args[1].integer();
  if (!offset || *offset < 0) malformed("the offset of a tensor is not a number");
  auto tensor = std::make_unique<PyTensor>();
  tensor->storage = storage->key;
  tensor->dtype = has_dtype ? *args[6].dtype() : storage->dtype;
  tensor->storage_numel =
      storage->numel * size_of(storage->dtype) / size_of(tensor->dtype);  // v3: bytes
  tensor->shape = Shape(integers_of(args[2], "shape"));
  tensor->strides = integers_of(args[3], "stride");
  if (tensor->strides.size() != static_cast<size_t>(tensor->shape.rank())) {
    malformed("shape and stride of a tensor differ in length");
  }
  if (__builtin_add_overflow(*offset, storage->offset, &tensor->offset)) {
    malformed("the offset of a tensor overflows");
  }
  check_window(*tensor, storage->offset);
  return document.make(std::move(tensor));
}

// Code points below 256 as bytes: the form of bytes objects in protocol 2.
std::string latin1_of(std::string_view utf8) {
  std::string bytes;
  bytes.reserve(utf8.size());
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto byte = static_cast<unsigned char>(utf8[i]);
    if (byte < 0x80) {
      bytes.push_back(utf8[i]);
    } else if ((byte == 0xC2 || byte == 0xC3) && i + 1 < utf8.size()) {
      const auto next = static_cast<unsigned char>(utf8[++i]);
      bytes.push_back(static_cast<char>(((byte & 0x03) << 6) | (next & 0x3F)));
    } else {
      malformed("bytes are written as characters above 255");
    }
  }
  return bytes;
}

PyValue ordered_dict(PyDocument& document, PyValue arguments) {
  PyDict dict;
  if (!arguments.items().empty()) {
    for (const PyValue pair : arguments.items()[0].items()) {
      if (pair.items().size() == 2) dict.entries.emplace_back(pair.items()[0], pair.items()[1]);
    }
  }
  return document.make(std::move(dict));
}

template <class T>
T element_of(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

// numpy's scalar(dtype("f8"), bytes); an object for rarer types.
PyValue numpy_scalar(PyDocument& document, const std::string& name, PyValue arguments) {
  const auto args = arguments.items();
  const PyObject* dtype = args.size() == 2 ? args[0].object() : nullptr;
  const PyBytes* bytes = args.size() == 2 ? args[1].bytes() : nullptr;
  if (dtype != nullptr && bytes != nullptr && !dtype->arguments.items().empty()) {
    const std::string_view code = dtype->arguments.items()[0].text().value_or("");
    const std::string& data = bytes->bytes;
    if (code == "f8" && data.size() == 8) return document.make(element_of<double>(data));
    if (code == "f4" && data.size() == 4) {
      return document.make(static_cast<double>(element_of<float>(data)));
    }
    if (code == "i8" && data.size() == 8) return document.make(element_of<int64_t>(data));
    if (code == "i4" && data.size() == 4) {
      return document.make(static_cast<int64_t>(element_of<int32_t>(data)));
    }
    if (code == "b1" && data.size() == 1) return document.make(data[0] != 0);
  }
  return inert(document, name, arguments);
}

PyValue first_or(PyDocument& document, PyValue arguments, const std::string& name) {
  return arguments.items().empty() ? inert(document, name, arguments) : arguments.items()[0];
}

}  // namespace

std::string normalized_global(std::string_view module, std::string_view name) {
  if (module == "__builtin__") module = "builtins";
  if (module == "copy_reg") module = "copyreg";
  if (module == "torch.nn.parameter" && name == "Parameter") return "torch.nn.Parameter";
  return fmt::format("{}.{}", module, name);
}

bool is_expected_global(std::string_view name) {
  return std::ranges::any_of(kLibraries,
                             [&](std::string_view library) { return name.starts_with(library); }) ||
         std::ranges::find(kFunctions, name) != std::end(kFunctions);
}

PyValue global_value(PyDocument& document, std::string name) {
  for (const DTypeGlobal& known : kDTypes) {
    if (known.name == name) return document.make(known.dtype);
  }
  return document.make(PyGlobal{std::move(name)});
}

PyValue called(PyDocument& document, PyValue callable, PyValue arguments) {
  const PyGlobal* global = callable.global();
  if (global == nullptr) {
    malformed(fmt::format("{} is called but is not a class or function", callable.description()));
  }
  const std::string& name = global->name;
  const auto args = arguments.items();
  if (name == "torch._utils._rebuild_tensor_v2" || name == "torch._utils._rebuild_tensor") {
    return rebuilt_tensor(document, arguments, false);
  }
  if (name == "torch._utils._rebuild_tensor_v3") return rebuilt_tensor(document, arguments, true);
  if (name == "torch._utils._rebuild_parameter" ||
      name == "torch._utils._rebuild_parameter_with_state" || name == "torch.nn.Parameter") {
    return first_or(document, arguments, name);
  }
  if (name == "torch._tensor._rebuild_from_type_v2") {  // (function, type, arguments, state)
    const PyGlobal* function = args.size() < 3 ? nullptr : args[0].global();
    if (function == nullptr || function->name == name) {
      malformed("a tensor with attributes is made from the wrong arguments");
    }
    return called(document, args[0], args[2]);
  }
  if (name == "collections.OrderedDict" || name == "builtins.dict") {
    return ordered_dict(document, arguments);
  }
  if (name == "collections.defaultdict") return document.make(PyDict{});
  if (name == "torch.Size" || name == "builtins.set" || name == "builtins.frozenset" ||
      name == "builtins.list" || name == "builtins.tuple") {
    return args.empty() ? document.make(PyTuple{}) : args[0];
  }
  if (name == "_codecs.encode" && !args.empty() && args[0].text()) {
    return document.make(PyBytes{latin1_of(*args[0].text())});
  }
  if (name == "builtins.bytes" && args.empty()) return document.make(PyBytes{});
  if (name == "numpy.core.multiarray.scalar" || name == "numpy._core.multiarray.scalar") {
    return numpy_scalar(document, name, arguments);
  }
  return inert(document, name, arguments);
}

PyValue persistent(PyDocument& document, PyValue id) {
  const auto parts = id.items();
  const std::string_view tag = parts.empty() ? "" : parts[0].text().value_or("");
  if (tag == "module" && parts.size() > 1) return parts[1];
  if (tag != "storage" || parts.size() < 5) {
    malformed(fmt::format("{} is not the id of a storage", id.description()));
  }
  const PyGlobal* type = parts[1].global();
  const auto key = parts[2].text();
  const auto numel = parts[4].integer();
  if (type == nullptr || !key || key->size() > kMaxKey || !numel || *numel < 0) {
    malformed("the id of a storage has the wrong parts");
  }
  const auto* known = std::ranges::find(kStorages, type->name, &StorageClass::name);
  if (known == std::end(kStorages)) return inert(document, type->name, id);
  int64_t bytes = 0;
  if (__builtin_mul_overflow(*numel, size_of(known->dtype), &bytes)) {
    malformed("the size of a storage overflows");
  }
  auto storage = std::make_unique<PyStorage>();
  storage->key = *key;
  storage->dtype = known->dtype;
  storage->numel = *numel;
  if (parts.size() > 5 && !parts[5].is_none()) {  // (key of the view, offset, size)
    const auto view = parts[5].items();
    const auto offset = view.size() == 3 ? view[1].integer() : std::nullopt;
    const auto size = view.size() == 3 ? view[2].integer() : std::nullopt;
    if (!offset || !size || *offset < 0 || *size < 0 || *offset > *numel ||
        *size > *numel - *offset) {
      malformed("a view of a storage lies outside it");
    }
    storage->offset = *offset;
  }
  return document.make(std::move(storage));
}

}  // namespace megatron
