#include "megatron/cli/train_tokenizer.h"

#include <fmt/format.h>

#include <filesystem>

#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/data/json_line.h"
#include "megatron/data/line_reader.h"
#include "megatron/settings/flag_table.h"
#include "megatron/tokenizers/bpe_trainer.h"

namespace megatron::cli {
namespace {

struct Args {
  std::vector<std::string> input;
  std::string output_dir;
  std::vector<std::string> json_keys = {"text"};
  int64_t vocab_size = 0;
  int64_t min_frequency = 2;
};

std::vector<std::string> problems(const Args& args) {
  std::vector<std::string> wrong;
  if (args.input.empty()) wrong.push_back("--input is missing; give files of text or JSON lines");
  if (args.output_dir.empty()) {
    wrong.push_back("--output-dir is missing; give the directory of vocab.json and merges.txt");
  }
  if (args.vocab_size == 0) {
    wrong.push_back("--vocab-size is missing; give the number of ids, such as 32000");
  }
  return wrong;
}

// Compressed or not, as preprocess-data reads them.
bool holds_json_lines(const std::filesystem::path& file) {
  const bool is_packed = file.extension() == ".gz" || file.extension() == ".xz";
  const std::filesystem::path name = is_packed ? file.stem() : file.filename();
  return name.extension() == ".jsonl" || name.extension() == ".json";
}

void add_json_lines(const std::string& file, const std::vector<std::string>& keys,
                    BpeTrainer& trainer) {
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
        for (const std::string_view text : parser.texts(key)) trainer.add_text(text);
      }
    }
  }
}

void add_plain_text(const std::string& file, BpeTrainer& trainer) {
  if (file.ends_with(".gz") || file.ends_with(".xz")) {
    throw ConfigError(fmt::format(
        "--input {}: of compressed files only .jsonl.gz and .jsonl.xz are read; unpack the file "
        "first",
        file));
  }
  const MappedFile text(file);
  trainer.add_text({reinterpret_cast<const char*>(text.bytes().data()), text.bytes().size()});
}

}  // namespace

int train_tokenizer(std::span<const std::string> words) {
  Args args;
  FlagTable flags;
  flags.group("flags");
  flags.add(
      "--input", args.input,
      "Files to learn from: JSON lines if named .jsonl or .json (also packed as .gz or .xz), else "
      "plain text.");
  flags.add("--output-dir", args.output_dir, "Directory of vocab.json and merges.txt.");
  flags.add("--vocab-size", args.vocab_size, "Number of ids, with the 256 bytes and <|endoftext|>.")
      .none();
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

  BpeTrainer trainer;
  for (const std::string& file : args.input) {
    if (holds_json_lines(file)) {
      add_json_lines(file, args.json_keys, trainer);
    } else {
      add_plain_text(file, trainer);
    }
  }
  const BpeVocabulary vocabulary = trainer.train(args.vocab_size, args.min_frequency);
  write_gpt2_files(vocabulary, args.output_dir);
  const auto size = static_cast<int64_t>(vocabulary.tokens.size()) + 1;
  if (size < args.vocab_size) {
    warn(
        fmt::format("the text gives {} ids, fewer than --vocab-size {}; give more text, or lower "
                    "--min-frequency {}",
                    size, args.vocab_size, args.min_frequency));
  }
  print_line(fmt::format("wrote {}/vocab.json and merges.txt: {} ids, {} merges", args.output_dir,
                         size, vocabulary.merges.size()));
  return 0;
}

}  // namespace megatron::cli
