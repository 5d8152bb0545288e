#include "megatron/tokenizers/bert_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/tokenizers/ascii_letters.h"
#include "megatron/tokenizers/text_rules.h"
#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/word_cache.h"

namespace megatron {
namespace {

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

int64_t num_with_capitals(const std::vector<std::string>& pieces) {
  const auto has_capital = [](const std::string& piece) {
    return !piece.starts_with('[') &&
           std::any_of(piece.begin(), piece.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  };
  return std::count_if(pieces.begin(), pieces.end(), has_capital);
}

void warn_if_cased(const std::string& vocab_file, const std::vector<std::string>& pieces) {
  const int64_t cased = num_with_capitals(pieces);
  if (cased * 10 < static_cast<int64_t>(pieces.size())) return;
  warn_once(fmt::format(
      "{}: {} of {} pieces have capital letters, which BertWordPieceLowerCase never produces; use "
      "--tokenizer-type BertWordPieceCase if this is the vocabulary of a cased model",
      vocab_file, cased, pieces.size()));
}

// A vocabulary of a few words may happen to have no capital letter.
void warn_if_uncased(const std::string& vocab_file, const std::vector<std::string>& pieces) {
  constexpr size_t kFew = 1000;
  if (pieces.size() < kFew || num_with_capitals(pieces) > 0) return;
  warn_once(
      fmt::format("{}: none of {} pieces has a capital letter, so BertWordPieceCase maps every "
                  "word with one to "
                  "[UNK]; use --tokenizer-type BertWordPieceLowerCase if the model is uncased",
                  vocab_file, pieces.size()));
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
  options.lower_case ? warn_if_cased(vocab_file, pieces_) : warn_if_uncased(vocab_file, pieces_);

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

// Splits text at blanks and around ideographs, and ASCII words also at punctuation; words with
// other characters are left to BertWords, because lower-casing depends on neighbours.
class BertTokenizer::WordEncoder final : public Encoder {
 public:
  explicit WordEncoder(const BertTokenizer& tokenizer) : tokenizer_(tokenizer), batch_(cache_) {}

  void append(std::string_view text, std::vector<int32_t>& ids) override {
    end_ = text.data() + text.size();
    for (const char* p = text.data(); p < end_;) {
      if (const char* const end = add_letters(p, ids); end > p) {
        p = end;
        continue;
      }
      const CodePoint c = decode_utf8(p, end_);
      switch (tokenizer_.words_.of(c.value)) {
        case Kind::kBlank:
          p += c.length;
          break;
        case Kind::kIdeograph:
          add({p, p + c.length}, ids);
          p += c.length;
          break;
        default:
          p = add_run(p, ids);
      }
    }
    drain(ids);
  }

 private:
  using Kind = BertWords::Kind;

  // Fast path: adds the run at `p` if it has ASCII letters, optionally one punctuation mark, and a
  // blank. Returns its end, including the blank; `p` for other runs.
  const char* add_letters(const char* p, std::vector<int32_t>& ids) {
    const int64_t count = count_ascii_letters(p, end_);
    if (count == 0) return p;
    const char* const end = p + count;
    if (is_blank(*end)) {
      add({p, end}, ids);
      return end + 1;
    }
    if (!is_mark(*end) || end + 1 == end_ || !is_blank(end[1])) return p;
    add({p, end}, ids);
    add({end, end + 1}, ids);
    return end + 2;
  }

  // Adds the text between two blanks or ideographs; returns its end.
  const char* add_run(const char* begin, std::vector<int32_t>& ids) {
    const char* end = begin;
    while (end < end_ && is_plain(*end)) ++end;
    if (end < end_ && tokenizer_.words_.of_byte(*end) != Kind::kBlank) {
      end = tokenizer_.words_.end_of_run(end, end_);
      if (begin < end) add({begin, end}, ids);
      return end;
    }
    for (const char* p = begin; p < end;) {
      const char* const word = p++;
      if (is_word(*word)) {
        while (p < end && is_word(*p)) ++p;
      }
      add({word, p}, ids);
    }
    return end;
  }

  bool is_blank(char byte) const { return tokenizer_.words_.of_byte(byte) == Kind::kBlank; }
  bool is_word(char byte) const { return tokenizer_.words_.of_byte(byte) == Kind::kWord; }
  bool is_mark(char byte) const { return tokenizer_.words_.of_byte(byte) == Kind::kPunctuation; }
  bool is_plain(char byte) const { return is_word(byte) || is_mark(byte); }

  void add(std::string_view word, std::vector<int32_t>& ids) {
    batch_.add(word, end_ - word.data());
    if (batch_.is_full()) drain(ids);
  }

  void drain(std::vector<int32_t>& ids) {
    batch_.drain(ids, [&](std::string_view run, std::vector<int32_t>& own) {
      tokenizer_.words_.cut_run(
          run, [&](const std::string& word) { tokenizer_.word_piece_.append(word, own); });
    });
  }

  const BertTokenizer& tokenizer_;
  WordCache cache_;
  WordBatch batch_;
  const char* end_ = nullptr;  // of the text
};

std::unique_ptr<Encoder> BertTokenizer::make_encoder() const {
  return std::make_unique<WordEncoder>(*this);
}

std::vector<int32_t> BertTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  WordEncoder(*this).append(text, ids);
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

std::string BertTokenizer::token_bytes(int32_t id) const {
  const std::string text = piece(id);
  return text.starts_with("##") ? text.substr(2) : without_extra_blanks(" " + text);
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
