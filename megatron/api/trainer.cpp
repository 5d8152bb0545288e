#include "megatron/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "megatron/api/changed_task.h"
#include "megatron/api/given_texts.h"
#include "megatron/api/handles.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/frontends/override_settings.h"
#include "megatron/inference/generate.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/parallel/data_parallel.h"
#include "megatron/run/prepared_run.h"
#include "megatron/run/training_run.h"
#include "megatron/settings/training_args.h"
#include "megatron/training/trainer.h"

namespace megatron::api {
namespace {

// As `megatron finetune --config_name`: the flags come first.
void use_model_config(TrainingArgs& args, const HfModel& model, const std::string& path) {
  ArgMap settings = settings_of(model);
  for (const char* name : {"tokenizer_type", "padded_vocab_size", "seq_length"}) {
    settings.erase(name);
  }
  use_checkpoint_args(args, settings, GivenSetting::kCommandLine);
  frontends::OverrideSettings overrides(args);
  for (const char* name : {"hidden_dropout", "attention_dropout", "max_position_embeddings"}) {
    const auto found = settings.find(name);
    if (found != settings.end() && !args.given.contains(name)) {
      overrides.set(name, found->second, path);
    }
  }
}

std::optional<HfModel> model_of(const Settings& settings) {
  if (settings.model_config().empty()) return std::nullopt;
  return read_hf_config(settings.model_config());
}

PreparedRun prepared(ModelKind kind, const Settings& settings, const std::optional<HfModel>& model,
                     const Task& task, const World& world) {
  const LogScope on_first(world.rank() == 0);
  const std::vector<std::string> words = settings.words();
  std::vector<std::string> problems;
  TrainingArgs args = parsed_flags(words, kind, problems);
  if (model) use_model_config(args, *model, settings.model_config());
  {
    frontends::OverrideSettings overrides(args);
    for (const auto& [name, value] : settings.arguments()) overrides.set(name, value, "arguments");
  }
  if (task.loss_inputs() != LossInputs::kNone) {
    args.training.cuda_graph = false;  // a graph does not call the task
    if (args.parallel.context_parallel_size != 1) {
      problems.push_back(
          fmt::format("--context-parallel-size {} must be 1 with a loss of the task's own, which "
                      "gets whole sequences; divide the model by --tensor-model-parallel-size",
                      args.parallel.context_parallel_size));
    }
  }
  return prepare_run(std::move(args), std::move(problems), world.group());
}

const Task kNoChanges{};

StepResult step_of(const FinishedIteration& finished) {
  const IterationResult& result = finished.result;
  StepResult step;
  step.iteration = finished.progress.iteration;
  step.is_skipped = result.is_skipped;
  if (!result.losses.empty()) step.loss = result.losses.front().second;
  step.grad_norm = result.grad_norm;
  step.learning_rate = result.learning_rate;
  step.loss_scale = result.loss_scale;
  step.consumed_samples = finished.progress.consumed_train_samples;
  step.losses = result.losses;
  return step;
}

}  // namespace

std::shared_ptr<const SampleDataset> Task::samples(Split, int64_t, int64_t) const {
  return nullptr;
}
void Task::adjust_batch(GptBatch&, Split) const {}
LossResult Task::loss(const LossInput&) const {
  throw Unsupported("a task with loss_inputs() has a loss(): override both");
}
void Task::adjust_parameter(std::string_view, std::span<const int64_t>, ParameterOptions&) const {}

struct Trainer::State {
  State(ModelKind kind, const Settings& settings, const Task& changes, const World& the_world)
      : State(kind, settings, model_of(settings), changes, the_world) {}
  State(ModelKind kind, const Settings& settings, const std::optional<HfModel>& model,
        const Task& changes, const World& the_world)
      : world(the_world),
        begun(prepared(kind, settings, model, changes, world)),
        task(make_task(begun, changes, model ? std::ssize(model->class_names) : 0)),
        run(begun, *task, world.group()) {
    run.load(begun.source);
  }

  static std::unique_ptr<ModelTask> make_task(const PreparedRun& begun, const Task& changes,
                                              int64_t num_classes) {
    const TransformerConfig& model = begun.args.transformer;
    if (model.is_decoder_only()) {
      return std::make_unique<ChangedGptTask>(begun.args, begun.tokenizer, changes);
    }
    if (model.is_encoder_decoder()) {
      return std::make_unique<GivenT5Task>(begun.args, begun.tokenizer, changes);
    }
    BertHeads heads;
    if (num_classes > 0) {
      heads = {.classifier = "classification_head", .num_classes = num_classes};
    }
    return std::make_unique<GivenBertTask>(begun.args, begun.tokenizer, changes, heads);
  }

  // Lines are the last rank's from the first iteration on.
  LogScope scope() const { return LogScope(world.rank() == world.size() - 1); }

  void open_data() {
    if (!std::exchange(has_data, true)) run.open_data();
  }
  // Opens the data. Throws ConfigError unless it has the split.
  void expect_split(Split split) {
    open_data();
    if (task->has_split(split)) return;
    throw ConfigError(
        "evaluate: the run has no data for this split; see --split, --valid-data-path and "
        "--eval-iters");
  }
  megatron::Trainer& trainer() {
    if (!stepper) stepper = run.make_trainer();
    return *stepper;
  }
  StepResult one_step() {
    TrainingState& state = run.state();
    state.microbatches.update(state.progress.consumed_train_samples, true);
    trainer().train_step();
    trainer().finish_step();
    return step_of(*trainer().take_finished());
  }

