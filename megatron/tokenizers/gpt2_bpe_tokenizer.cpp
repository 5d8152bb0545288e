#include "megatron/tokenizers/gpt2_bpe_tokenizer.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <new>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/tokenizers/byte_map.h"
#include "megatron/tokenizers/gpt2_split.h"
#include "megatron/tokenizers/word_cache.h"

namespace megatron {
namespace {
constexpr std::string_view kEndOfText = "<|endoftext|>";
// Ids index a table; the limit is far above every vocabulary in use, to detect typos.
constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;

struct Vocabulary {
  StringTable printable;     // tokens
  std::vector<int32_t> ids;  // by place in printable

  void set(std::string_view token, int32_t id) {
    const size_t place = printable.insert(token);
    if (place == ids.size()) ids.push_back(id);
    ids[place] = id;
  }
};

// True for one word per line, as in BERT's vocabularies.
bool is_word_list(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin != std::string_view::npos && text[begin] != '{' &&
         std::count(text.begin(), text.end(), '\n') > 1 &&
         text.find("[UNK]") != std::string_view::npos;
}

// A model has one row for each token.
void expect_ids_in_vocabulary(const std::string& path, const Vocabulary& vocabulary) {
  const size_t size = vocabulary.printable.size();
  constexpr size_t kNone = static_cast<size_t>(-1);
  std::vector<size_t> owners(size, kNone);  // places, by id
  for (size_t place = 0; place < size; ++place) {
    const auto id = static_cast<size_t>(vocabulary.ids[place]);
    const std::string_view token = vocabulary.printable.key(place);
    if (id >= size) {
      throw FormatError(fmt::format(
          "{}: token \"{}\" has id {}, but the ids of {} tokens go from 0 to {}; restore the file",
          path, token, id, size, size - 1));
    }
    if (owners[id] != kNone) {
      throw FormatError(
          fmt::format("{}: tokens \"{}\" and \"{}\" have the same id {}; restore "
                      "the file",
                      path, vocabulary.printable.key(owners[id]), token, id));
    }
    owners[id] = place;
  }
}

Vocabulary read_vocabulary(const std::string& path) {
  const std::string text = read_text(path);
  simdjson::dom::parser parser;
  simdjson::dom::object object;
  if (const auto error = parser.parse(text).get_object().get(object)) {
    if (error == simdjson::MEMALLOC) throw std::bad_alloc();
    if (is_word_list(text)) {
      throw FormatError(fmt::format(
          "{}: this is a list of words, such as the vocab.txt of a BERT, and no vocab.json; give "
          "the vocab.json of a GPT-2, or --tokenizer-type BertWordPieceLowerCase or "
          "BertWordPieceCase",
          path));
    }
    throw FormatError(fmt::format(
        "{}: is not one JSON object token -> id; give the vocab.json of a GPT-2", path));
  }
  Vocabulary vocabulary;
  vocabulary.printable.reserve(object.size());
  for (const simdjson::dom::key_value_pair field : object) {
    int64_t id = 0;
    if (field.value.get_int64().get(id) != simdjson::SUCCESS || id < 0 || id > kMaxId) {
      throw FormatError(fmt::format("{}: the id of token \"{}\" must be an integer in [0, {}]",
                                    path, field.key, kMaxId));
    }
    vocabulary.set(field.key, static_cast<int32_t>(id));
  }
  expect_ids_in_vocabulary(path, vocabulary);
  if (!vocabulary.printable.find(kEndOfText)) {
    throw FormatError(fmt::format(
        "{}: token {} is missing; it must be there, as it ends each document", path, kEndOfText));
  }
  return vocabulary;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    begin = end + 1;
  }
  return lines;
}

struct MergeLine {
  std::string_view left;
  std::string_view right;
};

// The pairs of merges.txt in order; views into `text`.
std::vector<MergeLine> read_merges(const std::string& path, std::string_view text,
                                   Gpt2BpeTokenizer::MergeFileRules rules) {
  const bool is_megatron = rules == Gpt2BpeTokenizer::MergeFileRules::kMegatron;
  std::vector<std::string_view> lines = lines_of(text);
  if (is_megatron && lines.size() > 1 && !lines.back().empty()) {
    warn_once(
        fmt::format("{}: line {} \"{}\" has no newline and does not count, as in Megatron-LM; end "
                    "the file with a newline if it should",
                    path, lines.size(), lines.back()));
    lines.pop_back();
  }
  std::vector<MergeLine> merges;
  merges.reserve(lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string_view line = lines[i];
    const bool is_header = is_megatron ? i == 0 : line.starts_with("#version");
    if (is_header || line.empty()) continue;
    const size_t blank = line.find(' ');
    if (blank == std::string_view::npos || blank == 0 || blank + 1 == line.size() ||
        line.find(' ', blank + 1) != std::string_view::npos) {
      throw FormatError(fmt::format(
          "{}: line {} is \"{}\", expected two tokens with one blank between them; is this a "
          "merges.txt?",
          path, i + 1, line));
    }
    merges.push_back({line.substr(0, blank), line.substr(blank + 1)});
  }
  return merges;
}

// Without merges only single bytes can be produced.
void expect_no_words(const std::string& vocab_file, const std::string& merge_file,
                     const Vocabulary& vocabulary) {
  for (size_t place = 0; place < vocabulary.printable.size(); ++place) {
    const std::string_view printable = vocabulary.printable.key(place);
    if (printable == kEndOfText || bytes_from_printable(printable).value_or("").size() < 2)
      continue;
    throw FormatError(fmt::format(
        "{}: no merges in it, but {} has tokens of several bytes, such as \"{}\"; give the "
        "merges.txt that belongs to the vocabulary",
        merge_file, vocab_file, printable));
  }
}

// The strings that encoding can produce: the single bytes, then the results of merges.
struct Symbols {
  std::vector<BpeMerge> merges;
  std::vector<int32_t> ids;  // by symbol
};

Symbols number_symbols(const std::string& vocab_file, const std::string& merge_file,
                       const Vocabulary& vocabulary, const std::vector<MergeLine>& lines) {
  Symbols symbols;
  StringTable known = vocabulary.printable;
  std::vector<int32_t> numbers(known.size(), -1);  // by place in `known`; -1: no symbol yet
  int64_t missing = 0;
  std::string first_missing;
  const auto number_of = [&](std::string_view printable) {
    const size_t place = known.insert(printable);
    if (place == numbers.size()) numbers.push_back(-1);
    int32_t& number = numbers[place];
    if (number >= 0) return number;
    number = static_cast<int32_t>(symbols.ids.size());
    const bool has_id = place < vocabulary.ids.size();
    if (!has_id && missing++ == 0) first_missing = printable;
    symbols.ids.push_back(has_id ? vocabulary.ids[place] : 0);
    return number;
  };
  for (int byte = 0; byte < 256; ++byte) {
    number_of(printable_from_bytes(std::string(1, static_cast<char>(byte))));
  }
  symbols.merges.reserve(lines.size());
  std::string joined;
  for (const MergeLine& line : lines) {
    const int32_t left = number_of(line.left);
    const int32_t right = number_of(line.right);
    joined.assign(line.left);
    joined += line.right;
    const int32_t result = number_of(joined);
    symbols.merges.push_back({left, right, result});
  }
  if (missing > 0) {
    warn_once(
        fmt::format("{} has no id for {} tokens that {} can produce, such as \"{}\"; text that "
                    "needs them gets id 0, as in Megatron-LM; do the two files belong together?",
                    vocab_file, missing, merge_file, first_missing));
  }
  return symbols;
}

}  // namespace

