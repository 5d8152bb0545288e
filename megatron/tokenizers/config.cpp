#include "megatron/tokenizers/config.h"

#include <fmt/format.h>

#include <utility>

namespace megatron {

std::vector<std::string> problems(const TokenizerConfig& c) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) found.push_back(std::move(problem));
  };
  const auto needs = [&](const std::string& value, const char* flag, const char* what) {
    require(!value.empty(),
            fmt::format("--tokenizer-type {} needs {} with {}", c.tokenizer_type, flag, what));
  };
  if (c.tokenizer_type.empty()) {
    found.emplace_back(
        "--tokenizer-type is required; for example --tokenizer-type "
        "GPT2BPETokenizer");
  } else if (c.tokenizer_type == "GPT2BPETokenizer") {
    needs(c.vocab_file, "--vocab-file", "the path of vocab.json");
    needs(c.merge_file, "--merge-file", "the path of merges.txt");
  } else if (c.tokenizer_type.starts_with("BertWordPiece")) {
    needs(c.vocab_file, "--vocab-file", "the path of vocab.txt");
  } else if (c.tokenizer_type == "SentencePieceTokenizer" ||
             c.tokenizer_type == "GPTSentencePieceTokenizer" ||
             c.tokenizer_type == "Llama2Tokenizer") {
    needs(c.tokenizer_model, "--tokenizer-model", "the path of the model file");
  } else if (c.tokenizer_type == "NullTokenizer") {
    require(c.vocab_size > 0,
            "--tokenizer-type NullTokenizer needs --vocab-size; for example --vocab-size 1000");
  }
  require(c.vocab_extra_ids >= 0,
          fmt::format("--vocab-extra-ids {} must be at least 0", c.vocab_extra_ids));
  require(c.make_vocab_size_divisible_by > 0,
          fmt::format("--make-vocab-size-divisible-by {} must be greater than 0",
                      c.make_vocab_size_divisible_by));
  require(
      c.pad_vocab_size_to == 0 || (c.pad_vocab_size_to > 0 && c.make_vocab_size_divisible_by > 0 &&
                                   c.pad_vocab_size_to % c.make_vocab_size_divisible_by == 0),
      fmt::format("--pad-vocab-size-to {} must be a multiple of "
                  "--make-vocab-size-divisible-by {}",
                  c.pad_vocab_size_to, c.make_vocab_size_divisible_by));
  return found;
}

}  // namespace megatron
