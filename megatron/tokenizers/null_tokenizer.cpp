#include "megatron/tokenizers/null_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "megatron/core/error.h"

namespace megatron {
namespace {

std::string_view stripped_number(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

class NullEncoder final : public Encoder {
 public:
  explicit NullEncoder(int64_t vocab_size) : vocab_size_(vocab_size) {}

  void append(std::string_view text, std::vector<int32_t>& ids) override {
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(' ', begin), text.size());
      ids.push_back(parse(text.substr(begin, end - begin)));
      begin = end + 1;
    }
  }

 private:
  int32_t parse(std::string_view item) const {
    const std::string_view digits = stripped_number(item);
    int64_t id = -1;
    const char* const end = digits.data() + digits.size();
    const std::from_chars_result result = std::from_chars(digits.data(), end, id);
    if (digits.empty() || result.ec != std::errc() || result.ptr != end || id < 0 ||
        id >= vocab_size_) {
      throw FormatError(fmt::format(
          "NullTokenizer: \"{}\" is not an id in [0, {}); the text must be decimal ids with one "
          "blank between them",
          item, vocab_size_));
    }
    return static_cast<int32_t>(id);
  }

  int64_t vocab_size_;
};

}  // namespace

NullTokenizer::NullTokenizer(int64_t num_ids) : num_ids_(num_ids) {
  invariant(num_ids > 0, "a NullTokenizer has at least one id");
}

std::unique_ptr<Encoder> NullTokenizer::make_encoder() const {
  return std::make_unique<NullEncoder>(vocab_size());
}

std::string NullTokenizer::decode(std::span<const int32_t> ids) const {
  return fmt::format("{}", fmt::join(ids.begin(), ids.end(), " "));
}

std::optional<int32_t> NullTokenizer::id_of(std::string_view piece) const {
  int32_t id = -1;
  const char* const end = piece.data() + piece.size();
  const std::from_chars_result result = std::from_chars(piece.data(), end, id);
  if (result.ec != std::errc() || result.ptr != end || id < 0 || id >= vocab_size()) {
    return std::nullopt;
  }
  return id;
}

std::optional<int32_t> NullTokenizer::special_id(SpecialToken token) const {
  if (token == SpecialToken::kEod) return static_cast<int32_t>(num_ids_);
  return std::nullopt;
}

TokenizerDescription NullTokenizer::description() const {
  return {"_NullTokenizer", {std::nullopt}, {{"vocab_size", std::to_string(num_ids_)}}};
}

}  // namespace megatron