struct Gpt2BpeTokenizer::Token {
  std::string bytes;
  bool has_bytes = false;  // every character represents a byte
};

// The contents of the two files.
struct Gpt2BpeTokenizer::Content {
  std::string vocab_file;
  std::string merge_file;
  Vocabulary vocabulary;
  Symbols symbols;

  Content(std::string vocab_path, std::string merge_path, MergeFileRules rules)
      : vocab_file(std::move(vocab_path)),
        merge_file(std::move(merge_path)),
        vocabulary(read_vocabulary(vocab_file)) {
    const std::string text = read_text(merge_file);
    const std::vector<MergeLine> merges = read_merges(merge_file, text, rules);
    if (merges.empty()) expect_no_words(vocab_file, merge_file, vocabulary);
    symbols = number_symbols(vocab_file, merge_file, vocabulary, merges);
  }
};

Gpt2BpeTokenizer::Gpt2BpeTokenizer(const std::string& vocab_file, const std::string& merge_file,
                                   MergeFileRules rules)
    : Gpt2BpeTokenizer(Content(vocab_file, merge_file, rules)) {}

Gpt2BpeTokenizer::~Gpt2BpeTokenizer() = default;

std::string Gpt2BpeTokenizer::token_bytes(int32_t id) const { return token(id).bytes; }

