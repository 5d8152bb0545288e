#include "megatron/serve/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "megatron/core/error.h"
#include "megatron/core/printable.h"
#include "megatron/jinja/template.h"

namespace megatron::serve {
namespace {

using jinja::Mapping;
using jinja::Value;

constexpr int64_t kAnyLevels = 4;
constexpr int64_t kMaxSchemaDepth = 64;
constexpr int64_t kMaxItems = 1000;
constexpr size_t kMaxProperties = 256;
constexpr int64_t kMaxSchemas = 10'000;  // with those that $ref repeats

PatternPtr blank() { return repeated(literal(" "), 0, 1); }
PatternPtr comma() { return sequence({literal(","), blank()}); }
PatternPtr nothing() { return sequence({}); }

// A character of a string: all but quotes, backslashes and controls, or an escape.
PatternPtr string_character() {
  const CharacterRanges plain = {{0x20, '!'}, {'#', '['}, {']', kLastCharacter}};
  const PatternPtr hex = character_of({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
  const PatternPtr letter = character_of({{'"', '"'},
                                          {'/', '/'},
                                          {'\\', '\\'},
                                          {'b', 'b'},
                                          {'f', 'f'},
                                          {'n', 'n'},
                                          {'r', 'r'},
                                          {'t', 't'}});
  const PatternPtr escape =
      sequence({literal("\\"), choice({letter, sequence({literal("u"), repeated(hex, 4, 4)})})});
  return choice({character_of(plain), escape});
}

// Patterns are immutable; a schema shares those that it repeats.
PatternPtr string_of(int64_t least, int64_t most) {
  static const PatternPtr character = string_character();
  return sequence({literal("\""), repeated(character, least, most), literal("\"")});
}

PatternPtr integer() {
  static const PatternPtr pattern = pattern_of_regex("-?(0|[1-9][0-9]*)");
  return pattern;
}
PatternPtr number() {
  static const PatternPtr pattern =
      sequence({integer(), pattern_of_regex("(\\.[0-9]+)?([eE][+-]?[0-9]+)?")});
  return pattern;
}
PatternPtr boolean() { return choice({literal("true"), literal("false")}); }

PatternPtr in_brackets(const char* open, PatternPtr inner, const char* close) {
  return sequence({literal(open), std::move(inner), literal(close)});
}

PatternPtr list_of(const PatternPtr& item) {
  return in_brackets("[", repeated(separated(item, comma()), 0, 1), "]");
}

PatternPtr member(PatternPtr key, PatternPtr value) {
  return sequence({std::move(key), literal(":"), blank(), std::move(value)});
}

PatternPtr object_of(const PatternPtr& value) {
  return in_brackets("{", repeated(separated(member(string_of(0, -1), value), comma()), 0, 1), "}");
}

PatternPtr any_json(int64_t levels) {
  std::vector<PatternPtr> options = {string_of(0, -1), number(), boolean(), literal("null")};
  if (levels > 1) {
    const PatternPtr inner = any_json(levels - 1);
    options.push_back(list_of(inner));
    options.push_back(object_of(inner));
  }
  return choice(std::move(options));
}

class SchemaReader {
 public:
  explicit SchemaReader(const Value& root) : root_(root) {}

  PatternPtr pattern_of(const Value& schema) {
    if (++depth_ > kMaxSchemaDepth) {
      throw ConfigError("the schema is nested too deeply or a $ref contains itself");
    }
    if (++num_schemas_ > kMaxSchemas) throw ConfigError("the schema is too large");
    PatternPtr result = read(schema);
    --depth_;
    return result;
  }

 private:
  static const Value* find(const Mapping& schema, std::string_view name) {
    return schema.find(name);
  }
  static const std::vector<Value>& list(const Value& value, std::string_view name) {
    if (value.sequence() == nullptr) throw ConfigError(fmt::format("{} must be a list", name));
    return value.sequence()->items;
  }
  static int64_t count(const Mapping& schema, std::string_view name, int64_t fallback) {
    const Value* value = find(schema, name);
    if (value == nullptr) return fallback;
    const auto given = jinja::as_integer(*value);
    if (!given || *given < 0 || *given > kMaxItems) {
      throw ConfigError(fmt::format("{} must be an integer between 0 and {}", name, kMaxItems));
    }
    return *given;
  }

  PatternPtr read(const Value& value) {
    if (const bool* flag = value.get_if<bool>()) {
      if (*flag) return any_json(kAnyLevels);
      throw ConfigError("the schema false allows nothing");
    }
    if (value.mapping() == nullptr) throw ConfigError("a schema must be an object, true or false");
    const Mapping& schema = *value.mapping();
    for (const char* name :
         {"allOf", "not", "if", "patternProperties", "minimum", "maximum", "exclusiveMinimum",
          "exclusiveMaximum", "multipleOf", "uniqueItems", "propertyNames", "minProperties",
          "maxProperties", "contains", "dependentRequired"}) {
      if (find(schema, name) == nullptr) continue;
      throw ConfigError(fmt::format("{} is not supported in a schema; leave it out", name));
    }
    if (const Value* reference = find(schema, "$ref")) return pattern_of(referred(*reference));
    if (const Value* constant = find(schema, "const")) return constant_text(*constant);
    if (const Value* values = find(schema, "enum")) {
      std::vector<PatternPtr> options;
      for (const Value& one : list(*values, "enum")) options.push_back(constant_text(one));
      return choice(std::move(options));
    }
    for (const char* name : {"anyOf", "oneOf"}) {
      const Value* schemas = find(schema, name);
      if (schemas == nullptr) continue;
      std::vector<PatternPtr> options;
      for (const Value& one : list(*schemas, name)) options.push_back(pattern_of(one));
      return choice(std::move(options));
    }
    const Value* type = find(schema, "type");
    if (type == nullptr) {
      if (find(schema, "properties") != nullptr) return of_type("object", schema);
      return any_json(kAnyLevels);
    }
    if (type->text() != nullptr) return of_type(*type->text(), schema);
    std::vector<PatternPtr> options;
    for (const Value& one : list(*type, "type")) options.push_back(of_type(text_of(one), schema));
    return choice(std::move(options));
  }

  static PatternPtr constant_text(const Value& value) {
    return literal(jinja::json_of_value(value));
  }

  const Value& referred(const Value& reference) const {
    const std::string path = text_of(reference);
    const Value* at = &root_;
    if (!path.starts_with('#')) {
      throw ConfigError(fmt::format("$ref {} is not supported; begin with #/", shortened(path)));
    }
    std::string_view rest = std::string_view(path).substr(1);
    while (!rest.empty()) {
      rest.remove_prefix(1);
      const std::string_view name = rest.substr(0, rest.find('/'));
      rest.remove_prefix(name.size());
      at = at->mapping() == nullptr ? nullptr : at->mapping()->find(name);
      if (at == nullptr) throw ConfigError(fmt::format("$ref {} leads nowhere", shortened(path)));
    }
    return *at;
  }

  PatternPtr of_type(const std::string& type, const Mapping& schema) {
    if (type == "string") {
      if (const Value* regex = find(schema, "pattern")) {
        return in_brackets("\"", pattern_of_regex(text_of(*regex)), "\"");
      }
      return string_of(count(schema, "minLength", 0), count(schema, "maxLength", -1));
    }
    if (type == "integer") return integer();
    if (type == "number") return number();
    if (type == "boolean") return boolean();
    if (type == "null") return literal("null");
    if (type == "array") return array(schema);
    if (type == "object") return object(schema);
    throw ConfigError(fmt::format("type {} is not known", shortened(type)));
  }

  PatternPtr array(const Mapping& schema) {
    const Value* items = find(schema, "items");
    const int64_t least = count(schema, "minItems", 0);
    const int64_t most = count(schema, "maxItems", -1);
    if (const Value* first = find(schema, "prefixItems")) {
      std::vector<PatternPtr> parts;
      for (const Value& one : list(*first, "prefixItems")) {
        if (!parts.empty()) parts.push_back(comma());
        parts.push_back(pattern_of(one));
      }
      return in_brackets("[", sequence(std::move(parts)), "]");
    }
    const PatternPtr item = items == nullptr ? any_json(kAnyLevels - 1) : pattern_of(*items);
    if (most == 0) return literal("[]");
    if (least <= 1 && most < 0) {
      const PatternPtr some = separated(item, comma());
      return in_brackets("[", repeated(some, least, 1), "]");
    }
    const int64_t more = std::max<int64_t>(least, 1) - 1;
    const PatternPtr rest = repeated(sequence({comma(), item}), more, most < 0 ? -1 : most - 1);
    const PatternPtr some = sequence({item, rest});
    return in_brackets("[", least == 0 ? repeated(some, 0, 1) : some, "]");
  }

  PatternPtr object(const Mapping& schema) {
    const Value* properties = find(schema, "properties");
    const Value* additional = find(schema, "additionalProperties");
    if (properties == nullptr || properties->mapping() == nullptr ||
        properties->mapping()->entries.empty()) {
      const bool has_schema = additional != nullptr && additional->mapping() != nullptr;
      return object_of(has_schema ? pattern_of(*additional) : any_json(kAnyLevels - 1));
    }
    if (properties->mapping()->entries.size() > kMaxProperties) {
      throw ConfigError(fmt::format("an object has more than {} properties", kMaxProperties));
    }
    std::vector<Value> required;
    if (const Value* names = find(schema, "required")) required = list(*names, "required");
    std::vector<Property> all;
    for (const auto& [name, one] : properties->mapping()->entries) {
      const bool is_required =
          std::any_of(required.begin(), required.end(),
                      [&name = name](const Value& other) { return jinja::are_equal(other, name); });
      all.push_back({member(constant_text(name), pattern_of(one)), is_required});
    }
    return in_brackets("{", properties_from(all, 0), "}");
  }

  struct Property {
    PatternPtr pattern;
    bool is_required;
  };

  // The properties from `first` on, where none has been written before: one of them is the first
  // that is written.
  static PatternPtr properties_from(const std::vector<Property>& all, size_t first) {
    if (first == all.size()) return nothing();
    std::vector<PatternPtr> rest = {all[first].pattern};
    for (size_t i = first + 1; i < all.size(); ++i) {
      const PatternPtr next = sequence({comma(), all[i].pattern});
      rest.push_back(all[i].is_required ? next : repeated(next, 0, 1));
    }
    PatternPtr begun = sequence(std::move(rest));
    if (all[first].is_required) return begun;
    return choice({begun, properties_from(all, first + 1)});
  }

  const Value& root_;
  int64_t depth_ = 0;
  int64_t num_schemas_ = 0;
};

}  // namespace

PatternPtr pattern_of_schema(const Value& schema) {
  return SchemaReader(schema).pattern_of(schema);
}

PatternPtr any_json_object() { return object_of(any_json(kAnyLevels - 1)); }

}  // namespace megatron::serve
