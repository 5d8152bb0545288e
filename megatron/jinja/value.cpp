#include "megatron/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>

#include "megatron/core/number_text.h"
#include "megatron/jinja/text.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron::jinja {
namespace {

constexpr int64_t kMaxSize = int64_t{64} << 20;  // bytes of a text, elements of a list
constexpr int64_t kMaxValueDepth = 100;          // levels of lists and mappings

int64_t depth_of(const Value& value) {
  if (const Sequence* sequence = value.sequence()) return sequence->depth;
  if (const Mapping* mapping = value.mapping()) return mapping->depth;
  if (const Object* object = value.object()) {
    throw Fault(
        fmt::format("a {} cannot be an element of a list, a dict or a namespace", object->type()));
  }
  return 0;
}

int64_t with_level(int64_t depth, const Value& value) {
  depth = std::max(depth, 1 + depth_of(value));
  if (depth > kMaxValueDepth) {
    throw Fault(fmt::format("lists and dicts are nested deeper than {} levels", kMaxValueDepth));
  }
  return depth;
}

void append_items(std::string& out, const std::vector<Value>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(out, items[i]);
  }
}

bool is_numeric(const Value& value) { return as_number(value).has_value(); }

// Exact for integers and doubles on x86.
long double exact_number(const Value& value) {
  if (const auto integer = as_integer(value)) return static_cast<long double>(*integer);
  return static_cast<long double>(*value.get_if<double>());
}

size_t hash_of(std::string_view key) { return std::hash<std::string_view>()(key); }

void require_hashable(const Value& key) {
  const Sequence* sequence = key.sequence();
  const bool is_list = sequence != nullptr && sequence->kind != Sequence::kTuple;
  if (is_list || key.mapping() != nullptr) {
    throw Fault(fmt::format("unhashable type: '{}'", type_name(key)));
  }
  if (sequence == nullptr) return;
  for (const Value& item : sequence->items) require_hashable(item);
}

}  // namespace

Value Value::undefined(std::string problem) {
  return Value(Data(Undefined{std::make_shared<const std::string>(std::move(problem))}));
}

Value Value::sequence_of(std::vector<Value> items, int kind) {
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = static_cast<Sequence::Kind>(kind);
  for (const Value& item : items) sequence->depth = with_level(sequence->depth, item);
  sequence->items = std::move(items);
  return Value(Data(std::shared_ptr<const Sequence>(std::move(sequence))));
}

Value Value::list(std::vector<Value> items) {
  return sequence_of(std::move(items), Sequence::kList);
}
Value Value::tuple(std::vector<Value> items) {
  return sequence_of(std::move(items), Sequence::kTuple);
}
Value Value::iterator(std::vector<Value> items) {
  return sequence_of(std::move(items), Sequence::kIterator);
}
Value Value::view(std::vector<Value> items) {
  return sequence_of(std::move(items), Sequence::kView);
}
Value Value::mapping(Mapping entries) {
  return Value(Data(std::make_shared<const Mapping>(std::move(entries))));
}

const std::string* Value::text() const {
  const Text* text = get_if<Text>();
  return text == nullptr ? nullptr : text->get();
}
const Sequence* Value::sequence() const {
  const auto* sequence = get_if<std::shared_ptr<const Sequence>>();
  return sequence == nullptr ? nullptr : sequence->get();
}
const Mapping* Value::mapping() const {
  const auto* mapping = get_if<std::shared_ptr<const Mapping>>();
  return mapping == nullptr ? nullptr : mapping->get();
}
Object* Value::object() const {
  const auto* object = get_if<std::shared_ptr<Object>>();
  return object == nullptr ? nullptr : object->get();
}

Value Object::call(Interpreter&, const Arguments&) {
  throw Fault(fmt::format("'{}' object is not callable", type()));
}

std::optional<size_t> Mapping::place_of(std::string_view key) const {
  const auto has_key = [&](size_t place) {
    const std::string* text = entries[place].first.text();
    return text != nullptr && *text == key;
  };
  if (slots_.empty()) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (has_key(i)) return i;
    }
    return std::nullopt;
  }
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash_of(key) & mask; slots_[at] != 0; at = (at + 1) & mask) {
    if (has_key(slots_[at] - 1)) return slots_[at] - 1;
  }
  return std::nullopt;
}

std::optional<size_t> Mapping::place_of(const Value& key) const {
  if (const std::string* text = key.text()) return place_of(std::string_view(*text));
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].first.text() == nullptr && are_equal(entries[i].first, key)) return i;
  }
  return std::nullopt;
}

const Value* Mapping::find(const Value& key) const {
  const auto place = place_of(key);
  return place ? &entries[*place].second : nullptr;
}

