#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "megatron/core/error.h"

namespace megatron::jinja {

// An expression failed. The message has no place yet; the interpreter adds the line.
class Fault : public Error {
 public:
  using Error::Error;
};

class Object;
struct Sequence;
struct Mapping;

struct None {};
// The value of a missing name or element: prints as nothing; most other uses fail with `problem`.
struct Undefined {
  std::shared_ptr<const std::string> problem;
};

// A value of a template, with the meaning of Python's. Values are immutable and shared; only
// objects have state.
class Value {
 public:
  using Text = std::shared_ptr<const std::string>;
  using Data =
      std::variant<None, Undefined, bool, int64_t, double, Text, std::shared_ptr<const Sequence>,
                   std::shared_ptr<const Mapping>, std::shared_ptr<Object>>;

  Value() = default;  // None
  explicit Value(bool value) : data_(value) {}
  explicit Value(int64_t value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(std::string text) : data_(std::make_shared<const std::string>(std::move(text))) {}
  template <std::derived_from<Object> Kind>
  explicit Value(std::shared_ptr<Kind> object)
      : data_(std::shared_ptr<Object>(std::move(object))) {}
  template <class Other>
  explicit Value(const Other* pointer) = delete;  // would convert to bool
  static Value undefined(std::string problem);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  // The result of a Python generator or view: iterable, without a length, true even if empty.
  static Value iterator(std::vector<Value> items);
  // The result of dict.items(): iterable, with a length, without indices.
  static Value view(std::vector<Value> items);
  static Value mapping(Mapping entries);

  const Data& data() const { return data_; }
  template <class Kind>
  const Kind* get_if() const {
    return std::get_if<Kind>(&data_);
  }
  bool is_none() const { return get_if<None>() != nullptr; }
  bool is_undefined() const { return get_if<Undefined>() != nullptr; }
  const std::string* text() const;
  const Sequence* sequence() const;
  const Mapping* mapping() const;
  Object* object() const;

 private:
  explicit Value(Data data) : data_(std::move(data)) {}
  static Value sequence_of(std::vector<Value> items, int kind);
  Data data_;
};

struct Sequence {
  enum Kind { kList, kTuple, kIterator, kView };
  bool is_indexed() const { return kind == kList || kind == kTuple; }
  Kind kind = kList;
  std::vector<Value> items = {};
  int64_t depth = 1;  // levels of lists and mappings
};

// A dict: keys are unique and keep their order.
struct Mapping {
  std::vector<std::pair<Value, Value>> entries = {};
  int64_t depth = 1;

  // The value of a key, or null.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  // Replaces the value of an equal key. Throws Fault for a key that Python cannot hash.
  void set(Value key, Value value);
  void set(std::string_view key, Value value) { set(Value(std::string(key)), std::move(value)); }

 private:
  std::optional<size_t> place_of(const Value& key) const;
  std::optional<size_t> place_of(std::string_view key) const;
  void add_slot(size_t place);
  // A hash table of the places of text keys, counted from 1; empty while there are few.
  std::vector<uint32_t> slots_ = {};
};

class Interpreter;

struct Arguments {
  std::vector<Value> positional = {};
  std::vector<std::pair<std::string, Value>> named = {};
};

// A function, macro, namespace or loop. Lists and mappings do not hold objects: an object may refer
// to a scope or change, and would make cycles.
class Object {
 public:
  virtual ~Object() = default;
  // Python's name of the type, for messages.
  virtual std::string_view type() const = 0;
  virtual std::optional<Value> attribute(std::string_view) const { return std::nullopt; }
  virtual bool is_callable() const { return true; }
  // Calls one of the object's methods; nothing if it has none of that name.
  virtual std::optional<Value> call_method(std::string_view, const Arguments&) {
    return std::nullopt;
  }
  // Throws Fault.
  virtual Value call(Interpreter& interpreter, const Arguments& arguments);
};

// Python's name of a value's type: "str", "dict".
std::string_view type_name(const Value& value);

// Throws Fault with the problem of an undefined value.
void require_defined(const Value& value);

bool is_true(const Value& value);
bool are_equal(const Value& a, const Value& b);
// a < b; `sign` is for the message. Throws Fault for types without an order.
bool is_less(const Value& a, const Value& b, std::string_view sign = "<");
// Python's `item in container`.
bool contains(const Value& container, const Value& item);

// Appends str(value), or repr(value).
void append_text(std::string& out, const Value& value);
void append_repr(std::string& out, const Value& value);
std::string text_of(const Value& value);

// The elements that a loop visits: of a list, the keys of a mapping, the characters of a text.
std::vector<Value> elements_of(const Value& value);
// len(value).
int64_t length_of(const Value& value);

// The number of a bool or an int; nothing for others.
std::optional<int64_t> as_integer(const Value& value);
std::optional<double> as_number(const Value& value);

// Throws Fault if a text or list of so many bytes or elements is not to be made.
void require_size(int64_t size);
int64_t checked_multiply(int64_t a, int64_t b);

}  // namespace megatron::jinja
