#include "megatron/cli/train_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/core/parts.h"
#include "megatron/data/json_line.h"
#include "megatron/data/line_reader.h"
#include "megatron/settings/flag_table.h"
#include "megatron/tokenizers/bpe_trainer.h"
#include "megatron/tokenizers/sentence_piece_trainer.h"
#include "megatron/tokenizers/word_piece_trainer.h"

namespace megatron::cli {
namespace {

enum class SentencePieceKind { kBpe, kUnigram };

struct TokenizerTrainingArgs {
  std::vector<std::string> input;
  std::string tokenizer_type = "GPT2BPETokenizer";
  SentencePieceKind kind = SentencePieceKind::kBpe;
  SentencePieceModelTrainer::Options sentence_piece;
  std::string output_dir;
  std::vector<std::string> json_keys = {"text"};
  int64_t vocab_size = 0;
  int64_t min_frequency = 2;
};

std::vector<std::string> problems(const TokenizerTrainingArgs& args) {
  std::vector<std::string> wrong;
  if (args.input.empty()) wrong.push_back("--input is missing; give files of text or JSON lines");
  if (args.output_dir.empty()) {
    wrong.push_back("--output-dir is missing; give the folder for the vocabulary");
  }
  if (args.vocab_size == 0) {
    wrong.push_back("--vocab-size is missing; give the number of ids, such as 32000");
  }
  const std::vector<std::string> types = {"GPT2BPETokenizer", "BertWordPieceLowerCase",
                                          "BertWordPieceCase", "SentencePieceTokenizer"};
  if (std::find(types.begin(), types.end(), args.tokenizer_type) == types.end()) {
    wrong.push_back(fmt::format("--tokenizer-type {} cannot be learned; use one of {}",
                                args.tokenizer_type, fmt::join(types, ", ")));
  }
  const double coverage = args.sentence_piece.character_coverage;
  if (coverage <= 0 || coverage > 1) {
    wrong.push_back(fmt::format("--character-coverage {} must be above 0 and at most 1", coverage));
  }
  return wrong;
}

using AddText = std::function<void(std::string_view)>;

// Compressed or not, like preprocess-data.
bool holds_json_lines(const std::filesystem::path& file) {
  const bool is_packed = file.extension() == ".gz" || file.extension() == ".xz";
  const std::filesystem::path name = is_packed ? file.stem() : file.filename();
  return name.extension() == ".jsonl" || name.extension() == ".json";
}

void add_json_lines(const std::string& file, const std::vector<std::string>& keys,
                    const AddText& add_text) {
  LineReader reader(file);
  JsonLineParser parser(keys);
  LineChunk chunk;
  while (reader.next(chunk)) {
    for (size_t i = 0; i < chunk.lines.size(); ++i) {
      if (const auto problem = parser.parse(chunk.lines[i])) {
        throw FormatError(fmt::format("{}:{}: {}; correct the line", file,
                                      chunk.first_line + static_cast<int64_t>(i), *problem));
      }
      for (size_t key = 0; key < keys.size(); ++key) {
        for (const std::string_view text : parser.texts(key)) add_text(text);
      }
    }
  }
}

void add_plain_text(const std::string& file, const AddText& add_text) {
  if (file.ends_with(".gz") || file.ends_with(".xz")) {
    throw ConfigError(fmt::format(
        "--input {}: of compressed files only .jsonl.gz and .jsonl.xz are read; unpack the file "
        "first",
        file));
  }
  const MappedFile text(file);
  add_text({reinterpret_cast<const char*>(text.bytes().data()), text.bytes().size()});
}

void add_input(const TokenizerTrainingArgs& args, const AddText& add_text) {
  for (const std::string& file : args.input) {
    if (holds_json_lines(file)) {
      add_json_lines(file, args.json_keys, add_text);
    } else {
      add_plain_text(file, add_text);
    }
  }
}

void warn_if_small(const TokenizerTrainingArgs& args, int64_t size) {
  if (size >= args.vocab_size) return;
  warn(
      fmt::format("the text gives {} ids, fewer than --vocab-size {}; give more text, or lower "
                  "--min-frequency {}",
                  size, args.vocab_size, args.min_frequency));
}

void train_gpt2(const TokenizerTrainingArgs& args) {
  BpeTrainer trainer;
  add_input(args, [&](std::string_view text) { trainer.add_text(text); });
  const BpeVocabulary vocabulary = trainer.train(args.vocab_size, args.min_frequency);
  write_gpt2_files(vocabulary, args.output_dir);
  const auto size = static_cast<int64_t>(vocabulary.tokens.size()) + 1;
  warn_if_small(args, size);
  print_line(fmt::format("wrote {}/vocab.json and merges.txt: {} ids, {} merges", args.output_dir,
                         size, vocabulary.merges.size()));
}

void train_bert(const TokenizerTrainingArgs& args) {
  WordPieceTrainer trainer(args.tokenizer_type == "BertWordPieceLowerCase");
  add_input(args, [&](std::string_view text) { trainer.add_text(text); });
  const std::vector<std::string> pieces = trainer.train(args.vocab_size, args.min_frequency);
  write_bert_vocabulary(pieces, args.output_dir);
  warn_if_small(args, static_cast<int64_t>(pieces.size()));
  print_line(fmt::format("wrote {}/vocab.txt: {} ids", args.output_dir, pieces.size()));
}

[[maybe_unused]] void train_sentence_piece(const TokenizerTrainingArgs& args) {
  SentencePieceModelTrainer trainer;
  add_input(args, [&](std::string_view text) { trainer.add_text(text); });
  SentencePieceModelTrainer::Options options = args.sentence_piece;
  options.unigram = args.kind == SentencePieceKind::kUnigram;
  options.vocab_size = args.vocab_size;
  const std::string model = trainer.train(options);
  std::filesystem::create_directories(args.output_dir);
  write_text_atomically(std::filesystem::path(args.output_dir) / "tokenizer.model", model);
  print_line(fmt::format("wrote {}/tokenizer.model: {} ids", args.output_dir, args.vocab_size));
}

}  // namespace

int train_tokenizer(std::span<const std::string> words) {
  TokenizerTrainingArgs args;
  FlagTable flags;
  flags.group("flags");
  flags
      .add("--input", args.input,
           "Files to learn from: JSON lines if named .jsonl or .json (also packed as .gz or .xz), "
           "else plain text.")
      .required();
  flags
      .add("--output-dir", args.output_dir,
           "Folder for the vocabulary: vocab.json and merges.txt, vocab.txt, or tokenizer.model.")
      .required();
  flags.add(
      "--tokenizer-type", args.tokenizer_type,
      "GPT2BPETokenizer, BertWordPieceLowerCase, BertWordPieceCase or SentencePieceTokenizer.");
  flags.add("--vocab-size", args.vocab_size, "Number of ids, with bytes and special tokens.")
      .none()
      .required();
  flags.add_choice("--sentencepiece-model-type", args.kind,
                   {{"bpe", SentencePieceKind::kBpe}, {"unigram", SentencePieceKind::kUnigram}},
                   "Algorithm of SentencePiece.");
  flags.add("--character-coverage", args.sentence_piece.character_coverage,
            "SentencePiece: fraction of characters covered by pieces.");
  flags.add_off("--no-byte-fallback", args.sentence_piece.byte_fallback,
                "SentencePiece: map rarer characters to the unknown token instead of bytes.");
  flags.add("--min-frequency", args.min_frequency,
            "Stop when no pair of tokens occurs this often.");
  flags.add("--json-keys", args.json_keys, "Keys of the texts in JSON lines.");
  if (!parse_flags(flags,
                   "megatron train-tokenizer --input FILE... --output-dir DIR --vocab-size N",
                   words)) {
    return 0;
  }
  const std::vector<std::string> wrong = problems(args);
  if (!wrong.empty()) throw ConfigError(wrong);

  if (args.tokenizer_type == "GPT2BPETokenizer") {
    train_gpt2(args);
  } else if (args.tokenizer_type == "SentencePieceTokenizer") {
    if constexpr (kHasSentencePiece) {
      train_sentence_piece(args);
    } else {
      refuse_missing("--tokenizer-type SentencePieceTokenizer", "MG_SENTENCEPIECE");
    }
  } else {
    train_bert(args);
  }
  return 0;
}

}  // namespace megatron::cli
