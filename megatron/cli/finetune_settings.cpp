#include "megatron/cli/finetune_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/hub_cache.h"
#include "megatron/core/log.h"
#include "megatron/core/number_text.h"
#include "megatron/frontends/override_settings.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/models/epoch_report.h"
#include "megatron/optim/parameter_scheduler.h"
#include "megatron/tokenizers/tokenizer_files.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;
using frontends::OverrideSettings;

// Sets a training flag's field unless the command line or a launcher has done so. A warning says
// that a given flag, `source`, loses.
class Defaults {
 public:
  Defaults(const FinetuneFlags& flags, TrainingArgs& args)
      : flags_(flags), args_(args), settings_(args) {}

  void set(const char* dest, const ArgValue& value, const std::string& source) {
    if (!args_.given.contains(dest)) return settings_.set(dest, value, source);
    const ArgValue now = settings_.value(dest);
    const bool is_given = source.starts_with("--") && flags_.given.contains(source.substr(2));
    if (!is_given || text_of(now) == text_of(value)) return;
    std::string flag = dest;
    std::ranges::replace(flag, '_', '-');
    args_.warnings.push_back(
        fmt::format("{} has no effect: --{}, or the launcher in its place, says {} {} instead of "
                    "{}",
                    source, flag, dest, text_of(now), text_of(value)));
  }

 private:
  const FinetuneFlags& flags_;
  TrainingArgs& args_;
  OverrideSettings settings_;
};

// --resume_from_checkpoint names --output_dir, or a place in it that no directory has: step_<n> and
// epoch_<n>.
struct ResumePoint {
  fs::path checkpoints;
  std::string unit;  // "step", "epoch"; empty: the latest
  int64_t number = 0;
};

ResumePoint resume_point(const fs::path& named) {
  ResumePoint point;
  fs::path folder = named.has_filename() ? named : named.parent_path();
  const std::string name = folder.filename();
  const size_t line = name.find('_');
  if (!fs::exists(folder) && line != std::string::npos) {
    const std::optional<int64_t> number = integer_of(name.substr(line + 1));
    const std::string unit = name.substr(0, line);
    if (number && (unit == "step" || unit == "epoch")) {
      point.unit = unit;
      point.number = *number;
      folder = folder.parent_path();
    }
  }
  const fs::path inner = folder / kCheckpoints;
  point.checkpoints = fs::is_directory(inner) ? inner : folder;
  return point;
}

Origin origin_of_config(const FinetuneFlags& flags, TrainingArgs& args) {
  const fs::path path = model_path(flags.config_name, "--config_name");
  const HfModel model = read_hf_config(path);
  ArgMap settings = settings_of(model);
  settings.erase("tokenizer_type");
  settings.erase("padded_vocab_size");
  settings.erase("seq_length");
  use_checkpoint_args(args, settings, GivenSetting::kCommandLine);
  return {.settings = std::move(settings),
          .folder = fs::is_directory(path) ? path : path.parent_path(),
          .class_names = model.class_names};
}

// The value of --load: the checkpoints to resume from, or the model; empty: neither.
std::string named_source(const FinetuneFlags& flags) {
  if (!flags.resume_from_checkpoint.empty()) {
    return resume_point(flags.resume_from_checkpoint).checkpoints.string();
  }
  if (flags.model_name_or_path.empty()) return "";
  return model_path(flags.model_name_or_path, "--model_name_or_path").string();
}

}  // namespace

ModelKind named_kind(const FinetuneFlags& flags) {
  const std::string source = named_source(flags);
  if (!source.empty()) return find_source(source, 0, true).kind();
  if (flags.config_name.empty()) return {};
  return read_hf_config(model_path(flags.config_name, "--config_name")).transformer.kind;
}

namespace {

// The ids of special tokens that a config.json states; those of the model that a resumed training
// began with, if the flags still name it.
ArgMap special_ids(const FinetuneFlags& flags, const ArgMap& settings) {
  const std::string& model =
      flags.model_name_or_path.empty() ? flags.config_name : flags.model_name_or_path;
  ArgMap stated = settings;
  if (!flags.resume_from_checkpoint.empty() && !model.empty()) {
    const fs::path path = model_path(model, "--model_name_or_path");
    if (fs::exists(fs::is_directory(path) ? path / "config.json" : path)) {
      stated = settings_of(read_hf_config(path));
    }
  }
  std::erase_if(stated, [](const auto& entry) { return !stays_with_model(entry.first); });
  return stated;
}

}  // namespace

