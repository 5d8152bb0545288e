#include "annex/deepspeed/apply_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "annex/deepspeed/bigscience_flags.h"
#include "annex/deepspeed/config.h"
#include "megatron/core/error.h"
#include "megatron/core/number_text.h"
#include "megatron/frontends/override_settings.h"
#include "megatron/parallel/replicas.h"
#include "megatron/training/curriculum.h"

namespace megatron::frontends {
namespace {

// A flag that is only a word of the command line; nothing if it is not given.
template <class T>
std::optional<T> other_flag(const TrainingArgs& args, const char* dest) {
  const auto found = args.other.find(dest);
  if (!args.given.contains(dest) || found == args.other.end()) return std::nullopt;
  const T* const value = std::get_if<T>(&found->second);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<std::string> deepspeed_config(const TrainingArgs& args) {
  return other_flag<std::string>(args, "deepspeed_config");
}

std::optional<int64_t> train_tokens(const TrainingArgs& args) {
  return other_flag<int64_t>(args, "train_tokens");
}

std::optional<int64_t> lr_decay_tokens(const TrainingArgs& args) {
  return other_flag<int64_t>(args, "lr_decay_tokens");
}

std::optional<std::vector<std::string>> skip_train_iteration_range(const TrainingArgs& args) {
  return other_flag<std::vector<std::string>>(args, "skip_train_iteration_range");
}

class ConfigApplier {
 public:
  ConfigApplier(const DeepSpeedConfig& config, const std::string& source, TrainingArgs& args,
                std::vector<std::string>& problems)
      : config_(config), source_(source), args_(args), settings_(args), problems_(problems) {}

  void apply() {
    apply_batches();
    apply_precision("fp16", config_.fp16.enabled);
    apply_precision("bf16", config_.bf16);
    if (settings_.value("fp16") == ArgValue(true)) apply_loss_scale();
    apply_clipping();
    apply_zero();
    args_.training.curriculum = config_.curriculum;
    if (config_.loads_universal) load_universal_checkpoint(args_);
    for (const std::string& sentence : config_.unavailable) report(sentence);
    warn_of(config_.without_effect, "no effect here");
    warn_of(config_.unknown, "not settings of DeepSpeed");
  }

 private:
  void report(const std::string& sentence) {
    problems_.push_back(fmt::format("{}: {}", source_, sentence));
  }

  void warn_of(const std::vector<std::string>& keys, const char* what) {
    if (keys.empty()) return;
    args_.warnings.push_back(fmt::format("{}: {}: {}", source_, what, fmt::join(keys, ", ")));
  }

  void agree(const char* dest, const char* flag, int64_t flag_value, const char* key,
             int64_t value) {
    if (settings_.is_given(dest) && flag_value != value) {
      report(
          fmt::format("{} is {} and {} is {}; they must be equal", key, value, flag, flag_value));
    } else {
      settings_.set(dest, value, source_);
    }
  }

  void apply_batches() {
    agree("micro_batch_size", "--micro-batch-size", args_.training.micro_batch_size,
          "train_micro_batch_size_per_gpu", config_.train_micro_batch_size_per_gpu);
    agree("global_batch_size", "--global-batch-size", args_.training.global_batch_size,
          "train_batch_size", config_.train_batch_size);
  }

  void apply_precision(const std::string& name, std::optional<bool> enabled) {
    if (!enabled) return;  // "auto": as the flags say
    const bool flag = settings_.value(name) == ArgValue(true);
    if (flag == *enabled) return;
    report(*enabled ? fmt::format("{}.enabled is true; add --{}", name, name)
                    : fmt::format("--{} is given; set {}.enabled to true", name, name));
  }

  void apply_loss_scale() {
    const DeepSpeedFp16& fp16 = config_.fp16;
    if (fp16.loss_scale > 0) {
      settings_.set("loss_scale", fp16.loss_scale, source_);
      return;
    }
    settings_.set(
        "initial_loss_scale",
        std::ldexp(1.0, static_cast<int>(std::min<int64_t>(fp16.initial_scale_power, 64))),
        source_);
    settings_.set("loss_scale_window", fp16.loss_scale_window, source_);
    settings_.set("hysteresis", fp16.hysteresis, source_);
    settings_.set("min_loss_scale", fp16.min_loss_scale, source_);
  }

  void apply_clipping() {
    if (!config_.gradient_clipping) return;
    const double clip = *config_.gradient_clipping;
    if (!config_.names_clipping) {
      args_.warnings.push_back(fmt::format(
          "{}: without gradient_clipping DeepSpeed does not clip gradients, whatever --clip-grad "
          "says",
          source_));
    }
    settings_.set("clip_grad", clip, source_);
  }

  void apply_zero() {
    const int64_t stage = config_.zero_stage;
    agree("zero_stage", "--zero-stage", args_.parallel.zero_stage, "zero_optimization.stage",
          stage);
    // Compat: with bf16, DeepSpeed's pipeline engine shards the optimizer's state in stage 0, too.
    const bool is_bf16 = settings_.value("bf16") == ArgValue(true);
    if (stage >= 1 || is_bf16) settings_.set("use_distributed_optimizer", true, source_);
    if (config_.offloads_optimizer) settings_.set("optimizer_cpu_offload", true, source_);
  }

  const DeepSpeedConfig& config_;
  const std::string& source_;
  TrainingArgs& args_;
  OverrideSettings settings_;
  std::vector<std::string>& problems_;
};

// As few samples as hold these tokens; with a curriculum, those of whole iterations. Nothing if
// that cannot be known because of another problem, which is reported elsewhere.
std::optional<int64_t> samples_of(int64_t tokens, const TrainingArgs& args) {
  const int64_t length = args.transformer.seq_length;
  if (length < 1) return std::nullopt;
  const auto rounded_up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const CurriculumConfig& curriculum = args.training.curriculum;
  if (!curriculum.is_on()) return rounded_up(tokens, length);
  const int64_t batch = args.training.global_batch_size;
  if (batch < 1 || !problems(curriculum, length, 1).empty()) return std::nullopt;
  return Curriculum(curriculum).iterations_of(rounded_up(tokens, batch)) * batch;
}

// --train-tokens: as many samples as hold these tokens.
void apply_length(TrainingArgs& args) {
  const std::optional<int64_t> tokens = train_tokens(args);
  const std::optional<int64_t> held = tokens ? samples_of(*tokens, args) : std::nullopt;
  if (!held) return;
  const int64_t samples = *held;
  const int64_t given = args.training.train_samples;
  args.training.train_samples = given > 0 ? std::min(given, samples) : samples;
  args.given.insert("train_samples");
}

// --lr-decay-tokens: as many samples as hold these tokens. Where sequences have one length the rate
// is the same function of tokens as of samples.
void apply_decay(TrainingArgs& args, std::vector<std::string>& problems) {
  const std::optional<int64_t> tokens = lr_decay_tokens(args);
  const std::optional<int64_t> samples = tokens ? samples_of(*tokens, args) : std::nullopt;
  if (!samples) return;
  if (args.training.train_samples == 0) {
    problems.push_back(fmt::format(
        "--lr-decay-tokens {} needs --train-samples or --train-tokens; with --train-iters use "
        "--lr-decay-iters",
        *tokens));
    return;
  }
  args.optimizer.lr_decay_samples = *samples;
  args.optimizer.lr_decays_by_tokens = true;
  args.given.insert("lr_decay_samples");
}

// --skip-train-iteration-range: "A-B", both included.
void apply_skipped(TrainingArgs& args, std::vector<std::string>& problems) {
  const auto ranges = skip_train_iteration_range(args);
  if (!ranges) return;
  std::set<int64_t> skipped(args.training.iterations_to_skip.begin(),
                            args.training.iterations_to_skip.end());
  for (const std::string& range : *ranges) {
    const size_t dash = range.find('-');
    const std::optional<int64_t> first = integer_of(range.substr(0, dash));
    const std::optional<int64_t> last =
        dash == std::string::npos ? std::nullopt : integer_of(range.substr(dash + 1));
    constexpr int64_t kMost = 1000000;
    if (!first || !last || *first < 1 || *last < *first || *last - *first >= kMost) {
      problems.push_back(fmt::format(
          "--skip-train-iteration-range {} must be the first and the last iteration to skip, as in "
          "100-120",
          range));
      continue;
    }
    for (int64_t iteration = *first; iteration <= *last; ++iteration) skipped.insert(iteration);
  }
  args.training.iterations_to_skip.assign(skipped.begin(), skipped.end());
  args.given.insert("iterations_to_skip");
}

}  // namespace

void apply_deepspeed_config(const nlohmann::json& file, const std::string& source,
                            TrainingArgs& args, int64_t world_size,
                            std::vector<std::string>& problems) {
  try {
    const DeepSpeedConfig config =
        deepspeed_config_of(file, source, replicas_of(args.parallel, world_size),
                            {args.training.micro_batch_size, args.training.global_batch_size});
    ConfigApplier(config, source, args, problems).apply();
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
}

void apply_deepspeed_flags(TrainingArgs& args, int64_t world_size,
                           std::vector<std::string>& problems) {
  apply_bigscience_flags(args, problems);
  apply_skipped(args, problems);
  if (const std::optional<std::string> path = deepspeed_config(args)) {
    try {
      apply_deepspeed_config(load_deepspeed_json(*path), *path, args, world_size, problems);
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
  }
  apply_length(args);
  apply_decay(args, problems);
}

}  // namespace megatron::frontends
