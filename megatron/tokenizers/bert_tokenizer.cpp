#include "megatron/tokenizers/bert_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/tokenizers/text_rules.h"
#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/word_cache.h"

namespace megatron {
namespace {

constexpr int kLog2CacheSets = 16;

std::string_view stripped(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r\x1C\x1D\x1E\x1F";
  const size_t begin = line.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(kBlanks) - begin + 1);
}

// Lines end with LF, CR LF or CR; nothing follows the last one's end.
std::vector<std::string> stripped_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\r\n"), text.size());
    lines.emplace_back(stripped(text.substr(0, end)));
    const bool is_pair = text.substr(end).starts_with("\r\n");
    text.remove_prefix(std::min(end + (is_pair ? 2 : 1), text.size()));
  }
  return lines;
}

void warn_if_cased(const std::string& vocab_file, const std::vector<std::string>& pieces) {
  const auto has_capital = [](const std::string& piece) {
    return !piece.starts_with('[') &&
           std::any_of(piece.begin(), piece.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  };
  const auto cased = std::count_if(pieces.begin(), pieces.end(), has_capital);
  if (cased * 10 < static_cast<int64_t>(pieces.size())) return;
  warn(fmt::format(
      "{}: {} of {} pieces have capital letters, which BertWordPieceLowerCase never produces; use "
      "--tokenizer-type BertWordPieceCase if this is the vocabulary of a cased model",
      vocab_file, cased, pieces.size()));
}

}  // namespace

BertTokenizer::BertTokenizer(const std::string& vocab_file, Options options)
    : vocab_file_(vocab_file),
      options_(options),
      pieces_(stripped_lines(read_text(vocab_file))),
      words_(options.lower_case) {
  for (size_t id = 0; id < pieces_.size(); ++id) {
    int32_t& known = ids_.try_emplace(pieces_[id], static_cast<int32_t>(id)).first->second;
    if (known != static_cast<int32_t>(id)) pieces_[static_cast<size_t>(known)].clear();
    known = static_cast<int32_t>(id);
  }
  std::vector<std::string_view> missing;
  for (const std::string_view token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    if (!ids_.contains(std::string(token))) missing.push_back(token);
  }
  if (!missing.empty()) {
    throw FormatError(fmt::format(
        "{}: {} {} missing; a BERT vocabulary has one piece on each line and these among them; is "
        "this the vocab.txt of a BERT?",
        vocab_file, fmt::join(missing, ", "), missing.size() == 1 ? "is" : "are"));
  }
  if (options.lower_case) warn_if_cased(vocab_file, pieces_);

  word_piece_ = WordPiece({.unknown_id = ids_.at("[UNK]")});
  for (const auto& [piece, id] : ids_) word_piece_.add_piece(piece, id);
  add_token("[BOS]");
  add_token("[EOS]");
  for (int64_t i = 0; i < options.vocab_extra_ids; ++i) {
    sentinels_.push_back(add_token(fmt::format("<extra_id_{}>", i)));
  }
}

int32_t BertTokenizer::add_token(const std::string& token) {
  const auto [entry, is_new] = ids_.try_emplace(token, static_cast<int32_t>(ids_.size()));
  if (is_new) {
    const auto index = static_cast<size_t>(entry->second);
    if (index >= pieces_.size()) pieces_.resize(index + 1);
    pieces_[index] = token;
  }
  return entry->second;
}

// Text is cut at blanks and around ideographs. A word of ASCII is cut at punctuation on the way;
// one with other characters is left to BertWords, as its lower case depends on its neighbours.
class BertTokenizer::WordEncoder final : public Encoder {
 public:
  WordEncoder(const BertTokenizer& tokenizer, int log2_sets)
      : tokenizer_(tokenizer), cache_(log2_sets) {}

  void append(std::string_view text, std::vector<int32_t>& ids) override {
    end_ = text.data() + text.size();
    for (const char* p = text.data(); p < end_;) {
      const CodePoint c = decode_utf8(p, end_);
      switch (tokenizer_.words_.of(c.value)) {
        case Kind::kBlank:
          p += c.length;
          break;
        case Kind::kIdeograph:
          append_cached(std::string_view(p, static_cast<size_t>(c.length)), ids);
          p += c.length;
          break;
        default:
          p = append_run(p, ids);
      }
    }
  }