Origin choose_model(const FinetuneFlags& flags, TrainingArgs& args) {
  CheckpointConfig& checkpoint = args.checkpoint;
  Origin origin;
  const bool resumes = !flags.resume_from_checkpoint.empty();
  if (!resumes && !flags.config_name.empty()) {
    origin = origin_of_config(flags, args);
  } else if (resumes || !flags.model_name_or_path.empty()) {
    checkpoint.load = named_source(flags);
    checkpoint.use_checkpoint_args = true;
    const CheckpointSource source = find_source(checkpoint.load, checkpoint.ckpt_step, true);
    origin = {source.args(), source.directory(), source.hf() != nullptr};
    origin.has_weights = true;
    if (origin.is_hf) origin.class_names = source.hf()->class_names;
    checkpoint.finetune = !resumes && !origin.is_hf;
  }
  origin.special_ids = special_ids(flags, origin.settings);
  Defaults settings(flags, args);
  std::vector<const char*> taken = {"hidden_dropout", "attention_dropout", "init_method_std",
                                    "max_position_embeddings"};
  if (args.transformer.is_encoder_decoder()) taken.push_back("position_embedding_type");
  for (const char* dest : taken) {
    const auto found = origin.settings.find(dest);
    if (found != origin.settings.end()) settings.set(dest, found->second, dest);
  }
  return origin;
}

namespace {

bool names_tokenizer(const TrainingArgs& args) {
  return args.given.contains("vocab_file") || args.given.contains("tokenizer_model") ||
         args.given.contains("vocab_size");
}

}  // namespace

void choose_tokenizer(const FinetuneFlags& flags, const Origin& origin, TrainingArgs& args) {
  if (names_tokenizer(args)) {
    if (!flags.tokenizer_name.empty()) {
      args.warnings.emplace_back(
          "--tokenizer_name has no effect: --vocab-file, --tokenizer-model or --vocab-size names "
          "another tokenizer");
    }
    return;
  }
  const fs::path folder = flags.tokenizer_name.empty()
                              ? origin.folder
                              : model_path(flags.tokenizer_name, "--tokenizer_name");
  const bool is_checkpoint = flags.tokenizer_name.empty() && !origin.is_hf;
  const std::optional<TokenizerConfig> found =
      is_checkpoint ? tokenizer_of_checkpoint(folder) : tokenizer_of_model(folder);
  if (!found) {
    throw ConfigError(fmt::format(
        "{}: no tokenizer is there (tokenizer.json, or vocab.json and merges.txt); give its folder "
        "with --tokenizer_name",
        folder.string()));
  }
  args.tokenizer = *found;
}

