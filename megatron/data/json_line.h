#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// Extracts the texts under some keys from one JSON object per line, by the rules of Python's json
// module: the last of equal keys wins, NaN and Infinity are numbers, numbers have no limit. Reports
// anything but JSON in valid UTF-8 as a problem. Not thread safe.
class JsonLineParser {
 public:
  // Readable bytes that parse() needs after a line; their content does not matter.
  static constexpr size_t kPadding = 64;

  explicit JsonLineParser(std::vector<std::string> keys);
  ~JsonLineParser();
  JsonLineParser(const JsonLineParser&) = delete;
  JsonLineParser& operator=(const JsonLineParser&) = delete;

  // Returns the problem of the line, if any. REQUIRES: kPadding bytes after `line` are readable.
  std::optional<std::string> parse(std::string_view line);
  // The texts under keys[key] from the last parse(): one text, or those of a list. Valid until the
  // next parse().
  std::span<const std::string_view> texts(size_t key) const { return texts_[key]; }

 private:
  struct Fast;

  // False if the line needs the next parser.
  bool parse_flat(std::string_view line);
  // False if the line needs the slow parser, which also reports problems.
  bool parse_fast(std::string_view line);

  std::vector<std::string> keys_;
  std::vector<std::vector<std::string_view>> texts_;  // by key
  std::unique_ptr<Fast> fast_;
  std::vector<std::vector<std::string>> storage_;  // owns the slow parser's texts_
};

}  // namespace megatron