 private:
  using Kind = BertWords::Kind;

  // Appends what stands between two blanks or ideographs; returns its end.
  const char* append_run(const char* begin, std::vector<int32_t>& ids) {
    const size_t ids_before = ids.size();
    const char* word = begin;
    const char* p = begin;
    for (; p < end_; ++p) {
      const Kind kind = tokenizer_.words_.of_byte(*p);
      if (kind == Kind::kWord) continue;
      if (kind == Kind::kBlank) break;
      if (kind != Kind::kPunctuation) {
        ids.resize(ids_before);
        p = tokenizer_.words_.end_of_run(p, end_);
        if (begin < p) append_cached({begin, p}, ids);
        return p;
      }
      if (word < p) append_cached({word, p}, ids);
      append_cached({p, p + 1}, ids);
      word = p + 1;
    }
    if (word < p) append_cached({word, p}, ids);
    return p;
  }

  void append_cached(std::string_view word, std::vector<int32_t>& ids) {
    if (word.size() <= WordCache::kMaxShortBytes) {
      const WordCache::ShortKey key = WordCache::short_key(word, end_ - word.data());
      if (const WordCache::ShortWord* known = cache_.find_short(key)) {
        ids.insert(ids.end(), known->ids.begin(), known->ids.begin() + known->num_ids);
        return;
      }
    } else if (const std::vector<int32_t>* known = cache_.find_long(word)) {
      ids.insert(ids.end(), known->begin(), known->end());
      return;
    }
    append_fresh(word, ids);
  }

  void append_fresh(std::string_view word, std::vector<int32_t>& ids) {
    const auto before = static_cast<int64_t>(ids.size());
    tokenizer_.words_.cut_run(
        word, [&](const std::string& part) { tokenizer_.word_piece_.append(part, ids); });
    const std::span<const int32_t> fresh(ids.begin() + before, ids.end());
    if (word.size() > WordCache::kMaxShortBytes) {
      cache_.insert_long(word, fresh);
    } else if (fresh.size() <= WordCache::kMaxShortIds) {
      cache_.insert_short(WordCache::short_key(word, end_ - word.data()), fresh);
    }
  }

  const BertTokenizer& tokenizer_;
  WordCache cache_;
  const char* end_ = nullptr;  // of the text
};

std::unique_ptr<Encoder> BertTokenizer::make_encoder() const {
  return std::make_unique<WordEncoder>(*this, kLog2CacheSets);
}

std::vector<int32_t> BertTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  WordEncoder(*this, WordCache::log2_sets_for(text.size(), kLog2CacheSets)).append(text, ids);
  return ids;
}

std::string BertTokenizer::piece(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  if (id < 0 || index >= pieces_.size()) {
    throw FormatError(fmt::format("{}: no piece has id {}; ids go from 0 to {}", vocab_file_, id,
                                  pieces_.size() - 1));
  }
  return pieces_[index];
}

std::optional<int32_t> BertTokenizer::id_of(std::string_view piece) const {
  const auto found = ids_.find(std::string(piece));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

std::string BertTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) text += ' ';
    text += piece(ids[i]);
  }
  replace_all(text, " ##", "");
  return without_extra_blanks(std::string(stripped(text)));
}

std::optional<int32_t> BertTokenizer::special_id(SpecialToken token) const {
  switch (token) {
    case SpecialToken::kCls:
      return ids_.at("[CLS]");
    case SpecialToken::kSep:
      return ids_.at("[SEP]");
    case SpecialToken::kMask:
      return ids_.at("[MASK]");
    case SpecialToken::kPad:
      return ids_.at("[PAD]");
    case SpecialToken::kBos:
      return ids_.at("[BOS]");
    case SpecialToken::kEos:
    case SpecialToken::kEod:
      return ids_.at("[EOS]");
  }
  return std::nullopt;
}

TokenizerDescription BertTokenizer::description() const {
  return {"_BertWordPieceTokenizer",
          {vocab_file_},
          {{"lower_case", options_.lower_case ? "True" : "False"},
           {"vocab_extra_ids", std::to_string(options_.vocab_extra_ids)}}};
}

}  // namespace megatron
