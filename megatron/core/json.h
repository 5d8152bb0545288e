#pragma once

#include <cstdint>
#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "megatron/core/error.h"

// All JSON that this program did not write itself (files, lines of a corpus, bodies of requests) is
// parsed here, under limits.
namespace megatron {

// Limits are checked before allocation: parsing stops at the first excess value. A value takes 16
// to 100 bytes, so max_values bounds the memory apart from strings. The defaults suit
// configurations, vocabularies and indices.
struct JsonLimits {
  int64_t max_depth = 32;                 // nested lists and objects
  int64_t max_values = int64_t{1} << 24;  // in lists and objects of all levels
  int64_t max_bytes = int64_t{1} << 30;   // of the text
  bool unique_keys = false;               // else the last of equal keys counts, as in Python
};

// Limits for one line of a corpus, or for a list of its documents.
inline constexpr JsonLimits kJsonLine = {.max_depth = 1000, .max_values = int64_t{1} << 26};

// The text exceeds a limit; it may be valid JSON.
class JsonTooLarge : public FormatError {
 public:
  using FormatError::FormatError;
};

// Throws FormatError "<subject>: <problem and place>; <remedy>", also for bytes that are not UTF-8
// and numbers that are too large, and JsonTooLarge. Never throws nlohmann's exceptions.
nlohmann::json parse_json(std::string_view text, const JsonLimits& limits,
                          std::string_view subject);
// The same; keeps the order of keys.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const JsonLimits& limits,
                                          std::string_view subject);

// The same for texts that may not be JSON: the result is_discarded() in place of an error.
nlohmann::json try_parse_json(std::string_view text, const JsonLimits& limits = {});
nlohmann::ordered_json try_parse_ordered_json(std::string_view text, const JsonLimits& limits = {});

// Describes a syntax error at which nlohmann's parser stopped, `byte` counted from 1: "is not valid
// JSON at byte 7 (line 2): it ends too early".
std::string json_problem(std::string_view text, size_t byte);

// Describes a schema violation in our words: "lacks the key x". `error` was thrown by nlohmann's
// at() or get().
std::string json_problem(const std::exception& error);

// value.dump(); bytes that are not UTF-8 become U+FFFD instead of an exception.
std::string dump_json(const nlohmann::json& value, int indent = -1);
std::string dump_json(const nlohmann::ordered_json& value, int indent = -1);

// The beginning of a value, for an error message: at most about 80 printable characters however
// large or deep the value is.
std::string shortened_json(const nlohmann::json& value);

}  // namespace megatron
