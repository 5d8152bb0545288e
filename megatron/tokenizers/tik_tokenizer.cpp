#include "megatron/tokenizers/tik_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/json.h"
#include "megatron/tokenizers/base64.h"
#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/unicode_text.h"
#include "megatron/tokenizers/word_cache.h"

namespace megatron {
namespace {

constexpr int64_t kDefaultVocabSize = 131072;
const std::vector<std::string>& required_specials() {
  static const std::vector<std::string> specials = {"<unk>", "<s>",   "</s>", "<mask>",
                                                    "<pad>", "<cls>", "<sep>"};
  return specials;
}

TikTokenizer::Options resolved(TikTokenizer::Options options) {
  if (options.vocab_size == 0) options.vocab_size = kDefaultVocabSize;
  if (options.special_tokens.empty()) options.special_tokens = required_specials();
  const std::set<std::string> distinct(options.special_tokens.begin(),
                                       options.special_tokens.end());
  if (distinct.size() != options.special_tokens.size()) {
    throw ConfigError("--tokenizer-special-tokens names a token twice; name each once");
  }
  for (const std::string& token : required_specials()) {
    if (distinct.contains(token)) continue;
    throw ConfigError(fmt::format("--tokenizer-special-tokens lacks {}; it must contain {}", token,
                                  fmt::join(required_specials(), " ")));
  }
  const auto count = static_cast<int64_t>(distinct.size());
  if (count > options.num_special_tokens || options.num_special_tokens >= options.vocab_size) {
    throw ConfigError(fmt::format(
        "--tiktoken-num-special-tokens {} must be at least the {} special tokens with a name, and "
        "less than --vocab-size {}",
        options.num_special_tokens, count, options.vocab_size));
  }
  for (int64_t i = count; i < options.num_special_tokens; ++i) {
    options.special_tokens.push_back(fmt::format("<SPECIAL_{}>", i));
  }
  return options;
}

// The bytes of the first `count` tokens.
std::vector<std::string> read_tokens(const std::string& file, int64_t count) {
  const nlohmann::json list = try_parse_json(read_text(file));
  if (!list.is_array() || static_cast<int64_t>(list.size()) < count) {
    throw FormatError(fmt::format(
        "{}: expected a JSON array of at least {} tokens, {}; give the list that belongs to the "
        "tokenizer, or a smaller --vocab-size",
        file, count,
        list.is_array() ? fmt::format("found {}", list.size()) : "found something else"));
  }
  std::vector<std::string> tokens;
  for (int64_t rank = 0; rank < count; ++rank) {
    const nlohmann::json& entry = list[static_cast<size_t>(rank)];
    const nlohmann::json nothing;
    const nlohmann::json& number = entry.is_object() ? entry.value("rank", nothing) : nothing;
    const nlohmann::json& text = entry.is_object() ? entry.value("token_bytes", nothing) : nothing;
    std::optional<std::string> bytes;
    if (text.is_string()) bytes = bytes_from_base64(text.get<std::string>());
    const bool is_byte = bytes && bytes->size() == 1 && static_cast<uint8_t>((*bytes)[0]) == rank;
    if (number != rank || !bytes || bytes->empty() || (rank < 256 && !is_byte)) {
      throw FormatError(fmt::format(
          "{}: entry {} must have \"rank\" {} and \"token_bytes\" in base64{}; is this a list for "
          "TikTokenizer?",
          file, rank, rank, rank < 256 ? ", of the single byte of that number" : ""));
    }
    tokens.push_back(std::move(*bytes));
  }
  return tokens;
}

// All merges of two tokens into a third, with the rank of the result. Symbols are ranks.
std::vector<BpeMerge> merges_of(const std::vector<std::string>& tokens) {
  std::unordered_map<std::string_view, int32_t> ranks;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    ranks.emplace(tokens[rank], static_cast<int32_t>(rank));
  }
  std::vector<BpeMerge> merges;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    const std::string_view token = tokens[rank];
    const auto number = static_cast<int32_t>(rank);
    if (ranks.at(token) != number) continue;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut));
      if (left == ranks.end()) continue;
      const auto right = ranks.find(token.substr(cut));
      if (right == ranks.end()) continue;
      merges.push_back({left->second, right->second, number, number});
    }
  }
  return merges;
}

}  // namespace

