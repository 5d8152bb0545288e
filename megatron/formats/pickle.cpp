#include "megatron/formats/pickle.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/formats/torch_globals.h"

namespace megatron {
namespace {

constexpr size_t kMaxPickleDepth = 128;
constexpr size_t kMaxGlobal = 160;  // characters of a qualified name
constexpr uint32_t kMaxMemo = 1u << 24;
constexpr size_t kFreeBytes = 1u << 20;  // the copies that any small pickle may make

// The operations that torch.save and its users emit. On disk: never renumber.
enum class Op : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersid = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyTuple = ')',
  kEmptyList = ']',
  kEmptyDict = '}',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, PyDocument& document, const PickleOptions& options)
      : bytes_(bytes), document_(document), options_(options), budget_(bytes.size() + kFreeBytes) {}

  Unpickled run() {
    while (true) {
      const auto op = static_cast<Op>(number<uint8_t>());
      if (op == Op::kStop) break;
      step(op);
    }
    if (stack_.size() != 1 || !marks_.empty()) fail("the pickle ends with values left over");
    return {stack_.back(), at_};
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(fmt::format("pickle, byte {}: {}", at_, what));
  }

 private:
  // Raw input.
  std::span<const std::byte> take(uint64_t count) {
    if (count > bytes_.size() - at_) {
      fail(fmt::format("needs {} more bytes, {} are left", count, bytes_.size() - at_));
    }
    const auto taken = bytes_.subspan(at_, static_cast<size_t>(count));
    at_ += static_cast<size_t>(count);
    return taken;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string text(uint64_t count) {
    const auto raw = take(count);
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }
  std::string line() {
    const size_t begin = at_;
    while (number<char>() != '\n') {
      if (at_ - begin > kMaxGlobal) fail("the name of a class is too long");
    }
    return {reinterpret_cast<const char*>(bytes_.data()) + begin, at_ - begin - 1};
  }

  // The stack.
  template <class T>
  void push_new(T content) {
    stack_.push_back(document_.make(std::move(content)));
  }
  PyValue pop() {
    if (stack_.size() <= floor()) fail("a value is missing on the stack");
    const PyValue value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PyValue top() const {
    if (stack_.size() <= floor()) fail("a value is missing on the stack");
    return stack_.back();
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::vector<PyValue> pop_to_mark() {
    if (marks_.empty()) fail("there is no mark on the stack");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PyValue> values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }
  void push_tuple(size_t count) {
    PyTuple tuple;
    tuple.items.resize(count);
    for (size_t i = count; i-- > 0;) tuple.items[i] = pop();
    push_new(std::move(tuple));
  }

  void memoize(uint64_t id) {
    if (id > kMaxMemo) fail(fmt::format("memo {} is beyond the limit", id));
    memo_[static_cast<uint32_t>(id)] = top();
  }
  void recall(uint32_t id) {
    const auto found = memo_.find(id);
    if (found == memo_.end()) fail(fmt::format("memo {} is not set", id));
    stack_.push_back(found->second);
  }

  void append(PyValue target, std::span<const PyValue> values) {
    PyNode* node = target.node();
    auto* list = node != nullptr ? std::get_if<PyList>(&node->content) : nullptr;
    if (list == nullptr) fail(fmt::format("values are appended to {}", target.description()));
    list->items.insert(list->items.end(), values.begin(), values.end());
  }
  void set_items(PyValue target, std::span<const PyValue> values) {
    PyNode* node = target.node();
    auto* dict = node != nullptr ? std::get_if<PyDict>(&node->content) : nullptr;
    if (dict == nullptr || values.size() % 2 != 0) {
      fail(fmt::format("{} entries are set in {}", values.size(), target.description()));
    }
    for (size_t i = 0; i < values.size(); i += 2) {
      dict->entries.emplace_back(values[i], values[i + 1]);
    }
  }

  void push_global(std::string_view module, std::string_view name) {
    if (module.size() + name.size() > kMaxGlobal) fail("the name of a class is too long");
    std::string full = normalized_global(module, name);
    if (!options_.keep_unexpected_globals && !is_expected_global(full)) {
      fail(
          fmt::format("names {}, which no checkpoint needs; the file may be hostile "
                      "(inspect-checkpoint shows what it holds)",
                      full));
    }
    stack_.push_back(global_value(document_, std::move(full)));
  }

  // Counts a call's copies of its arguments, so that a short pickle cannot multiply a long text.
  void charge(PyValue arguments) {
    size_t copied = 0;
    for (const PyValue argument : arguments.items()) {
      copied += argument.text().value_or("").size() + argument.items().size();
      if (const PyBytes* bytes = argument.bytes()) copied += bytes->bytes.size();
    }
    if (copied > budget_) fail("copies of its parts would be far larger than the file");
    budget_ -= copied;
  }
  void call() {
    const PyValue arguments = pop();
    const PyValue callable = pop();
    charge(arguments);
    stack_.push_back(located([&] { return called(document_, callable, arguments); }));
  }
  // Adds the position to errors of `make`.
  template <class F>
  PyValue located(F&& make) {
    try {
      return make();
    } catch (const FormatError& error) {
      fail(error.what());
    }
  }
  void build() {
    const PyValue state = pop();
    const PyValue target = top();
    PyNode* node = target.node();
    if (node == nullptr) return;
    // Attributes of tensors and dictionaries (hooks, metadata) are not needed.
    if (auto* object = std::get_if<std::unique_ptr<PyObject>>(&node->content)) {
      (*object)->state = state;
    }
  }

  void push_long(uint64_t count) {
    const auto raw = take(count);
    if (count > sizeof(int64_t)) {  // stored as bytes
      auto object = std::make_unique<PyObject>();
      object->type = "builtins.int";
      object->arguments = document_.make(
          PyBytes{std::string(reinterpret_cast<const char*>(raw.data()), raw.size())});
      return push_new(std::move(object));
    }
    uint64_t value = 0;
    for (size_t i = 0; i < raw.size(); ++i) {
      value |= static_cast<uint64_t>(raw[i]) << (8 * i);
    }
    if (count > 0 && count < sizeof(value) && (static_cast<uint8_t>(raw.back()) & 0x80u) != 0) {
      value |= ~uint64_t{0} << (8 * count);
    }
    push_new(static_cast<int64_t>(value));
  }
  void push_double() {
    uint64_t bits = number<uint64_t>();
    bits = __builtin_bswap64(bits);
    push_new(std::bit_cast<double>(bits));
  }

  void step(Op op);

  std::span<const std::byte> bytes_;
  PyDocument& document_;
  const PickleOptions& options_;
  size_t budget_;
  size_t at_ = 0;
  std::vector<PyValue> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint32_t, PyValue> memo_;
};

void Machine::step(Op op) {
  switch (op) {
    case Op::kStop:
      return;
    case Op::kProto:
      if (number<uint8_t>() > 5) fail("the protocol is newer than 5");
      return;
    case Op::kFrame:
      number<uint64_t>();
      return;
    case Op::kMark:
      return marks_.push_back(stack_.size());
    case Op::kPop:
      if (stack_.size() == floor() && !marks_.empty()) return marks_.pop_back();
      pop();
      return;
    case Op::kPopMark:
      pop_to_mark();
      return;
    case Op::kDup:
      return stack_.push_back(top());
    case Op::kNone:
      return stack_.push_back(PyValue());
    case Op::kNewTrue:
      return push_new(true);
    case Op::kNewFalse:
      return push_new(false);
    case Op::kBinInt:
      return push_new(static_cast<int64_t>(number<int32_t>()));
    case Op::kBinInt1:
      return push_new(static_cast<int64_t>(number<uint8_t>()));
    case Op::kBinInt2:
      return push_new(static_cast<int64_t>(number<uint16_t>()));
    case Op::kLong1:
      return push_long(number<uint8_t>());
    case Op::kLong4:
      return push_long(number<uint32_t>());
    case Op::kBinFloat:
      return push_double();
    case Op::kBinUnicode:
    case Op::kBinString:
      return push_new(text(number<uint32_t>()));
    case Op::kShortBinUnicode:
    case Op::kShortBinString:
      return push_new(text(number<uint8_t>()));
    case Op::kBinUnicode8:
      return push_new(text(number<uint64_t>()));
    case Op::kBinBytes:
      return push_new(PyBytes{text(number<uint32_t>())});
    case Op::kShortBinBytes:
      return push_new(PyBytes{text(number<uint8_t>())});
    case Op::kBinBytes8:
    case Op::kByteArray8:
      return push_new(PyBytes{text(number<uint64_t>())});
    case Op::kEmptyTuple:
      return push_tuple(0);
    case Op::kTuple1:
      return push_tuple(1);
    case Op::kTuple2:
      return push_tuple(2);
    case Op::kTuple3:
      return push_tuple(3);
    case Op::kTuple:
      return push_new(PyTuple{pop_to_mark()});
    case Op::kEmptyList:
    case Op::kEmptySet:
      return push_new(PyList{});
    case Op::kList:
    case Op::kFrozenSet:
      return push_new(PyList{pop_to_mark()});
    case Op::kAppend: {
      const PyValue value = pop();
      return append(top(), {&value, 1});
    }
    case Op::kAppends:
    case Op::kAddItems: {
      const std::vector<PyValue> values = pop_to_mark();
      return append(top(), values);
    }
    case Op::kEmptyDict:
      return push_new(PyDict{});
    case Op::kDict: {
      const std::vector<PyValue> values = pop_to_mark();
      push_new(PyDict{});
      return set_items(top(), values);
    }
    case Op::kSetItem: {
      const PyValue value = pop();
      const PyValue entry[] = {pop(), value};
      return set_items(top(), entry);
    }
    case Op::kSetItems: {
      const std::vector<PyValue> values = pop_to_mark();
      return set_items(top(), values);
    }
    case Op::kGlobal: {
      const std::string module = line();
      return push_global(module, line());
    }
    case Op::kStackGlobal: {
      const PyValue name = pop();
      const PyValue module = pop();
      if (!name.text() || !module.text()) fail("the name of a class is not a text");
      return push_global(*module.text(), *name.text());
    }
    case Op::kReduce:
    case Op::kNewObj:
      return call();
    case Op::kNewObjEx:
      pop();  // keyword arguments
      return call();
    case Op::kBuild:
      return build();
    case Op::kBinPersid: {
      const PyValue id = pop();
      return stack_.push_back(located([&] { return persistent(document_, id); }));
    }
    case Op::kBinPut:
      return memoize(number<uint8_t>());
    case Op::kLongBinPut:
      return memoize(number<uint32_t>());
    case Op::kMemoize:
      return memoize(memo_.size());
    case Op::kBinGet:
      return recall(number<uint8_t>());
    case Op::kLongBinGet:
      return recall(number<uint32_t>());
  }
  fail(
      fmt::format("unknown operation {:#04x}; torch.save does not write it", static_cast<int>(op)));
}

// The direct parts of a value.
std::vector<PyValue> children_of(PyValue value) {
  std::vector<PyValue> children(value.items().begin(), value.items().end());
  if (const PyObject* object = value.object()) {
    children.push_back(object->arguments);
    children.push_back(object->state);
  } else {
    for (const auto& [key, entry] : value.entries()) {
      children.push_back(key);
      children.push_back(entry);
    }
  }
  return children;
}

// Code that walks the checked value needs no limits: it is a tree of bounded depth and size.
void check_tree(PyValue root, size_t pickle_bytes) {
  struct Visit {
    PyValue value;
    std::vector<PyValue> children;
    size_t next = 0;
    size_t size = 1;  // with all parts written out
  };
  const size_t limit = 8 * pickle_bytes + kFreeBytes;
  std::unordered_map<const PyNode*, size_t> sizes;  // 0: being visited
  std::vector<Visit> path;
  const auto enter = [&](PyValue value) {
    sizes[value.node()] = 0;
    path.push_back({value, children_of(value)});
    if (path.size() > kMaxPickleDepth) {
      throw FormatError(fmt::format("pickle: values nest deeper than {} levels", kMaxPickleDepth));
    }
  };
  if (root.node() != nullptr) enter(root);
  while (!path.empty()) {
    Visit& visit = path.back();
    if (visit.next == visit.children.size()) {
      if (visit.size > limit) {
        throw FormatError("pickle: its values are far larger than the file, by shared parts");
      }
      sizes[visit.value.node()] = visit.size;
      const size_t size = visit.size;
      path.pop_back();
      if (!path.empty()) path.back().size += size;
      continue;
    }
    const PyValue child = visit.children[visit.next++];
    if (child.node() == nullptr) continue;
    const auto known = sizes.find(child.node());
    if (known == sizes.end()) {
      enter(child);
    } else if (known->second == 0) {
      throw FormatError("pickle: a value contains itself");
    } else {
      visit.size += known->second;
    }
  }
}

}  // namespace

Unpickled unpickle(std::span<const std::byte> bytes, PyDocument& document,
                   const PickleOptions& options) {
  Machine machine(bytes, document, options);
  const Unpickled result = machine.run();
  check_tree(result.value, result.bytes);
  return result;
}

}  // namespace megatron
