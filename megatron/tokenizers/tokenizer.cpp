#include "megatron/tokenizers/tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megatron/core/error.h"
#include "megatron/core/hub_cache.h"
#include "megatron/core/parts.h"
#include "megatron/tokenizers/bert_tokenizer.h"
#include "megatron/tokenizers/gpt2_bpe_tokenizer.h"
#include "megatron/tokenizers/hf/hf_tokenizer.h"
#include "megatron/tokenizers/null_tokenizer.h"
#include "megatron/tokenizers/sentence_piece_tokenizer.h"
#include "megatron/tokenizers/tik_tokenizer.h"

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

std::unique_ptr<Tokenizer> make_bert(const TokenizerConfig& config) {
  if (config.vocab_file.empty()) {
    throw ConfigError(
        fmt::format("--tokenizer-type {}: --vocab-file is missing; give the vocab.txt of a BERT",
                    config.tokenizer_type));
  }
  return std::make_unique<BertTokenizer>(
      config.vocab_file,
      BertTokenizer::Options{.lower_case = config.tokenizer_type == "BertWordPieceLowerCase",
                             .vocab_extra_ids = config.vocab_extra_ids});
}

std::unique_ptr<Tokenizer> make_sentence_piece(const TokenizerConfig& config) {
  using Kind = SentencePieceTokenizer::Kind;
  if (config.tokenizer_model.empty()) {
    throw ConfigError(fmt::format(
        "--tokenizer-type {}: --tokenizer-model is missing; give a SentencePiece model, such as "
        "tokenizer.model",
        config.tokenizer_type));
  }
  [[maybe_unused]] const Kind kind = config.tokenizer_type == "SentencePieceTokenizer"
                                         ? Kind::kWithSpecials
                                     : config.tokenizer_type == "Llama2Tokenizer" ? Kind::kLlama2
                                                                                  : Kind::kPlain;
  if constexpr (kHasSentencePiece) {
    return std::make_unique<SentencePieceTokenizer>(
        config.tokenizer_model,
        SentencePieceTokenizer::Options{.kind = kind, .vocab_extra_ids = config.vocab_extra_ids});
  } else {
    refuse_missing("--tokenizer-type " + config.tokenizer_type, "MG_SENTENCEPIECE");
  }
}

std::unique_ptr<Tokenizer> make_tik(const TokenizerConfig& config) {
  if (config.tokenizer_model.empty()) {
    throw ConfigError(
        "--tokenizer-type TikTokenizer: --tokenizer-model is missing; give the JSON list of ranked "
        "tokens");
  }
  if (config.tiktoken_pattern != "v1" && config.tiktoken_pattern != "v2") {
    throw ConfigError(
        fmt::format("--tiktoken-pattern {} is not known; use v1 or v2", config.tiktoken_pattern));
  }
  using Pattern = TikTokenizer::Pattern;
  return std::make_unique<TikTokenizer>(
      config.tokenizer_model,
      TikTokenizer::Options{
          .pattern = config.tiktoken_pattern == "v1" ? Pattern::kV1 : Pattern::kV2,
          .num_special_tokens = config.tiktoken_num_special_tokens,
          .vocab_size = config.vocab_size,
          .special_tokens = config.tokenizer_special_tokens});
}

std::unique_ptr<Tokenizer> make_hf(const TokenizerConfig& config) {
  const char* const flag = config.tokenizer_type == "PretrainedFromHF" ? "--tokenizer-name-or-path"
                                                                       : "--tokenizer-model";
  if (config.tokenizer_model.empty()) {
    throw ConfigError(fmt::format(
        "--tokenizer-type {}: {} is missing; give a folder with tokenizer.json or that file",
        config.tokenizer_type, flag));
  }
  return std::make_unique<hf::HfTokenizer>(
      model_path(config.tokenizer_model, flag).string(),
      hf::HfTokenizer::Options{.type = config.tokenizer_type,
                               .vocab_extra_ids = config.vocab_extra_ids,
                               .include_special_tokens = config.tokenizer_hf_include_special_tokens,
                               .special_tokens = config.tokenizer_special_tokens});
}

struct TokenizerType {
  std::string_view name;
  std::unique_ptr<Tokenizer> (*make)(const TokenizerConfig& config);
};

constexpr TokenizerType kTypes[] = {
    {"BertWordPieceLowerCase", make_bert},
    {"BertWordPieceCase", make_bert},
    {"GPT2BPETokenizer", make_gpt2},
    {"SentencePieceTokenizer", make_sentence_piece},
    {"GPTSentencePieceTokenizer", make_sentence_piece},
    {"Llama2Tokenizer", make_sentence_piece},
    {"HuggingFaceTokenizer", make_hf},
    {"PretrainedFromHF", make_hf},
    {"TikTokenizer", make_tik},
    {"NullTokenizer", make_null},
};

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

std::string Tokenizer::token_bytes(int32_t id) const { return decode({&id, 1}); }

int32_t Tokenizer::required_id(SpecialToken token) const {
  const std::optional<int32_t> id = special_id(token);
  if (!id) {
    throw ConfigError(
        fmt::format("--tokenizer-type {} has no {} token{}{}; choose a tokenizer "
                    "that has one",
                    type(), name_of(token), source().empty() ? "" : " in ", source()));
  }
  return *id;
}

std::vector<int32_t> Tokenizer::required_sentinel_ids(int64_t count) const {
  std::vector<int32_t> ids = sentinel_ids();
  if (static_cast<int64_t>(ids.size()) < count) {
    throw ConfigError(fmt::format(
        "--tokenizer-type {}{}{} has {} sentinel tokens <extra_id_0>, <extra_id_1>, ..., and {} "
        "are needed; give --vocab-extra-ids {}",
        type(), source().empty() ? "" : " of ", source(), ids.size(), count, count));
  }
  return ids;
}

std::vector<std::string> known_tokenizer_types() {
  std::vector<std::string> types;
  for (const TokenizerType& type : kTypes) types.emplace_back(type.name);
  return types;
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerConfig& config) {
  for (const TokenizerType& type : kTypes) {
    if (config.tokenizer_type == type.name) return type.make(config);
  }
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
