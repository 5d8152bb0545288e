#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "megatron/core/dtype.h"
#include "megatron/core/shape.h"

// The content of a pickle as plain data; nothing is executed. Values are references to nodes of a
// PyDocument, because Python objects may share parts.
namespace megatron {

// A tensor: a strided window into a storage, whose bytes are elsewhere in the file.
struct PyTensor {
  std::string storage;        // key of the storage
  int64_t storage_numel = 0;  // elements of the storage
  DType dtype = DType::kFloat32;
  int64_t offset = 0;  // of the first element in the storage, in elements
  Shape shape;
  std::vector<int64_t> strides;  // in elements, one per axis, >= 0

  bool is_contiguous() const;
  // Elements from the first to the last one, inclusive; 0 if there are none.
  int64_t extent() const;
};

struct PyStorage {
  std::string key;
  DType dtype = DType::kUInt8;
  int64_t numel = 0;
  int64_t offset = 0;  // of a view into the storage, in elements
};

struct PyBytes {
  std::string bytes;
};
struct PyGlobal {
  std::string name;  // a class or function: "collections.OrderedDict"
};

struct PyObject;
struct PyNode;

// A value: a cheap reference, valid while its document lives.
class PyValue {
 public:
  PyValue() = default;  // None
  explicit PyValue(PyNode* node) : node_(node) {}

  bool is_none() const;
  // The value if it has that type.
  std::optional<bool> boolean() const;
  std::optional<int64_t> integer() const;  // not for booleans
  std::optional<double> number() const;    // also for integers
  std::optional<std::string_view> text() const;
  std::optional<DType> dtype() const;
  const PyTensor* tensor() const;
  const PyObject* object() const;
  const PyGlobal* global() const;
  const PyBytes* bytes() const;
  bool is_dict() const;
  bool is_list() const;  // or a tuple

  // Items of a list or tuple, otherwise empty.
  std::span<const PyValue> items() const;
  // Entries of a dictionary or of an object's attributes, otherwise empty.
  std::span<const std::pair<PyValue, PyValue>> entries() const;
  // The value of a text key; null if there is none.
  const PyValue* find(std::string_view key) const;

  // The value at a path of text keys; null if a key is missing.
  const PyValue* find_path(std::initializer_list<std::string_view> keys) const;

  // A description for messages and listings: "list of 3", "tensor float32 [2, 3]".
  std::string description() const;

  PyNode* node() const { return node_; }

 private:
  PyNode* node_ = nullptr;
};

// An instance of a class that has no equivalent here.
struct PyObject {
  std::string type;   // "argparse.Namespace"
  PyValue arguments;  // the tuple of constructor arguments
  PyValue state;      // None, or its later state: usually a dictionary of attributes
};

struct PyList {
  std::vector<PyValue> items;
};
struct PyTuple {
  std::vector<PyValue> items;
};
struct PyDict {
  std::vector<std::pair<PyValue, PyValue>> entries;  // in order; the last of equal keys counts
};

struct PyNode {
  std::variant<std::monostate, bool, int64_t, double, std::string, DType, PyBytes, PyList, PyTuple,
               PyDict, PyGlobal, std::unique_ptr<PyTensor>, std::unique_ptr<PyStorage>,
               std::unique_ptr<PyObject>>
      content;
};

// Owns the nodes of one pickle. Its destruction never recurses, even for deeply nested values.
class PyDocument {
 public:
  template <class T>
  PyValue make(T content) {
    nodes_.push_back(PyNode{std::move(content)});
    return PyValue(&nodes_.back());
  }

  PyValue root() const { return root_; }
  void set_root(PyValue root) { root_ = root; }

 private:
  std::deque<PyNode> nodes_;
  PyValue root_;
};

}  // namespace megatron
