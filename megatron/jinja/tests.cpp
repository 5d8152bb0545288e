#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "megatron/core/printable.h"
#include "megatron/jinja/functions.h"
#include "megatron/jinja/text.h"

namespace megatron::jinja {
namespace {

using Predicate = bool (*)(const Value& value);
using Relation = bool (*)(const Value& value, const Value& other);

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.text() != nullptr || value.sequence() != nullptr ||
         value.mapping() != nullptr;
}
bool has_length(const Value& value) {
  const Sequence* sequence = value.sequence();
  return is_iterable(value) && (sequence == nullptr || sequence->is_indexed());
}
bool is_flag(const Value& value, bool flag) {
  const bool* given = value.get_if<bool>();
  return given != nullptr && *given == flag;
}
bool is_same(const Value& a, const Value& b) {
  if (a.data().index() != b.data().index()) return false;
  if (a.sequence() != nullptr) return a.sequence() == b.sequence();
  if (a.mapping() != nullptr) return a.mapping() == b.mapping();
  return are_equal(a, b);
}
bool has_rest(const Value& value, const Value& by, int64_t rest) {
  return are_equal(binary("%", value, by), Value(rest));
}

struct Test {
  std::string_view name;
  Predicate holds;
};

constexpr std::array kTests = {
    Test{"boolean", [](const Value& v) { return v.get_if<bool>() != nullptr; }},
    Test{"callable",
         [](const Value& v) { return v.object() != nullptr && v.object()->is_callable(); }},
    Test{"defined", [](const Value& v) { return !v.is_undefined(); }},
    Test{"escaped", [](const Value&) { return false; }},
    Test{"even", [](const Value& v) { return has_rest(v, Value(int64_t{2}), 0); }},
    Test{"false", [](const Value& v) { return is_flag(v, false); }},
    Test{"filter", [](const Value& v) { return v.text() != nullptr && is_filter(*v.text()); }},
    Test{"float", [](const Value& v) { return v.get_if<double>() != nullptr; }},
    Test{"integer", [](const Value& v) { return v.get_if<int64_t>() != nullptr; }},
    Test{"iterable", is_iterable},
    Test{"lower", [](const Value& v) { return *satisfies(text_of(v), "islower"); }},
    Test{"mapping", [](const Value& v) { return v.mapping() != nullptr; }},
    Test{"none", [](const Value& v) { return v.is_none(); }},
    Test{"number", [](const Value& v) { return as_number(v).has_value(); }},
    Test{"odd", [](const Value& v) { return has_rest(v, Value(int64_t{2}), 1); }},
    Test{"sequence", has_length},
    Test{"string", [](const Value& v) { return v.text() != nullptr; }},
    Test{"test", [](const Value& v) { return v.text() != nullptr && is_test(*v.text()); }},
    Test{"true", [](const Value& v) { return is_flag(v, true); }},
    Test{"undefined", [](const Value& v) { return v.is_undefined(); }},
    Test{"upper", [](const Value& v) { return *satisfies(text_of(v), "isupper"); }},
};

bool is_at_most(const Value& a, const Value& b) { return is_less(a, b) || are_equal(a, b); }

struct RelationTest {
  std::array<std::string_view, 3> names;
  Relation holds;
};

constexpr std::array kRelations = {
    RelationTest{{"==", "eq", "equalto"}, are_equal},
    RelationTest{{"!=", "ne", "ne"},
                 [](const Value& a, const Value& b) { return !are_equal(a, b); }},
    RelationTest{{"<", "lt", "lessthan"},
                 [](const Value& a, const Value& b) { return is_less(a, b); }},
    RelationTest{{"<=", "le", "le"}, is_at_most},
    RelationTest{{">", "gt", "greaterthan"},
                 [](const Value& a, const Value& b) { return is_less(b, a, ">"); }},
    RelationTest{{">=", "ge", "ge"},
                 [](const Value& a, const Value& b) { return is_at_most(b, a); }},
    RelationTest{{"in", "in", "in"}, [](const Value& a, const Value& b) { return contains(b, a); }},
    RelationTest{{"sameas", "sameas", "sameas"}, is_same},
    RelationTest{{"divisibleby", "divisibleby", "divisibleby"},
                 [](const Value& a, const Value& b) { return has_rest(a, b, 0); }},
};

Predicate predicate_of(std::string_view name) {
  const auto place =
      std::find_if(kTests.begin(), kTests.end(), [&](const Test& one) { return one.name == name; });
  return place == kTests.end() ? nullptr : place->holds;
}

Relation relation_of(std::string_view name) {
  for (const RelationTest& one : kRelations) {
    if (std::find(one.names.begin(), one.names.end(), name) != one.names.end()) return one.holds;
  }
  return nullptr;
}

}  // namespace

bool is_test(std::string_view name) {
  return predicate_of(name) != nullptr || relation_of(name) != nullptr;
}

bool apply_test(Interpreter&, std::string_view name, const Value& subject,
                const Arguments& arguments) {
  if (const Predicate holds = predicate_of(name)) {
    Bound(arguments, name, {});
    return holds(subject);
  }
  const Relation holds = relation_of(name);
  if (holds == nullptr) throw Fault(fmt::format("No test named '{}'.", shortened(name)));
  const Bound bound(arguments, name, {"other"}, 1);
  return holds(subject, bound.at(0));
}

}  // namespace megatron::jinja