TikTokenizer::TikTokenizer(const std::string& model_file, Options options)
    : model_file_(model_file),
      options_(resolved(std::move(options))),
      tokens_(options_.special_tokens),
      merges_({}) {
  if (options_.pattern == Pattern::kV1) {
    classes_.emplace();
  } else {
    cased_classes_.emplace();
  }
  const int64_t num_special = options_.num_special_tokens;
  std::vector<std::string> ordinary = read_tokens(model_file, options_.vocab_size - num_special);
  merges_ = BpeMerges(merges_of(ordinary), MergeOrder::kOneByOne);
  for (size_t id = 0; id < tokens_.size(); ++id) {
    specials_.insert(tokens_[id], static_cast<int32_t>(id));
    begins_special_[static_cast<uint8_t>(tokens_[id][0])] = true;
  }
  for (std::string& token : ordinary) {
    ids_.emplace(token, static_cast<int32_t>(tokens_.size()));
    tokens_.push_back(std::move(token));
  }
}

class TikTokenizer::WordEncoder final : public Encoder {
 public:
  explicit WordEncoder(const TikTokenizer& tokenizer) : tokenizer_(tokenizer), batch_(cache_) {}

  void append(std::string_view text, std::vector<int32_t>& ids) override {
    std::string valid;
    if (!is_valid_utf8(text)) text = valid = with_valid_utf8(text);
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      ByteTrie::Match special;
      if (tokenizer_.begins_special_[static_cast<uint8_t>(text[at])]) {
        special = tokenizer_.specials_.longest_prefix(text.substr(at));
      }
      if (special.number < 0) {
        ++at;
        continue;
      }
      append_plain(text.substr(begin, at - begin), ids);
      ids.push_back(special.number);
      begin = at += special.length;
    }
    append_plain(text.substr(begin), ids);
  }

 private:
  void append_plain(std::string_view text, std::vector<int32_t>& ids) {
    const auto encode = [&](std::string_view word, std::vector<int32_t>& own) {
      encode_word(word, own);
    };
    constexpr WordRules kRules = {.max_digits = 1, .has_contractions = false};
    constexpr WordRules kCasedRules = {
        .max_digits = 1, .has_contractions = false, .cuts_before_upper = true};
    batch_.append(text, ids, encode, [&](const auto& emit) {
      if (tokenizer_.classes_) {
        llama3_split(text, kRules, *tokenizer_.classes_, emit);
      } else {
        gpt4o_split(text, kCasedRules, *tokenizer_.cased_classes_, emit);
      }
    });
  }

  void encode_word(std::string_view word, std::vector<int32_t>& ids) const {
    const auto whole = tokenizer_.ids_.find(std::string(word));
    if (whole != tokenizer_.ids_.end()) {
      ids.push_back(whole->second);
      return;
    }
    for (const char byte : word) ids.push_back(static_cast<uint8_t>(byte));
    tokenizer_.merges_.apply(ids);
    const auto first = static_cast<int32_t>(tokenizer_.options_.num_special_tokens);
    for (int32_t& id : ids) id += first;
  }

  const TikTokenizer& tokenizer_;
  WordCache cache_;
  WordBatch batch_;
};

std::unique_ptr<Encoder> TikTokenizer::make_encoder() const {
  return std::make_unique<WordEncoder>(*this);
}

std::vector<int32_t> TikTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  WordEncoder(*this).append(text, ids);
  return ids;
}

const std::string& TikTokenizer::bytes_of(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    throw FormatError(fmt::format("{}: no token has id {}; ids go from 0 to {}", model_file_, id,
                                  vocab_size() - 1));
  }
  return tokens_[static_cast<size_t>(id)];
}

std::string TikTokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) bytes += bytes_of(id);
  return with_valid_utf8(bytes);
}

std::string TikTokenizer::with_valid_text(int32_t id) const {
  return with_valid_utf8(bytes_of(id));
}

std::optional<int32_t> TikTokenizer::id_of(std::string_view piece) const {
  const ByteTrie::Match special = specials_.longest_prefix(piece);
  if (special.number >= 0 && special.length == piece.size()) return special.number;
  const auto found = ids_.find(std::string(piece));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

std::optional<int32_t> TikTokenizer::special_id(SpecialToken token) const {
  switch (token) {
    case SpecialToken::kCls:
      return id_of("<cls>");
    case SpecialToken::kSep:
      return id_of("<sep>");
    case SpecialToken::kMask:
      return id_of("<mask>");
    case SpecialToken::kPad:
      return id_of("<pad>");
    case SpecialToken::kBos:
      return id_of("<s>");
    case SpecialToken::kEos:
    case SpecialToken::kEod:
      return id_of("</s>");
  }
  return std::nullopt;
}

TokenizerDescription TikTokenizer::description() const {
  return {"TikTokenizer",
          {model_file_},
          {{"pattern", options_.pattern == Pattern::kV1 ? "v1" : "v2"},
           {"vocab_size", std::to_string(options_.vocab_size)},
           {"num_special_tokens", std::to_string(options_.num_special_tokens)}}};
}

}  // namespace megatron