namespace {

int64_t positions_of(const TrainingArgs& args) { return args.transformer.max_position_embeddings; }

// Tokens of a sample: `given` by the flag, or `most` if it is 0, but not more than the model has
// positions.
int64_t chosen_length(const char* flag, int64_t given, int64_t most, const TrainingArgs& args) {
  const PositionEmbedding kind = args.transformer.position_embedding_type;
  const int64_t positions = kind == PositionEmbedding::kRelative ? 0 : positions_of(args);
  const int64_t wanted = given > 0 ? given : most;
  if (positions == 0 || wanted <= positions) return wanted;
  if (given > 0) {
    warn(
        fmt::format("{} {} is lowered to {}, the positions of the model", flag, wanted, positions));
  }
  return positions;
}

// Tokens of samples, by the kind of the model. Compat: the defaults of transformers' scripts.
void apply_sequence_lengths(const FinetuneFlags& flags, bool is_classifier, TrainingArgs& args) {
  constexpr int64_t kOfTexts = 1024;
  constexpr int64_t kOfClasses = 128;
  constexpr int64_t kOfSummaries = 128;
  Defaults settings(flags, args);
  if (args.transformer.is_encoder_decoder()) {
    if (!args.given.contains("seq_length")) {
      settings.set("encoder_seq_length",
                   chosen_length("--max_source_length", flags.max_source_length, kOfTexts, args),
                   "--max_source_length");
    }
    settings.set("decoder_seq_length",
                 chosen_length("--max_target_length", flags.max_target_length, kOfSummaries, args),
                 "--max_target_length");
    return;
  }
  const int64_t most = is_classifier ? kOfClasses : kOfTexts;
  settings.set("seq_length", chosen_length("--block_size", flags.block_size, most, args),
               "--block_size");
  if (positions_of(args) == 0) {
    settings.set("max_position_embeddings", args.transformer.seq_length, "--block_size");
  }
}

// Settings that only a BERT or a T5 has.
void apply_kind(const FinetuneFlags& flags, bool is_classifier, TrainingArgs& args) {
  if (args.transformer.is_decoder_only()) return;
  if (flags.mlm_probability) {
    Defaults(flags, args).set("mask_prob", *flags.mlm_probability, "--mlm_probability");
  }
  const bool is_bert = args.transformer.is_encoder_only();
  if (is_bert && !flags.megatron_dataset_flag) {  // the order of sentences is not learned
    OverrideSettings(args).set("bert_binary_head", false, "finetune");
  }
  // The samples get their special tokens when they are put together.
  if (!is_bert || is_classifier) args.tokenizer.tokenizer_hf_include_special_tokens = false;
}

LrDecayStyle decay_style_of(const std::string& type, int64_t warmup_steps) {
  if (type == "linear") return LrDecayStyle::kLinear;
  if (type == "cosine") return LrDecayStyle::kCosine;
  if (type == "constant" || type == "constant_with_warmup") return LrDecayStyle::kConstant;
  if (type == "inverse_sqrt" && warmup_steps > 0) return LrDecayStyle::kInverseSquareRoot;
  throw ConfigError(
      fmt::format("--lr_scheduler_type {} is not available; use linear, cosine, constant, "
                  "constant_with_warmup, or inverse_sqrt with --num_warmup_steps",
                  type));
}

// The names in --report_to; `all` stands for every one, for mlflow where a server is named.
std::set<std::string> chosen_trackers(const std::string& report_to) {
  const std::set<std::string> known = {"csv", "jsonl", "mlflow", "tensorboard", "wandb"};
  std::set<std::string> chosen;
  for (size_t begin = 0; begin <= report_to.size();) {
    const size_t end = std::min(report_to.find(',', begin), report_to.size());
    const std::string name = report_to.substr(begin, end - begin);
    begin = end + 1;
    if (name == "all") {
      std::set<std::string> all = known;
      if (std::getenv("MLFLOW_TRACKING_URI") == nullptr) all.erase("mlflow");
      return all;
    }
    if (!known.contains(name)) {
      throw ConfigError(fmt::format(
          "--report_to {}: {} is not available; use tensorboard, jsonl, csv, wandb, mlflow or all",
          report_to, name.empty() ? "an empty name" : name));
    }
    chosen.insert(name);
  }
  return chosen;
}

void apply_trackers(const FinetuneFlags& flags, TrainingArgs& args) {
  if (!flags.with_tracking) return;
  const std::string& named = flags.logging_dir.empty() ? flags.output_dir : flags.logging_dir;
  if (named.empty()) {
    throw ConfigError("--with_tracking needs --output_dir or --logging_dir for the records");
  }
  const fs::path folder = named;
  const std::set<std::string> chosen = chosen_trackers(flags.report_to);
  Defaults settings(flags, args);
  const auto set = [&](const char* tracker, const char* dest, const std::string& value) {
    if (chosen.contains(tracker)) settings.set(dest, value, "--report_to");
  };
  set("tensorboard", "tensorboard_dir", (folder / "tensorboard").string());
  set("jsonl", "metrics_jsonl", (folder / "metrics.jsonl").string());
  set("csv", "csv_dir", (folder / "csv").string());
  // Compat: the project of transformers' example script.
  const std::string project = "clm_no_trainer";
  const std::string name = folder.has_filename() ? folder.filename().string() : "finetune";
  set("wandb", "wandb_project", project);
  set("wandb", "wandb_exp_name", name);
  set("mlflow", "mlflow_experiment", project);
  set("mlflow", "mlflow_run_name", name);
  set("wandb", "wandb_save_dir", folder.string());
}

}  // namespace

void apply_flags(const FinetuneFlags& flags, bool is_classifier, TrainingArgs& args) {
  Defaults settings(flags, args);
  const auto set = [&](const char* dest, const ArgValue& value, const char* source) {
    settings.set(dest, value, source);
  };
  apply_sequence_lengths(flags, is_classifier, args);
  apply_kind(flags, is_classifier, args);
  set("micro_batch_size", flags.per_device_train_batch_size, "--per_device_train_batch_size");
  set("lr", flags.learning_rate, "--learning_rate");
  set("weight_decay", 0.0, "finetune");
  set("log_interval", int64_t{10}, "finetune");
  const LrDecayStyle style = decay_style_of(flags.lr_scheduler_type, flags.num_warmup_steps);
  set("lr_decay_style", std::string(name_of(style)), "--lr_scheduler_type");
  const bool warms_up = flags.lr_scheduler_type != "constant";
  set("lr_warmup_iters", warms_up ? flags.num_warmup_steps : 0, "--num_warmup_steps");
  if (!flags.output_dir.empty()) {
    set("save", (fs::path(flags.output_dir) / kCheckpoints).string(), "--output_dir");
  }
  apply_trackers(flags, args);
}

