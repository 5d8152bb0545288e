#include "megatron/interchange/source_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/interchange/hf/adapters.h"
#include "megatron/interchange/model_kind.h"
#include "megatron/settings/flag_table.h"
#include "megatron/tokenizers/tokenizer_files.h"

namespace megatron {
namespace {

constexpr const char* kEndTokens = "eos_token_id";
constexpr const char* kHfModelType = "hf_model_type";

// The config with every setting that has no effect at its default.
TransformerConfig canonical(TransformerConfig config) {
  const TransformerConfig unset;
  config.encoder_num_layers = unset.encoder_num_layers;
  config.encoder_seq_length = unset.encoder_seq_length;
  config.group_query_attention = config.num_query_groups != config.num_attention_heads;
  config.add_qkv_bias = config.has_qkv_bias();
  if (!config.has_experts()) static_cast<ExpertConfig&>(config) = unset;
  if (config.position_embedding_type != PositionEmbedding::kLearnedAbsolute) {
    config.max_position_embeddings = unset.max_position_embeddings;
  }
  if (config.position_embedding_type != PositionEmbedding::kRope) {
    config.rotary_base = unset.rotary_base;
    config.rotary_percent = unset.rotary_percent;
    config.rotary_interleaved = unset.rotary_interleaved;
    config.rotary_seq_len_interpolation_factor = unset.rotary_seq_len_interpolation_factor;
    config.use_rope_scaling = unset.use_rope_scaling;
  }
  if (!config.use_rope_scaling) config.rope_scaling_factor = unset.rope_scaling_factor;
  RopeScaling& scaling = config.rope_scaling;
  if (scaling.type == RopeScalingType::kNone) scaling.original_max_position_embeddings = 0;
  return config;
}

// All settings of a run with that model; the flags of its activation are the canonical ones.
ArgMap settings_of(const TransformerConfig& config) {
  TrainingArgs args;
  args.transformer = config;
  args.activation = activation_flags(config);
  return arg_map(args);
}

std::string name_of(const Flag& flag) {
  return flag.type == FlagType::kOff ? flag.dest : flag.names[0];
}

struct Difference {
  Flag flag;
  std::string name;  // of the setting
  std::string saved;
  std::string now;
};

// The settings that both maps have with different values; `name_in` is the name of a row's setting,
// or empty if it is not compared.
std::vector<Difference> differences(const ArgMap& saved, const ArgMap& now,
                                    std::string (*name_in)(const Flag&)) {
  TrainingArgs bound;
  const FlagTable table = training_flags(bound);
  std::vector<Difference> found;
  for (const Flag& flag : table.rows()) {
    const std::string name = name_in(flag);
    const auto before = saved.find(name);
    const auto after = now.find(name);
    if (before == saved.end() || after == now.end() || before->second == after->second) continue;
    found.push_back({flag, name, text_of(before->second), text_of(after->second)});
  }
  return found;
}

std::string if_continued(const Flag& flag) {
  if (!flag.must_continue) return {};
  return flag.carrier.empty() ? flag.dest : flag.carrier;
}

std::string if_architecture(const Flag& flag) {
  return flag.is_architecture ? flag.dest : std::string();
}

}  // namespace

ArgMap settings_of(const HfModel& model) {
  TrainingArgs args;
  args.transformer = model.transformer;
  args.activation = activation_flags(model.transformer);
  args.training.skip_train = true;
  args.training.micro_batch_size = 1;
  args.tokenizer = {.tokenizer_type = "NullTokenizer", .vocab_size = model.vocab_size};
  std::vector<std::string> problems;
  args = resolved(args, 1, problems);
  if (!problems.empty()) throw ConfigError(problems);
  ArgMap map = arg_map(args);
  map["tokenizer_type"] = std::string(model.family->tokenizer_type);
  map[kHfModelType] = std::string(model.family->model_type);
  const auto store = [&](const char* name, std::optional<int64_t> id) {
    if (id) map[name] = *id;
  };
  store("bos_token_id", model.bos_token_id);
  set_end_tokens(map, model.eos_token_ids);
  store("pad_token_id", model.pad_token_id);
  store("decoder_start_token_id", model.decoder_start_token_id);
  map["orig_vocab_size"] = model.vocab_size;  // transformers' converter reads it
  return map;
}

std::vector<int64_t> end_tokens_of(const ArgMap& settings) {
  const auto found = settings.find(kEndTokens);
  if (found == settings.end()) return {};
  if (const auto* id = std::get_if<int64_t>(&found->second)) return {*id};
  const auto* ids = std::get_if<std::vector<int64_t>>(&found->second);
  return ids != nullptr ? *ids : std::vector<int64_t>();
}

void set_end_tokens(ArgMap& settings, std::vector<int64_t> ids) {
  if (ids.empty()) {
    settings.erase(kEndTokens);
  } else if (ids.size() == 1) {
    settings[kEndTokens] = ids.front();
  } else {
    settings[kEndTokens] = std::move(ids);
  }
}

std::string hf_model_type_of(const ArgMap& settings) {
  const auto found = settings.find(kHfModelType);
  const auto* type = found != settings.end() ? std::get_if<std::string>(&found->second) : nullptr;
  return type != nullptr ? *type : "";
}

bool stays_with_model(std::string_view name) {
  return name.ends_with("_token_id") || name == kHfModelType;
}

void keep_special_ids(ArgMap& settings, const ArgMap& source, std::optional<int64_t> end) {
  for (const auto& [name, id] : source) {
    if (stays_with_model(name)) settings[name] = id;
  }
  std::vector<int64_t> ends = end_tokens_of(settings);
  const bool is_new = end && std::ranges::find(ends, *end) == ends.end();
  if (ends.empty() || !is_new) return;
  ends.push_back(*end);
  set_end_tokens(settings, std::move(ends));
}

void take_architecture(TrainingArgs& args, const CheckpointSource& source) {
  ArgMap stored = source.args();
  if (stored.empty()) {
    warn(fmt::format("{} stores no settings, so --use-checkpoint-args has no effect",
                     source.directory().string()));
  }
  if (source.hf() != nullptr) {
    // Tokenizer and padding of the vocabulary are settings of the run.
    stored.erase("tokenizer_type");
    stored.erase("padded_vocab_size");
    const TransformerConfig& c = args.transformer;
    if (c.seq_length > 0 || c.encoder_seq_length > 0) stored.erase("seq_length");
  }
  for (const std::string& replaced : replaced_flags(args, stored)) {
    args.warnings.push_back(replaced + "; --use-checkpoint-args takes the former");
  }
  use_checkpoint_args(args, stored);
}

std::vector<std::string> replaced_flags(const TrainingArgs& args, const ArgMap& stored) {
  const auto settings_with = [&](TrainingArgs start) {
    use_checkpoint_args(start, stored, GivenSetting::kCommandLine);
    std::vector<std::string> ignored;  // problems of the run, which it reports itself
    return settings_of(canonical(resolved(std::move(start), 1, ignored).transformer));
  };
  TrainingArgs nothing_given;
  nothing_given.transformer.kind = args.transformer.kind;
  std::vector<std::string> found;
  for (const Difference& setting :
       differences(settings_with(nothing_given), settings_with(args), if_architecture)) {
    if (setting.flag.taken_from_checkpoint != FromCheckpoint::kAlways) continue;
    found.push_back(fmt::format("{} is {} in the checkpoint, but {} on the command line",
                                name_of(setting.flag), setting.saved, setting.now));
  }
  return found;
}

std::vector<std::string> contradictions(const ArgMap& saved, const ArgMap& now) {
  std::vector<std::string> found;
  for (const Difference& setting : differences(saved, now, if_continued)) {
    const bool is_padding = setting.name == "padded_vocab_size";
    if (is_padding && true_vocab_size(saved) > 0) continue;  // the padding may change
    // Another architecture has other tensors, so --finetune cannot load it, either.
    found.push_back(
        fmt::format("{} is {} in the checkpoint, but {} now; give the checkpoint's value or {}",
                    setting.name, setting.saved, setting.now,
                    setting.flag.is_architecture ? "--use-checkpoint-args" : "--finetune"));
  }
  return found;
}

std::vector<std::string> changed_architecture(const ArgMap& saved, const ArgMap& now) {
  std::vector<std::string> found;
  for (const Difference& setting : differences(saved, now, if_architecture)) {
    if (setting.flag.must_continue || setting.name == "padded_vocab_size") continue;
    found.push_back(
        fmt::format("{} is {} in the checkpoint, but {} now: the weights go on in "
                    "another model",
                    name_of(setting.flag), setting.saved, setting.now));
  }
  return found;
}

std::vector<std::string> contradictions(const TransformerConfig& theirs,
                                        const TransformerConfig& ours) {
  const ArgMap saved = settings_of(canonical(theirs));
  const ArgMap now = settings_of(canonical(ours));
  std::vector<std::string> found;
  for (const Difference& setting : differences(saved, now, if_architecture)) {
    found.push_back(
        fmt::format("{} is {} in the model's config.json, but {} now; give the model's value or "
                    "--use-checkpoint-args",
                    name_of(setting.flag), setting.saved, setting.now));
  }
  return found;
}

TrainingArgs described_run(CheckpointFormat format, const CheckpointContents& contents) {
  const ArgMap& stored = contents.args;
  TrainingArgs args;
  args.transformer.kind = kind_of(contents);
  FlagTable flags = training_flags(args);
  if (format == CheckpointFormat::kNative) {
    for (const auto& [dest, value] : stored) {
      if (flags.find(dest) == nullptr || std::holds_alternative<std::monostate>(value)) continue;
      flags.assign(dest, value);
    }
    use_checkpoint_vocabulary(args.transformer, stored);
  } else {
    // Other versions' settings need not have our types and meanings; those of the model do.
    use_checkpoint_args(args, stored);
    for (const Flag& flag : flags.rows()) {
      const auto found = stored.find(flag.dest);
      if (flag.is_in_every_version && found != stored.end()) {
        flags.assign(flag.dest, found->second);
      }
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
  args.data.retro_workdir.clear();  // of the training, which may be gone
  args.data.retro_project_dir.clear();
  args.transformer.fp8 = {};  // of the training's products
  args.parallel = {};         // it is looked at by one rank, however many saved it
  args.parallel.use_distributed_optimizer = args.optimizer.use_precision_aware_optimizer;
  // The stored settings include derived ones, so only those that resolving needs count as given.
  args.given = {"lr"};
  std::vector<std::string> problems;
  TrainingArgs run = resolved(args, 1, problems);
  if (run.transformer.padded_vocab_size == 0) {
    problems.emplace_back("the checkpoint's arguments have no padded_vocab_size");
  }
  if (!problems.empty()) throw ConfigError(problems);
  if (run.tokenizer.vocab_size == absent.vocab_size) run.tokenizer = {};
  return run;
}

TransformerConfig config_of(const CheckpointSource& source, const CheckpointContents& contents) {
  TransformerConfig config = source.hf() != nullptr
                                 ? source.hf()->transformer
                                 : described_run(source.format(), contents).transformer;
  config.padded_vocab_size = vocabulary_of(contents).shape[0];
  if (!has_adapters(contents)) config.lora_rank = 0;  // they were merged
  return config;
}

ArgMap native_args(const TrainingArgs& run, const ArgMap& stored, DType weights) {
  // Settings of the model are stored although no command line gave them.
  TrainingArgs given = run;
  TrainingArgs bound;
  const FlagTable flags = training_flags(bound);
  bound = run;
  for (const std::string& dest : flags.changed()) {
    const bool is_of_model = flags.find(dest)->taken_from_checkpoint != FromCheckpoint::kNever;
    if (is_of_model) given.given.insert(dest);
  }
  ArgMap args = arg_map(given);
  for (const char* name : {"tokenizer_type", "vocab_file", "merge_file", "tokenizer_model",
                           "vocab_size", "num_tokentypes"}) {
    const auto found = stored.find(name);
    if (found != stored.end()) args[name] = found->second;
  }
  for (const auto& [name, value] : stored) {
    if (stays_with_model(name)) args[name] = value;
  }
  args["params_dtype"] = weights;
  args["fp16"] = weights == DType::kFloat16;
  args["bf16"] = weights == DType::kBFloat16;
  return args;
}

std::filesystem::path tokenizer_folder_of(const CheckpointSource& source) {
  if (source.hf() != nullptr) return source.directory();
  const std::optional<TokenizerConfig> saved = tokenizer_of_checkpoint(source.directory());
  if (!saved) return {};
  constexpr std::string_view kTypes[] = {"GPT2BPETokenizer", "HuggingFaceTokenizer",
                                         "PretrainedFromHF", "GPTSentencePieceTokenizer",
                                         "Llama2Tokenizer"};
  if (std::ranges::find(kTypes, saved->tokenizer_type) == std::end(kTypes)) return {};
  const std::filesystem::path file =
      saved->vocab_file.empty() ? saved->tokenizer_model : saved->vocab_file;
  return std::filesystem::is_directory(file) ? file : file.parent_path();
}

}  // namespace megatron