const Value* Mapping::find(std::string_view key) const {
  const auto place = place_of(key);
  return place ? &entries[*place].second : nullptr;
}

// At most half of the slots are taken.
void Mapping::add_slot(size_t place) {
  constexpr size_t kFew = 8;
  if (entries.size() <= kFew) return;
  const auto put = [&](size_t index) {
    const std::string* text = entries[index].first.text();
    if (text == nullptr) return;
    const size_t mask = slots_.size() - 1;
    size_t at = hash_of(*text) & mask;
    while (slots_[at] != 0) at = (at + 1) & mask;
    slots_[at] = static_cast<uint32_t>(index + 1);
  };
  if (entries.size() * 2 <= slots_.size()) return put(place);
  slots_.assign(std::bit_ceil(entries.size() * 4), 0);
  for (size_t i = 0; i < entries.size(); ++i) put(i);
}

void Mapping::set(Value key, Value value) {
  require_hashable(key);
  depth = with_level(with_level(depth, key), value);
  if (const auto place = place_of(key)) {
    entries[*place].second = std::move(value);
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  add_slot(entries.size() - 1);
}

std::string_view type_name(const Value& value) {
  struct Names {
    std::string_view operator()(const None&) const { return "NoneType"; }
    std::string_view operator()(const Undefined&) const { return "Undefined"; }
    std::string_view operator()(bool) const { return "bool"; }
    std::string_view operator()(int64_t) const { return "int"; }
    std::string_view operator()(double) const { return "float"; }
    std::string_view operator()(const Value::Text&) const { return "str"; }
    std::string_view operator()(const std::shared_ptr<const Sequence>& sequence) const {
      switch (sequence->kind) {
        case Sequence::kList:
          return "list";
        case Sequence::kTuple:
          return "tuple";
        case Sequence::kView:
          return "dict_view";
        case Sequence::kIterator:
          break;
      }
      return "generator";
    }
    std::string_view operator()(const std::shared_ptr<const Mapping>&) const { return "dict"; }
    std::string_view operator()(const std::shared_ptr<Object>& object) const {
      return object->type();
    }
  };
  return std::visit(Names{}, value.data());
}

void require_defined(const Value& value) {
  if (const auto* undefined = value.get_if<Undefined>()) throw Fault(*undefined->problem);
}

std::optional<int64_t> as_integer(const Value& value) {
  if (const auto* integer = value.get_if<int64_t>()) return *integer;
  if (const auto* flag = value.get_if<bool>()) return *flag ? 1 : 0;
  return std::nullopt;
}

std::optional<double> as_number(const Value& value) {
  if (const auto* number = value.get_if<double>()) return *number;
  if (const auto integer = as_integer(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

bool is_true(const Value& value) {
  if (value.is_none() || value.is_undefined()) return false;
  if (const auto number = as_number(value)) return *number != 0;
  if (const std::string* text = value.text()) return !text->empty();
  if (const Mapping* mapping = value.mapping()) return !mapping->entries.empty();
  if (const Sequence* sequence = value.sequence()) {
    return sequence->kind == Sequence::kIterator || !sequence->items.empty();
  }
  return true;
}

bool are_equal(const Value& a, const Value& b) {
  if (is_numeric(a) && is_numeric(b)) return exact_number(a) == exact_number(b);
  if (a.data().index() != b.data().index()) return false;
  if (a.is_none() || a.is_undefined()) return true;
  if (const std::string* text = a.text()) return *text == *b.text();
  if (const Sequence* first = a.sequence()) {
    const Sequence* second = b.sequence();
    if (!first->is_indexed()) return first == second;
    return first->kind == second->kind &&
           std::equal(first->items.begin(), first->items.end(), second->items.begin(),
                      second->items.end(), are_equal);
  }
  if (const Mapping* first = a.mapping()) {
    const Mapping* second = b.mapping();
    if (first->entries.size() != second->entries.size()) return false;
    return std::all_of(first->entries.begin(), first->entries.end(), [&](const auto& entry) {
      const Value* other = second->find(entry.first);
      return other != nullptr && are_equal(entry.second, *other);
    });
  }
  return a.object() == b.object();
}

bool is_less(const Value& a, const Value& b, std::string_view sign) {
  require_defined(a);
  require_defined(b);
  if (is_numeric(a) && is_numeric(b)) return exact_number(a) < exact_number(b);
  // The order of UTF-8 bytes is that of code points.
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() < *b.text();
  const Sequence* first = a.sequence();
  const Sequence* second = b.sequence();
  if (first != nullptr && second != nullptr && first->kind == second->kind && first->is_indexed()) {
    const size_t common = std::min(first->items.size(), second->items.size());
    for (size_t i = 0; i < common; ++i) {
      if (!are_equal(first->items[i], second->items[i])) {
        return is_less(first->items[i], second->items[i], sign);
      }
    }
    return first->items.size() < second->items.size();
  }
  throw Fault(fmt::format("'{}' not supported between instances of '{}' and '{}'", sign,
                          type_name(a), type_name(b)));
}

bool contains(const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (const std::string* text = container.text()) {
    require_defined(item);
    if (item.text() == nullptr) {
      throw Fault(
          fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
    }
    return text->find(*item.text()) != std::string::npos;
  }
  if (const Sequence* sequence = container.sequence()) {
    return std::any_of(sequence->items.begin(), sequence->items.end(),
                       [&](const Value& one) { return are_equal(one, item); });
  }
  if (const Mapping* mapping = container.mapping()) {
    require_hashable(item);
    return mapping->find(item) != nullptr;
  }
  throw Fault(fmt::format("argument of type '{}' is not iterable", type_name(container)));
}

void append_text(std::string& out, const Value& value) {
  if (const std::string* text = value.text()) {
    out += *text;
  } else if (!value.is_undefined()) {
    append_repr(out, value);
  }
}

void append_repr(std::string& out, const Value& value) {
  struct Appended {
    void operator()(const None&) const { out += "None"; }
    void operator()(const Undefined&) const { out += "Undefined"; }
    void operator()(bool flag) const { out += flag ? "True" : "False"; }
    void operator()(int64_t number) const { out += std::to_string(number); }
    void operator()(double number) const {
      if (std::isnan(number)) {
        out += "nan";
      } else if (std::isinf(number)) {
        out += number < 0 ? "-inf" : "inf";
      } else {
        out += python_repr(number);
      }
    }
    void operator()(const Value::Text& text) const { append_quoted(out, *text); }
    void operator()(const std::shared_ptr<const Sequence>& sequence) const {
      switch (sequence->kind) {
        case Sequence::kList:
          out += '[';
          append_items(out, sequence->items);
          out += ']';
          return;
        case Sequence::kTuple:
          out += '(';
          append_items(out, sequence->items);
          out += sequence->items.size() == 1 ? ",)" : ")";
          return;
        case Sequence::kIterator:
        case Sequence::kView:
          throw Fault("a generator or view cannot be printed; use the filter list");
      }
    }
    void operator()(const std::shared_ptr<const Mapping>& mapping) const {
      out += '{';
      const char* separator = "";
      for (const auto& [key, element] : mapping->entries) {
        out += separator;
        append_repr(out, key);
        out += ": ";
        append_repr(out, element);
        separator = ", ";
      }
      out += '}';
    }
    void operator()(const std::shared_ptr<Object>& object) const {
      throw Fault(fmt::format("a {} cannot be printed", object->type()));
    }
    std::string& out;
  };
  require_size(static_cast<int64_t>(out.size()));
  std::visit(Appended{out}, value.data());
}

std::string text_of(const Value& value) {
  std::string text;
  append_text(text, value);
  return text;
}

std::vector<Value> elements_of(const Value& value) {
  if (value.is_undefined()) return {};
  if (const Sequence* sequence = value.sequence()) return sequence->items;
  std::vector<Value> elements;
  if (const Mapping* mapping = value.mapping()) {
    elements.reserve(mapping->entries.size());
    for (const auto& entry : mapping->entries) elements.push_back(entry.first);
    return elements;
  }
  if (const std::string* text = value.text()) {
    const char* const end = text->data() + text->size();
    for (const char* at = text->data(); at < end;) {
      const int64_t length = decode_utf8(at, end).length;
      elements.emplace_back(std::string(at, static_cast<size_t>(length)));
      at += length;
    }
    return elements;
  }
  throw Fault(fmt::format("'{}' object is not iterable", type_name(value)));
}

int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const std::string* text = value.text()) return num_characters(*text);
  if (const Mapping* mapping = value.mapping()) return std::ssize(mapping->entries);
  const Sequence* sequence = value.sequence();
  if (sequence != nullptr && sequence->kind != Sequence::kIterator) {
    return std::ssize(sequence->items);
  }
  throw Fault(fmt::format("object of type '{}' has no len()", type_name(value)));
}

void require_size(int64_t size) {
  if (size > kMaxSize) {
    throw Fault(
        fmt::format("a text or list of {} bytes or elements is larger than {}", size, kMaxSize));
  }
}

int64_t checked_multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw Fault("an integer exceeds 64 bits");
  return product;
}

}  // namespace megatron::jinja