namespace {

int64_t integer_or_0(const ArgMap& settings, const char* name) {
  const auto found = settings.find(name);
  const int64_t* value = found != settings.end() ? std::get_if<int64_t>(&found->second) : nullptr;
  return value != nullptr ? *value : 0;
}

// Forgets what config.json only follows from: the size of a head and of the MLP.
void follow_given_sizes(const ArgMap& stored, TrainingArgs& args) {
  const auto given = [&](const char* dest) { return args.given.contains(dest); };
  const int64_t hidden = integer_or_0(stored, "hidden_size");
  const int64_t heads = integer_or_0(stored, "num_attention_heads");
  if ((given("hidden_size") || given("num_attention_heads")) && !given("kv_channels") &&
      integer_or_0(stored, "kv_channels") * heads == hidden) {
    args.transformer.kv_channels = 0;
  }
  if (given("hidden_size") && !given("ffn_hidden_size") &&
      integer_or_0(stored, "ffn_hidden_size") == 4 * hidden) {
    args.transformer.ffn_hidden_size = 0;
  }
}

}  // namespace

void settle_architecture(const Origin& origin, TrainingArgs& args,
                         std::vector<std::string>& problems) {
  if (!origin.has_weights) return follow_given_sizes(origin.settings, args);
  for (const std::string& replaced : replaced_flags(args, origin.settings)) {
    problems.push_back(replaced +
                       "; its weights fit no other model: remove the flag, or train a new model "
                       "with --config_name");
  }
}

namespace {

Lengths lengths_of(const FinetuneFlags& flags, int64_t num_samples, int64_t global_batch_size) {
  Lengths lengths;
  lengths.epoch_iters = epoch_iterations(num_samples, global_batch_size);
  lengths.train_iters = flags.max_train_steps > 0 ? flags.max_train_steps
                                                  : flags.num_train_epochs * lengths.epoch_iters;
  lengths.epochs = (lengths.train_iters + lengths.epoch_iters - 1) / lengths.epoch_iters;
  return lengths;
}

// The batch, and the iterations between checkpoints.
void apply_batch(const FinetuneFlags& flags, int64_t replicas, TrainingArgs& args) {
  Defaults(flags, args)
      .set("global_batch_size",
           args.training.micro_batch_size * flags.gradient_accumulation_steps * replicas,
           "--gradient_accumulation_steps");
}

void apply_checkpoints(const FinetuneFlags& flags, const Lengths& lengths, TrainingArgs& args) {
  if (!args.checkpoint.save.empty()) {
    const int64_t at_the_end = lengths.train_iters + 1;
    const bool by_epoch = flags.checkpointing_steps == "epoch";
    Defaults(flags, args)
        .set("save_interval",
             by_epoch && lengths.epoch_iters > 0
                 ? lengths.epoch_iters
                 : integer_of(flags.checkpointing_steps).value_or(at_the_end),
             "--checkpointing_steps");
  }
  if (flags.resume_from_checkpoint.empty()) return;
  const ResumePoint point = resume_point(flags.resume_from_checkpoint);
  if (point.unit == "step") args.checkpoint.ckpt_step = point.number;
  if (point.unit == "epoch") {
    args.checkpoint.ckpt_step = (point.number + 1) * lengths.epoch_iters;
  }
}

}  // namespace

Lengths apply_samples(const FinetuneFlags& flags, int64_t num_train, int64_t num_valid,
                      int64_t replicas, TrainingArgs& args) {
  apply_batch(flags, replicas, args);
  TrainingConfig& training = args.training;
  const int64_t batch = std::max<int64_t>(training.global_batch_size, 1);
  const Lengths lengths = lengths_of(flags, num_train, batch);
  OverrideSettings settings(args);
  settings.set("train_iters", lengths.train_iters, "--max_train_steps");
  settings.set("eval_interval", lengths.epoch_iters, "the length of an epoch");
  settings.set("eval_iters", epoch_iterations(num_valid, batch), "the validation texts");
  apply_checkpoints(flags, lengths, args);
  return lengths;
}

Lengths apply_indexed_data(const FinetuneFlags& flags, int64_t replicas, TrainingArgs& args) {
  apply_batch(flags, replicas, args);
  if (flags.max_train_steps > 0 && args.training.train_samples == 0) {
    Defaults(flags, args).set("train_iters", flags.max_train_steps, "--max_train_steps");
  }
  const Lengths lengths{.epoch_iters = 0, .train_iters = args.training.train_iters, .epochs = 0};
  apply_checkpoints(flags, lengths, args);
  return lengths;
}

}  // namespace megatron::cli
