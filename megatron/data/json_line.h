#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// Reads the texts under some keys of one JSON object per line, by the rules of Python's json
// module: the last of equal keys wins, NaN and Infinity are numbers, numbers have no limit.
// Anything else that is not JSON in valid UTF-8 is a problem. One thread.
class JsonLineParser {
 public:
  // Bytes behind a line that parse() may read, whatever they are.
  static constexpr size_t kPadding = 64;

  explicit JsonLineParser(std::vector<std::string> keys);
  ~JsonLineParser();
  JsonLineParser(const JsonLineParser&) = delete;
  JsonLineParser& operator=(const JsonLineParser&) = delete;

  // What is wrong with the line, or nothing. REQUIRES: kPadding bytes behind `line` are readable.
  std::optional<std::string> parse(std::string_view line);
  // What the last parse() found under keys[key]: the text, or the texts of a list. Good until the
  // next parse().
  std::span<const std::string_view> texts(size_t key) const { return texts_[key]; }

 private:
  struct Fast;

  // False if the line needs the slow parser, which also knows what is wrong.
  bool parse_fast(std::string_view line);

  std::vector<std::string> keys_;
  std::vector<std::vector<std::string_view>> texts_;  // by key
  std::unique_ptr<Fast> fast_;
  std::vector<std::vector<std::string>> storage_;  // what texts_ of the slow parser point to
};

}  // namespace megatron
