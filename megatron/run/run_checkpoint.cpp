#include "megatron/run/run_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "megatron/checkpoint/async_save.h"
#include "megatron/checkpoint/chunks.h"
#include "megatron/checkpoint/contents.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/save.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/interchange/hf/adapters.h"
#include "megatron/interchange/model_kind.h"
#include "megatron/interchange/save_contents.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/nn/module.h"
#include "megatron/run/upcycling.h"
#include "megatron/training/replica_check.h"

namespace megatron {
namespace {

// Keys of CheckpointState::scalars; Megatron-LM's names where it has them.
constexpr const char* kScheduler = "opt_param_scheduler";
constexpr const char* kScaler = "grad_scaler";
constexpr const char* kOptimizer = "optimizer";
constexpr const char* kRandom = "rng";
constexpr const char* kProgress = "progress";

template <class T>
T value_of(const std::map<std::string, ArgMap>& scalars, const char* owner, const char* name) {
  const auto map = scalars.find(owner);
  if (map != scalars.end()) {
    const auto entry = map->second.find(name);
    if (entry != map->second.end()) {
      if (const T* value = std::get_if<T>(&entry->second)) return *value;
      if constexpr (std::is_same_v<T, double>) {  // a whole number may be stored as one
        if (const auto* value = std::get_if<int64_t>(&entry->second)) {
          return static_cast<double>(*value);
        }
      }
    }
  }
  throw FormatError(fmt::format(
      "the checkpoint's {} has no usable value {}; start from its weights with --finetune", owner,
      name));
}

// A rank saves each part that it is the first to hold, and loads all its parts.
enum class Use { kSave, kLoad };

void append(std::vector<CheckpointTensor>& tensors, std::vector<CheckpointTensor> more) {
  for (CheckpointTensor& tensor : more) tensors.push_back(std::move(tensor));
}

std::map<std::string, std::vector<CheckpointTensor>> optimizer_tensors(
    const Optimizer& optimizer, const ParallelContext& parallel, bool is_distributed, Use use) {
  std::map<std::string, std::vector<CheckpointTensor>> tensors;
  optimizer.visit_state([&](const OptimizedParameter& parameter, std::string_view state,
                            const FlatSpan& part, const Tensor& run) {
    std::vector<CheckpointTensor>& section = tensors[std::string(state)];
    const MeshAxes copies = update_axes(parameter.gradient_axes, is_distributed);
    const bool is_first = parameter.counts_in_norm && parallel.is_first_along(copies);
    if (use == Use::kSave && !is_first) return;
    append(section, chunks_of(parameter.name, parameter.sharding, parameter.variable.shape(),
                              part.begin, run));
  });
  return tensors;
}

ArgMap scheduler_map(const ParameterSchedulerState& state) {
  ArgMap map = {{"max_lr", state.max_lr},
                {"min_lr", state.min_lr},
                {"lr_warmup_steps", state.lr_warmup_steps},
                {"lr_decay_steps", state.lr_decay_steps},
                {"lr_decay_style", std::string(name_of(state.lr_decay_style))},
                {"num_steps", state.num_steps}};
  if (state.weight_decay) {
    map["start_wd"] = state.weight_decay->start;
    map["end_wd"] = state.weight_decay->end;
    map["wd_incr_style"] = std::string(name_of(state.weight_decay->style));
    map["wd_incr_steps"] = state.weight_decay->steps;
  }
  return map;
}

ParameterSchedulerState scheduler_state(const std::map<std::string, ArgMap>& scalars) {
  const auto number = [&](const char* name) { return value_of<double>(scalars, kScheduler, name); };
  const auto count = [&](const char* name) { return value_of<int64_t>(scalars, kScheduler, name); };
  const auto text = [&](const char* name) {
    return value_of<std::string>(scalars, kScheduler, name);
  };
  const auto lr_style = lr_decay_style_of(text("lr_decay_style"));
  const auto wd_style = weight_decay_incr_style_of(text("wd_incr_style"));
  if (!lr_style || !wd_style) {
    throw FormatError(
        "the checkpoint's scheduler has an unknown style; use --override-opt_param-scheduler");
  }
  return {.max_lr = number("max_lr"),
          .min_lr = number("min_lr"),
          .lr_warmup_steps = number("lr_warmup_steps"),
          .lr_decay_steps = count("lr_decay_steps"),
          .lr_decay_style = *lr_style,
          .num_steps = count("num_steps"),
          .weight_decay = WeightDecaySchedule{.start = number("start_wd"),
                                              .end = number("end_wd"),
                                              .style = *wd_style,
                                              .steps = count("wd_incr_steps")}};
}

// DeepSpeed's files have only the position if the schedule was its own: the flags' schedule
// continues from there.
void load_scheduler(TrainingState& run, const std::map<std::string, ArgMap>& scalars,
                    const OptimizerConfig& config) {
  const auto stored = scalars.find(kScheduler);
  const bool has_position = stored != scalars.end() && stored->second.contains("num_steps");
  if (!has_position || stored->second.contains("max_lr")) {
    run.scheduler.load(scheduler_state(scalars), scheduler_load_of(config));
    return;
  }
  if (scheduler_load_of(config) == SchedulerLoad::kUseCheckpoint) {
    throw ConfigError(
        "--use-checkpoint-opt_param-scheduler: the checkpoint stores no schedule, only the "
        "position "
        "in it; give the schedule with --lr, --lr-decay-style and the like");
  }
  ParameterSchedulerState state = run.scheduler.state();
  state.num_steps = value_of<int64_t>(scalars, kScheduler, "num_steps");
  warn(
      fmt::format("the checkpoint stores no schedule of learning rates; that of the flags goes on "
                  "at sample {}",
                  state.num_steps));
  run.scheduler.load(state, SchedulerLoad::kUseCommandLine);
}

void load_optimizer_scalars(Optimizer& optimizer, const std::map<std::string, ArgMap>& scalars,
                            int64_t iteration) {
  OptimizerScalars loaded;
  const auto known = scalars.find(kOptimizer);
  if (known != scalars.end() && known->second.contains("group_steps")) {
    loaded.group_steps = value_of<std::vector<int64_t>>(scalars, kOptimizer, "group_steps");
  } else {
    // Other systems have one count for all groups, or none.
    const bool counts = known != scalars.end() && known->second.contains("step");
    if (!counts) {
      warn(
          fmt::format("the checkpoint has no count of optimizer updates; {} is assumed, the number "
                      "of iterations",
                      iteration));
    }
    loaded.group_steps.assign(optimizer.groups().size(),
                              counts ? value_of<int64_t>(scalars, kOptimizer, "step") : iteration);
  }
  // All groups are updated together, but not every pipeline stage has parameters of every group.
  const std::vector<int64_t>& steps = loaded.group_steps;
  if (!steps.empty() && std::equal(steps.begin() + 1, steps.end(), steps.begin())) {
    loaded.group_steps.assign(optimizer.groups().size(), steps.front());
  }
  if (scalars.contains(kScaler)) {
    loaded.loss_scaler = LossScalerState{
        .scale = value_of<double>(scalars, kScaler, "scale"),
        .growth_tracker = value_of<int64_t>(scalars, kScaler, "growth_tracker"),
        .hysteresis_tracker = value_of<int64_t>(scalars, kScaler, "hysteresis_tracker")};
  }
  optimizer.load(loaded);
}

// The model's tensors. Each data-parallel rank has its parts of divided parameters, and the first
// one all others.
std::vector<CheckpointTensor> model_tensors(const TrainingState& state, Use use) {
  std::vector<CheckpointTensor> tensors;
  for (const Module* chunk : state.chunks) {
    if (use == Use::kLoad) {
      append(tensors, chunks_of(*chunk));
      continue;
    }
    append(tensors, chunks_to_save(*chunk, [&](const ParameterInfo& info) {
             return state.parallel.is_first_along(info.copy_axes());
           }));
  }
  std::set<std::string> divided;
  for (const FlatBuffer& buffer : state.parameters.buffers()) {
    if (buffer.bucket_params.empty()) continue;
    for (const size_t index : buffer.parameters) {
      divided.insert(state.parameters.parameters()[index].name);
    }
  }
  std::erase_if(tensors, [&](const CheckpointTensor& t) { return divided.contains(t.name); });
  state.parameters.visit_divided(
      [&](const OptimizedParameter& parameter, const FlatSpan& part, const Tensor& elements) {
        if (use == Use::kSave && !parameter.counts_in_norm) return;
        append(tensors, chunks_of(parameter.name, parameter.sharding, parameter.variable.shape(),
                                  part.begin, elements));
      });
  return tensors;
}

CheckpointState state_of(const RunConfig& config, const TrainingState& state, bool with_optimizer,
                         Use use) {
  CheckpointState made;
  made.model = model_tensors(state, use);
  if (with_optimizer) {
    made.optimizer = optimizer_tensors(state.optimizer, state.parallel,
                                       config.parallel.use_distributed_optimizer, use);
  }
  return made;
}

// Everything that the run needs to continue with the same bits.
CheckpointState state_to_save(const RunConfig& config, const TrainingState& run,
                              const TrainTask& task, Use use = Use::kSave) {
  const bool is_local = use == Use::kLoad;  // it has everything
  const bool with_optimizer = is_local || !config.checkpoint.no_save_optim;
  const Progress& progress = run.progress;
  CheckpointState state = state_of(config, run, with_optimizer, use);
  state.iteration = progress.iteration;
  state.consumed_train_samples = progress.consumed_train_samples;
  state.consumed_valid_samples = progress.consumed_valid_samples;
  state.args = config.settings;
  state.scalars = task.recorded();
  state.scalars[kProgress] = {{"floating_point_operations", progress.floating_point_operations}};
  if (with_optimizer) {
    const OptimizerScalars scalars = run.optimizer.scalars();
    state.scalars[kScheduler] = scheduler_map(run.scheduler.state());
    state.scalars[kOptimizer] = {{"group_steps", scalars.group_steps}};
    if (scalars.loss_scaler) {
      state.scalars[kScaler] = {{"scale", scalars.loss_scaler->scale},
                                {"growth_tracker", scalars.loss_scaler->growth_tracker},
                                {"hysteresis_tracker", scalars.loss_scaler->hysteresis_tracker}};
    }
  }
  if (is_local || !config.checkpoint.no_save_rng) {
    state.scalars[kRandom] = {{"seed", static_cast<int64_t>(run.random.seed())}};
  }
  return state;
}

// The first step of every save. Throws ReplicaError if copies differ between ranks.
void expect_to_save(const RunConfig& config, TrainingState& run) {
  expect_equal_replicas(run);
  if (config.training.check_for_nan_in_loss_and_grad) return;
  if (std::isfinite(run.optimizer.parameter_norm())) return;
  warn(fmt::format(
      "iteration {} is saved with weights that are infinite or NaN, which training cannot mend; go "
      "on from an earlier checkpoint, without --no-check-for-nan-in-loss-and-grad",
      run.progress.iteration));
}

SaveOptions save_options(const CheckpointConfig& config, const std::vector<int64_t>& foreign) {
  return {.keep_last = config.keep_last,
          .retain_interval = config.save_retain_interval,
          .foreign = foreign};
}

// Writes all files before save() returns.
class DirectSaver : public RunSaver {
 public:
  DirectSaver(const RunConfig& config, TrainingState& state, const TrainTask& task,
              SaveOptions options)
      : config_(config), state_(state), task_(task), options_(std::move(options)) {}

