#include "megatron/tokenizers/tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megatron/core/error.h"
#include "megatron/tokenizers/gpt2_bpe_tokenizer.h"
#include "megatron/tokenizers/null_tokenizer.h"

namespace megatron {
namespace {

std::unique_ptr<Tokenizer> make_gpt2(const TokenizerConfig& config) {
  const bool has_files = !config.vocab_file.empty() && !config.merge_file.empty();
  if (has_files) return std::make_unique<Gpt2BpeTokenizer>(config.vocab_file, config.merge_file);
  if (config.vocab_file.empty() && config.merge_file.empty() && !config.tokenizer_model.empty()) {
    return Gpt2BpeTokenizer::from_directory(config.tokenizer_model);
  }
  throw ConfigError(fmt::format(
      "--tokenizer-type GPT2BPETokenizer: {} missing; give --vocab-file vocab.json and "
      "--merge-file "
      "merges.txt, or --tokenizer-model with a directory that holds both",
      config.vocab_file.empty()
          ? config.merge_file.empty() ? "--vocab-file and --merge-file are" : "--vocab-file is"
          : "--merge-file is"));
}

std::unique_ptr<Tokenizer> make_null(const TokenizerConfig& config) {
  if (config.vocab_size <= 0) {
    throw ConfigError(fmt::format(
        "--tokenizer-type NullTokenizer: --vocab-size is {}, must be positive; give the number of "
        "ids in the data",
        config.vocab_size));
  }
  return std::make_unique<NullTokenizer>(config.vocab_size);
}

}  // namespace

std::string_view name_of(SpecialToken token) {
  switch (token) {
    case SpecialToken::kCls:
      return "cls";
    case SpecialToken::kSep:
      return "sep";
    case SpecialToken::kMask:
      return "mask";
    case SpecialToken::kPad:
      return "pad";
    case SpecialToken::kBos:
      return "bos";
    case SpecialToken::kEos:
      return "eos";
    case SpecialToken::kEod:
      return "eod";
  }
  throw InternalError("name_of: no such special token");
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  make_encoder()->append(text, ids);
  return ids;
}

int32_t Tokenizer::required_id(SpecialToken token) const {
  const std::optional<int32_t> id = special_id(token);
  if (!id) {
    throw ConfigError(
        fmt::format("--tokenizer-type {} has no {} token; choose a tokenizer that has one", type(),
                    name_of(token)));
  }
  return *id;
}

std::vector<std::string> known_tokenizer_types() { return {"GPT2BPETokenizer", "NullTokenizer"}; }

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerConfig& config) {
  if (config.tokenizer_type == "GPT2BPETokenizer") return make_gpt2(config);
  if (config.tokenizer_type == "NullTokenizer") return make_null(config);
  throw ConfigError(fmt::format("--tokenizer-type \"{}\" is not known; use one of {}",
                                config.tokenizer_type, fmt::join(known_tokenizer_types(), ", ")));
}

int64_t padded_vocab_size(int64_t vocab_size, int64_t make_vocab_size_divisible_by,
                          int64_t tensor_parallel_size) {
  if (vocab_size <= 0 || make_vocab_size_divisible_by <= 0 || tensor_parallel_size <= 0) {
    throw ConfigError(fmt::format(
        "vocabulary size {}, --make-vocab-size-divisible-by {} and --tensor-model-parallel-size {} "
        "must all be positive",
        vocab_size, make_vocab_size_divisible_by, tensor_parallel_size));
  }
  const int64_t multiple = make_vocab_size_divisible_by * tensor_parallel_size;
  return (vocab_size + multiple - 1) / multiple * multiple;
}

}  // namespace megatron