  // Lets the task read the caller's rows.
  GivenBatch take(const Batch& batch) {
    return GivenBatch(dynamic_cast<TakesBatches&>(*task), batch, rows());
  }
  int64_t rows() {
    TrainingState& state = run.state();
    state.microbatches.update(state.progress.consumed_train_samples, true);
    return state.microbatches.num_microbatches() * run.config().training.micro_batch_size;
  }

  const World world;
  const PreparedRun begun;
  const std::unique_ptr<ModelTask> task;
  TrainingRun run;
  std::unique_ptr<megatron::Trainer> stepper;
  bool has_data = false;
  enum class Loop { kNone, kRuns, kEnded } loop = Loop::kNone;  // of next()
};

Trainer::Trainer(const Settings& settings, const World& world)
    : Trainer(ModelKind::kGpt, settings, kNoChanges, world) {}
Trainer::Trainer(const Settings& settings, const Task& task, const World& world)
    : Trainer(ModelKind::kGpt, settings, task, world) {}
Trainer::Trainer(ModelKind kind, const Settings& settings, const World& world)
    : Trainer(kind, settings, kNoChanges, world) {}
Trainer::Trainer(ModelKind kind, const Settings& settings, const Task& task, const World& world)
    : state_(std::make_unique<State>(kind, settings, task, world)) {}
Trainer::~Trainer() = default;

void Trainer::train() {
  while (next()) {
  }
}

std::optional<StepResult> Trainer::next() {
  State& state = *state_;
  using Loop = State::Loop;
  if (state.loop == Loop::kEnded) return std::nullopt;
  state.open_data();
  const LogScope on_last = state.scope();
  megatron::Trainer& trainer = state.trainer();
  if (state.loop == Loop::kNone) {
    state.loop = trainer.begin() ? Loop::kRuns : Loop::kEnded;
    if (state.loop == Loop::kEnded) return std::nullopt;
  }
  const int64_t before = iteration();
  trainer.iterate();
  if (iteration() > before) return step_of(*trainer.settle());
  state.loop = Loop::kEnded;
  trainer.end();
  return std::nullopt;
}

StepResult Trainer::train_step() {
  state_->open_data();
  return state_->one_step();
}

StepResult Trainer::train_step(const Batch& batch) {
  const GivenBatch given = state_->take(batch);
  return state_->one_step();
}

std::vector<std::vector<int32_t>> Trainer::generate(std::span<const std::vector<int32_t>> prompts,
                                                    const GenerateOptions& options) {
  const TrainingState& state = state_->run.state();
  const auto* const gpt = dynamic_cast<const GptModel*>(state.chunks.front());
  if (gpt == nullptr) throw Unsupported("generate: is for a GPT");
  const bool has_layout = state.chunks.size() == 1 && state.parallel.context.size() == 1 &&
                          !state.parallel.tensor.sequence_parallel;
  if (!has_layout) {
    throw Unsupported(
        "generate: the run divides sequences or interleaves stages; train without "
        "--sequence-parallel, --context-parallel-size and virtual stages, or load its checkpoint "
        "as a Model");
  }
  return continued(InferenceModel(*gpt, state.parallel), prompts, options,
                   gpt->config().counted_vocab_size());
}

Losses Trainer::evaluate(Split split) {
  state_->expect_split(split);
  return state_->trainer().evaluate(split);
}

Losses Trainer::evaluate_step(Split split) {
  state_->expect_split(split);
  return state_->trainer().evaluate_step(split);
}

Losses Trainer::evaluate_step(const Batch& batch) {
  const GivenBatch given = state_->take(batch);
  return state_->trainer().evaluate_step(Split::kValid);
}

void Trainer::save() {
  if (state_->run.config().checkpoint.save.empty()) {
    throw ConfigError("save: the settings have no --save; give it, or name a directory");
  }
  state_->run.save();
}
void Trainer::save(const std::string& directory) { state_->run.save_in(directory); }
void Trainer::load(const std::string& directory) {
  state_->run.load(find_source(directory, 0, true));
}

int64_t Trainer::iteration() const { return state_->run.state().progress.iteration; }
int64_t Trainer::rows() const { return state_->rows(); }
int64_t Trainer::seq_length() const { return state_->run.config().transformer.seq_length; }
ArgMap Trainer::resolved() const { return arg_map(state_->begun.args); }

Layout Trainer::layout() const {
  const ParallelContext& parallel = state_->run.state().parallel;
  return {.tensor_rank = parallel.tensor.rank(),
          .tensor_size = parallel.tensor.size(),
          .pipeline_rank = parallel.pipeline.rank(),
          .pipeline_size = parallel.pipeline.size(),
          .data_rank = parallel.replica(),
          .data_size = parallel.num_replicas()};
}

std::vector<float> Trainer::data_parallel_mean(std::span<const float> values) const {
  std::vector<megatron::Tensor> losses;
  for (const float value : values) losses.push_back(full({}, value, DType::kFloat32, Stream{}));
  const megatron::Tensor mean =
      avg_losses_across_data_parallel_group(losses, state_->run.state().parallel.data);
  return {mean.span<float>().begin(), mean.span<float>().end()};
}

std::vector<float> Trainer::data_parallel_gather(std::span<const float> values) const {
  const megatron::Tensor all = gather_across_data_parallel_groups(
      tensor_of(values, {std::ssize(values)}), state_->run.state().parallel.data);
  return {all.span<float>().begin(), all.span<float>().end()};
}

std::vector<NamedTensor> Trainer::parameters() const {
  return parameters_of(state_->run.state().chunks);
}

}  // namespace megatron::api