  bool save() override {
    expect_to_save(config_, state_);
    const CheckpointState state = state_to_save(config_, state_, task_);
    if (config_.checkpoint.save_format != SaveFormat::kNative) {
      save_foreign(config_, state, state_.parallel.world);
    } else {
      save_checkpoint(config_.checkpoint.save, state, options_, state_.parallel.world);
    }
    return true;
  }
  bool finish(bool) override { return true; }

 private:
  const RunConfig& config_;
  TrainingState& state_;
  const TrainTask& task_;
  const SaveOptions options_;
};

// --async-save: writes while training continues.
class BackgroundSaver : public RunSaver {
 public:
  BackgroundSaver(const RunConfig& config, TrainingState& state, const TrainTask& task,
                  const SaveOptions& options)
      : config_(config),
        state_(state),
        task_(task),
        saver_(config.checkpoint.save, options, state.parallel.world) {}

  bool save() override {
    expect_to_save(config_, state_);
    saver_.save(state_to_save(config_, state_, task_));
    return false;
  }
  bool finish(bool waits) override {
    return (waits ? saver_.finish() : saver_.finish_if_written()).has_value();
  }

 private:
  const RunConfig& config_;
  TrainingState& state_;
  const TrainTask& task_;
  AsyncSaver saver_;
};

class LocalSaver : public RunSaver {
 public:
  LocalSaver(const RunConfig& config, TrainingState& state, const TrainTask& task,
             LocalCheckpoints& local)
      : config_(config), state_(state), task_(task), local_(local) {}

