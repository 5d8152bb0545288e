#include "megatron/interchange/checkpoint_formats.h"

#include <fmt/format.h>

#include "megatron/core/error.h"
#include "megatron/interchange/hf/names.h"

namespace megatron {
namespace {

// The settings of a run that starts from a Hugging Face model.
ArgMap args_of(const LoadSource& source) {
  TrainingArgs args;
  take_architecture(args, source);
  args.training.skip_train = true;
  args.training.micro_batch_size = 1;
  args.tokenizer = {.tokenizer_type = "NullTokenizer", .vocab_size = source.hf->vocab_size};
  std::vector<std::string> problems;
  args = resolved(args, 1, problems);
  if (!problems.empty()) throw ConfigError(problems);
  args.transformer.padded_vocab_size = source.hf->vocab_size;
  ArgMap map = arg_map(args);
  map["tokenizer_type"] = std::string(
      source.hf->family == HfFamily::kGpt2 ? "GPT2BPETokenizer" : "HuggingFaceTokenizer");
  map["orig_vocab_size"] = source.hf->vocab_size;
  return map;
}

}  // namespace

CheckpointContents open_any(const LoadSource& source) {
  if (!source.hf) return open_source(source);
  CheckpointContents contents = open_hf_checkpoint(source.hf_directory, *source.hf);
  contents.args = args_of(source);
  return contents;
}

TrainingArgs described_run(CheckpointFormat format, const ArgMap& stored) {
  TrainingArgs args;
  FlagTable flags = training_flags(args);
  if (format == CheckpointFormat::kNative) {
    for (const auto& [dest, value] : stored) {
      if (flags.find(dest) == nullptr || std::holds_alternative<std::monostate>(value)) continue;
      flags.assign(dest, value);
    }
  } else {
    // Other versions' settings need not have our types and meanings; those of the model do.
    use_checkpoint_args(args, stored);
    for (const char* dest :
         {"fp16", "bf16", "vocab_size", "vocab_file", "merge_file", "seed", "lr", "min_lr",
          "weight_decay", "clip_grad", "adam_beta1", "adam_beta2", "adam_eps", "attention_dropout",
          "hidden_dropout", "init_method_std", "make_vocab_size_divisible_by"}) {
      const auto found = stored.find(dest);
      if (found != stored.end()) flags.assign(dest, found->second);
    }
    // Nothing is trained.
    args.training.skip_train = true;
    args.training.micro_batch_size = 1;
  }
  TokenizerConfig& tokenizer = args.tokenizer;
  const TokenizerConfig absent = {.tokenizer_type = "NullTokenizer", .vocab_size = 1};
  const bool has_files = format == CheckpointFormat::kNative
                             ? !tokenizer.vocab_file.empty() || !tokenizer.tokenizer_model.empty()
                             : std::filesystem::exists(tokenizer.vocab_file);
  if (tokenizer.tokenizer_type != "NullTokenizer" && !has_files) {
    tokenizer = absent;
  }
  args.parallel = {};  // it is looked at by one rank, however many saved it
  // Derived settings are among the stored ones, so only what resolving asks for counts as given.
  args.given = {"lr"};
  std::vector<std::string> problems;
  const auto padded = stored.find("padded_vocab_size");
  TrainingArgs run = resolved(args, 1, problems);
  if (padded == stored.end() || !std::holds_alternative<int64_t>(padded->second)) {
    problems.emplace_back("the checkpoint's arguments have no padded_vocab_size");
  } else {
    run.transformer.padded_vocab_size = std::get<int64_t>(padded->second);
  }
  if (!problems.empty()) throw ConfigError(problems);
  if (run.tokenizer.vocab_size == absent.vocab_size) run.tokenizer = {};
  return run;
}

TransformerConfig config_of(const LoadSource& source, const CheckpointContents& contents) {
  TransformerConfig config =
      source.hf ? source.hf->transformer : described_run(source.format, contents.args).transformer;
  config.padded_vocab_size =
      contents.sections.at(kWeightsSection).at("embedding.word_embeddings.weight").shape[0];
  return config;
}

}  // namespace megatron