Gpt2BpeTokenizer::Gpt2BpeTokenizer(Content content)
    : vocab_file_(std::move(content.vocab_file)),
      merge_file_(std::move(content.merge_file)),
      eod_(content.vocabulary.ids[*content.vocabulary.printable.find(kEndOfText)]),
      symbol_ids_(std::move(content.symbols.ids)),
      merges_(content.symbols.merges) {
  printable_ = std::move(content.vocabulary.printable);
  ids_ = std::move(content.vocabulary.ids);
  tokens_.resize(printable_.size());
  for (size_t place = 0; place < printable_.size(); ++place) {
    const std::string_view printable = printable_.key(place);
    const auto index = static_cast<size_t>(ids_[place]);
    std::optional<std::string> bytes = bytes_from_printable(printable);
    tokens_[index] = {bytes.value_or(std::string(printable)), bytes.has_value()};
  }
}

std::unique_ptr<Gpt2BpeTokenizer> Gpt2BpeTokenizer::from_directory(
    const std::filesystem::path& directory) {
  return std::make_unique<Gpt2BpeTokenizer>((directory / "vocab.json").string(),
                                            (directory / "merges.txt").string(),
                                            MergeFileRules::kHuggingFace);
}

class Gpt2BpeTokenizer::WordEncoder final : public Encoder {
 public:
  explicit WordEncoder(const Gpt2BpeTokenizer& tokenizer) : tokenizer_(tokenizer), batch_(cache_) {}

  void append(std::string_view text, std::vector<int32_t>& ids) override {
    const auto encode = [&](std::string_view word, std::vector<int32_t>& own) {
      encode_word(word, own);
    };
    batch_.append(text, ids, encode,
                  [&](const auto& emit) { gpt2_split(text, tokenizer_.classes_, emit); });
  }

 private:
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const {
    for (const char byte : word) ids.push_back(static_cast<uint8_t>(byte));
    tokenizer_.merges_.apply(ids);
    for (int32_t& id : ids) id = tokenizer_.symbol_ids_[static_cast<size_t>(id)];
  }

  const Gpt2BpeTokenizer& tokenizer_;
  WordCache cache_;
  WordBatch batch_;
};

std::unique_ptr<Encoder> Gpt2BpeTokenizer::make_encoder() const {
  return std::make_unique<WordEncoder>(*this);
}

std::vector<int32_t> Gpt2BpeTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  WordEncoder(*this).append(text, ids);
  return ids;
}

const Gpt2BpeTokenizer::Token& Gpt2BpeTokenizer::token(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  if (id < 0 || index >= tokens_.size()) {
    throw FormatError(fmt::format("{}: no token has id {}; ids go from 0 to {}", vocab_file_, id,
                                  tokens_.size() - 1));
  }
  return tokens_[index];
}

std::string Gpt2BpeTokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const Token& known = token(id);
    if (!known.has_bytes) {
      throw FormatError(fmt::format(
          "{}: token {} \"{}\" has a character that stands for no byte; it cannot be decoded",
          vocab_file_, id, known.bytes));
    }
    bytes += known.bytes;
  }
  return with_valid_utf8(bytes);
}

std::string Gpt2BpeTokenizer::piece(int32_t id) const {
  const Token& known = token(id);
  return known.has_bytes ? printable_from_bytes(known.bytes) : known.bytes;
}

std::optional<int32_t> Gpt2BpeTokenizer::id_of(std::string_view piece) const {
  const std::optional<size_t> place = printable_.find(piece);
  if (!place) return std::nullopt;
  return ids_[*place];
}

std::optional<int32_t> Gpt2BpeTokenizer::special_id(SpecialToken token) const {
  if (token == SpecialToken::kEod) return eod_;
  return std::nullopt;
}

TokenizerDescription Gpt2BpeTokenizer::description() const {
  return {"_GPT2BPETokenizer", {vocab_file_, merge_file_}, {}};
}

}  // namespace megatron
