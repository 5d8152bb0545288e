#pragma once

#include <cstdint>
#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "megatron/core/error.h"

// The one way from text to JSON: every document that this program did not write itself, whether a
// file, a line of a corpus or the body of a request, comes in through here.
namespace megatron {

// They hold before memory is taken: reading ends at the first value too many. A value takes 16 to
// 100 bytes, so max_values bounds the memory that texts do not take. The defaults are for files
// that describe something: configurations, vocabularies, indices.
struct JsonLimits {
  int64_t max_depth = 32;                 // lists and objects in each other
  int64_t max_values = int64_t{1} << 24;  // in lists and objects of all levels
  int64_t max_bytes = int64_t{1} << 30;   // of the text
  bool unique_keys = false;               // else the last of equal keys counts, as in Python
};

// Limits of one line of a corpus, or of a list of its documents.
inline constexpr JsonLimits kJsonLine = {.max_depth = 1000, .max_values = int64_t{1} << 26};

// The text is beyond a limit; its JSON may be right.
class JsonTooLarge : public FormatError {
 public:
  using FormatError::FormatError;
};

// Throws FormatError "<subject>: <problem and place>; <remedy>", also for bytes that are not UTF-8
// and numbers that are too large, and JsonTooLarge. Never throws exceptions of the library.
nlohmann::json parse_json(std::string_view text, const JsonLimits& limits,
                          std::string_view subject);
// The same; keeps the order of keys.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const JsonLimits& limits,
                                          std::string_view subject);

// The same for texts that may be something else than JSON: is_discarded() in place of an error.
nlohmann::json try_parse_json(std::string_view text, const JsonLimits& limits = {});
nlohmann::ordered_json try_parse_ordered_json(std::string_view text, const JsonLimits& limits = {});

// Describes a syntax error at which nlohmann's parser stopped, `byte` counted from 1: "is not valid
// JSON at byte 7 (line 2): it ends too early".
std::string json_problem(std::string_view text, size_t byte);

// Describes a schema violation in our words: "lacks the key x". `error` is what nlohmann's at() or
// get() has thrown.
std::string json_problem(const std::exception& error);

// value.dump(); bytes that are not UTF-8 become U+FFFD instead of an exception.
std::string dump_json(const nlohmann::json& value, int indent = -1);
std::string dump_json(const nlohmann::ordered_json& value, int indent = -1);

// The beginning of a value, for an error message: at most about 80 printable characters however
// large or deep the value is.
std::string shortened_json(const nlohmann::json& value);

}  // namespace megatron