  bool save() override {
    expect_to_save(config_, state_);
    local_.save(state_to_save(config_, state_, task_, Use::kLoad));
    return true;
  }
  bool finish(bool) override { return true; }

 private:
  const RunConfig& config_;
  TrainingState& state_;
  const TrainTask& task_;
  LocalCheckpoints& local_;
};

// Lets what a GPT has not keep its first values: a Retro begins with the GPT's weights, and other
// missing tensors are an error. With --retro-fit-copy-mlp-norm the norms before cross-attention
// read those before the MLP.
void fit_retro(const RetroConfig& retro, const CheckpointContents& contents,
               std::vector<CheckpointTensor>& targets) {
  if (!retro.add_retriever) return;
  const StoredSection& stored = contents.sections.at(kWeightsSection);
  std::set<std::string> missing;
  std::set<std::string> copied;
  for (CheckpointTensor& target : targets) {
    if (!is_retro_parameter(target.name) || stored.contains(target.name)) continue;
    constexpr std::string_view kNorm = "pre_cross_attn_layernorm";
    std::string source = target.name;
    if (const size_t at = source.find(kNorm); at != std::string::npos) {
      source.replace(at, kNorm.size(), "pre_mlp_layernorm");
    }
    const bool is_copied = retro.fit_copy_mlp_norm && stored.contains(source);
    (is_copied ? copied : missing).insert(target.name);
    target.name = is_copied ? source : std::string();
  }
  std::erase_if(targets, [](const CheckpointTensor& target) { return target.name.empty(); });
  if (!missing.empty()) {
    print_line(fmt::format(" > {} tensors of Retro that the checkpoint has not begin anew:",
                           missing.size()));
    for (const std::string& name : missing) print_line("     " + name);
  }
  if (!copied.empty()) {
    print_line(
        fmt::format(" > {} tensors begin as those of the norm before the MLP:", copied.size()));
    for (const std::string& name : copied) print_line("     " + name);
  }
}

// The neighbours' encoder of a Retro has the same tensors with either residual. Throws ConfigError
// if the checkpoint is known to have another one than the run.
void expect_residual(const RetroConfig& retro, const CheckpointContents& contents) {
  const auto stored = contents.args.find("retro_encoder_residual");
  if (!retro.add_retriever || stored == contents.args.end()) return;
  const std::string now = retro.encoder_residual == RetroResidual::kPost ? "post" : "pre";
  if (stored->second == ArgValue(now)) return;
  throw ConfigError(
      fmt::format("--retro-encoder-residual {} differs from that of the checkpoint, {}; use that, "
                  "or --use-checkpoint-args",
                  now, text_of(stored->second)));
}

// Refuses a checkpoint that contradicts the run, or lacks what the run wants of it.
void expect_to_continue(const RunConfig& config, const CheckpointContents& contents,
                        const std::filesystem::path& directory) {
  const std::vector<std::string> problems = contradictions(contents.args, config.settings);
  if (!problems.empty()) throw ConfigError(problems);
  if (contents.has_optimizer() || contents.is_release) return;
  if (config.checkpoint.no_load_optim) return;
  const std::string& problem = contents.optimizer_problem;
  throw ConfigError(fmt::format(
      "{} has no optimizer state{} ({}); use --no-load-optim to go on without, or --finetune to "
      "begin at iteration 0",
      directory.string(), problem.empty() ? "" : " that can be read",
      problem.empty() ? "it was saved with --no-save-optim" : problem));
}

// Takes the numbers of a loaded state, whose tensors are in place.
void go_on(const RunConfig& config, TrainingState& run, const CheckpointState& state,
           bool with_optimizer) {
  run.progress = {.iteration = state.iteration,
                  .consumed_train_samples = state.consumed_train_samples,
                  .consumed_valid_samples = state.consumed_valid_samples,
                  .floating_point_operations =
                      value_of<double>(state.scalars, kProgress, "floating_point_operations")};
  if (with_optimizer) {
    load_optimizer_scalars(run.optimizer, state.scalars, state.iteration);
    load_scheduler(run, state.scalars, config.optimizer);
  } else {
    run.optimizer.reload_main_params();
  }
  if (!config.checkpoint.no_load_rng && state.scalars.contains(kRandom)) {
    const auto seed = static_cast<uint64_t>(value_of<int64_t>(state.scalars, kRandom, "seed"));
    run.random = RandomState(seed);
  }
  run.microbatches.update(run.progress.consumed_train_samples, false);
}

}  // namespace

std::unique_ptr<RunSaver> make_run_saver(const RunConfig& config, TrainingState& state,
                                         const TrainTask& task,
                                         const std::vector<int64_t>& foreign) {
  const CheckpointConfig& c = config.checkpoint;
  if (c.save.empty()) return nullptr;
  const SaveOptions options = save_options(c, foreign);
  if (c.async_save && c.save_format == SaveFormat::kNative) {
    return std::make_unique<BackgroundSaver>(config, state, task, options);
  }
  return std::make_unique<DirectSaver>(config, state, task, options);
}

std::unique_ptr<RunSaver> make_local_saver(const RunConfig& config, TrainingState& state,
                                           const TrainTask& task, LocalCheckpoints& local) {
  return std::make_unique<LocalSaver>(config, state, task, local);
}

bool load_local(const RunConfig& config, TrainingState& run, LocalCheckpoints& local,
                int64_t saved) {
  CheckpointState wanted = state_of(config, run, true, Use::kLoad);
  wanted.args = config.settings;
  const std::optional<int64_t> newest = local.newest(wanted);
  if (!newest || *newest <= saved) return false;
  print_line(fmt::format(" loading local checkpoints of iteration {}", *newest));
  const CheckpointContents contents = local.open(*newest);
  expect_to_continue(config, contents, contents.directory);
  run.optimizer.prepare_load();
  CheckpointState state = parts_as_tensors(state_of(config, run, true, Use::kLoad));
  load_checkpoint(contents, state);
  go_on(config, run, state, true);
  print_line(fmt::format("  successfully loaded local checkpoints at iteration {}", *newest));
  return true;
}

Parts wanted_parts(const CheckpointConfig& config) {
  return config.no_load_optim || config.finetune ? Parts::kWeights : Parts::kAll;
}

void load_run(const RunConfig& config, TrainingState& run, const CheckpointSource& source) {
  const CheckpointConfig& c = config.checkpoint;
  if (!source.exists()) {
    if (!c.load.empty()) {
      print_line(
          fmt::format("WARNING: could not find the metadata file {}/{} ", c.load, kTrackerFile));
      print_line("    will not load any checkpoints and will start from random");
    }
    return;
  }
  const bool is_hf = source.hf() != nullptr;
  print_line(is_hf ? fmt::format(" loading Hugging Face model from {}", c.load)
                   : fmt::format(" loading checkpoint from {}", source.directory().string()));
  expect_kind(source, config.transformer.kind);
  CheckpointContents contents = source.contents(config.settings);
  const bool is_upcycled = c.moe_use_upcycling && is_dense_source(contents, config.transformer);
  if (is_upcycled) upcycle(contents, config.transformer, c.moe_upcycling_granularity);
  const bool is_new = c.finetune || is_hf || is_upcycled;  // weights begin another run
  if (is_hf) {
    TransformerConfig model = config.transformer;
    if (is_upcycled) static_cast<ExpertConfig&>(model) = {};
    const std::vector<std::string> problems = contradictions(source.hf()->transformer, model);
    if (!problems.empty()) throw ConfigError(problems);
  } else if (!is_new) {
    expect_to_continue(config, contents, source.directory());
    if (source.format() == CheckpointFormat::kNative && run.parallel.world.rank() == 0) {
      for (const std::string& change : changed_architecture(contents.args, config.settings)) {
        warn(change);
      }
    }
  }
  expect_residual(config.transformer.retro, contents);
  const bool with_optimizer = !is_new && !c.no_load_optim && contents.has_optimizer();
  if (with_optimizer) run.optimizer.prepare_load();
  CheckpointState state = state_of(config, run, with_optimizer, Use::kLoad);
  if (is_new && !has_adapters(contents)) {  // new ones keep their first values
    std::erase_if(state.model, [](const CheckpointTensor& t) { return is_adapter(t.name); });
  }
  if (is_upcycled) {
    std::erase_if(state.model, [](const CheckpointTensor& t) { return is_new_of_experts(t.name); });
  }
  if (is_new) fit_retro(config.transformer.retro, contents, state.model);
  load_checkpoint(contents, state,
                  {.optimizer = with_optimizer, .is_part = run.parallel.world.size() > 1});
  expect_stored_hashes(contents, state_of(config, run, with_optimizer, Use::kSave),
                       run.parallel.world);
  if (is_upcycled) {
    share_router_rows(run.chunks, c.moe_upcycling_granularity);
    print_line(
        "  experts are made of the checkpoint's dense layers; the run begins at iteration 0");
  }
  if (is_new) {
    run.optimizer.reload_main_params();
    return;
  }
  go_on(config, run, state, with_optimizer);
  print_line(fmt::format("  successfully loaded checkpoint from {} at iteration {}", c.load,
                         run.progress.iteration));
}

void load_weights(const RunConfig& config, TrainingState& run, const CheckpointContents& contents,
                  const std::function<bool(std::string_view)>& is_new) {
  CheckpointState state = state_of(config, run, false, Use::kLoad);
  std::erase_if(state.model, [&](const CheckpointTensor& tensor) { return is_new(tensor.name); });
  load_checkpoint(contents, state, {.optimizer = false, .is_part = true});
  CheckpointState parts = state_of(config, run, false, Use::kSave);
  std::erase_if(parts.model, [&](const CheckpointTensor& tensor) { return is_new(tensor.name); });
  expect_stored_hashes(contents, parts, run.parallel.world);
  run.optimizer.reload_main_params();
}

}  // namespace megatron
