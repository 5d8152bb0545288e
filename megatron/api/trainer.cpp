#include "megatron/trainer.h"

#include <optional>
#include <utility>

#include "megatron/api/handles.h"
#include "megatron/core/log.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/run/prepared_run.h"
#include "megatron/run/training_run.h"
#include "megatron/settings/training_args.h"
#include "megatron/training/trainer.h"

namespace megatron::api {
namespace {

// A GPT's task with the changes of a Task.
class ChangedGptTask final : public GptTask {
 public:
  ChangedGptTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                 const Task& changes)
      : GptTask(config, std::move(tokenizer)), changes_(changes) {}
  ~ChangedGptTask() override { close(); }

  void adjust_parameter(OptimizedParameter& parameter) const override {
    GptTask::adjust_parameter(parameter);
    ParameterOptions options = {parameter.has_weight_decay, parameter.lr_mult};
    changes_.adjust_parameter(parameter.name, parameter.variable.data().shape().dims(), options);
    parameter.has_weight_decay = options.has_weight_decay;
    parameter.lr_mult = options.lr_mult;
  }

  MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                std::span<const Variable> activations) override {
    MicrobatchOutput output = GptTask::forward_step(split, chunk, batch, activations);
    if (!output.logged.empty()) output.logged.front().first = changes_.loss_name();
    return output;
  }

 protected:
  SplitDatasets open_datasets(const SampleCounts& sizes) const override {
    const auto samples = [&](Split split) {
      return changes_.samples(split, sizes.of(split), tokens_per_sample() + 1);
    };
    SplitDatasets datasets = {samples(Split::kTrain), samples(Split::kValid),
                              samples(Split::kTest)};
    return datasets.train != nullptr ? datasets : GptTask::open_datasets(sizes);
  }

  void adjust_batch(GptBatch& batch, Split split) const override {
    GptTask::adjust_batch(batch, split);
    changes_.adjust_batch(batch, split);
  }

 private:
  const Task& changes_;
};

PreparedRun prepared(const Settings& settings, const World& world) {
  const LogScope on_first(world.rank() == 0);
  const std::vector<std::string> words = settings.words();
  std::vector<std::string> problems;
  TrainingArgs args = parsed_flags(words, ModelKind::kGpt, problems);
  return prepare_run(std::move(args), std::move(problems), world.group());
}

const Task kNoChanges{};

}  // namespace

std::shared_ptr<const SampleDataset> Task::samples(Split, int64_t, int64_t) const {
  return nullptr;
}
void Task::adjust_batch(GptBatch&, Split) const {}
void Task::adjust_parameter(std::string_view, std::span<const int64_t>, ParameterOptions&) const {}

struct Trainer::State {
  State(const Settings& settings, const Task& changes, const World& world)
      : begun(prepared(settings, world)),
        task(begun.args, begun.tokenizer, changes),
        run(begun, task, world.group()) {
    run.load(begun.source);
  }

  const PreparedRun begun;
  ChangedGptTask task;
  TrainingRun run;
  std::optional<megatron::Trainer> stepper;  // of train_step()
};

Trainer::Trainer(const Settings& settings, const World& world)
    : Trainer(settings, kNoChanges, world) {}
Trainer::Trainer(const Settings& settings, const Task& task, const World& world)
    : state_(std::make_unique<State>(settings, task, world)) {}
Trainer::~Trainer() = default;

void Trainer::train() {
  state_->stepper.reset();
  state_->run.train();
}

StepResult Trainer::train_step() {
  TrainingState& state = state_->run.state();
  if (!state_->stepper) {
    state_->task.open_data(state.progress);
    state_->stepper.emplace(state_->run.config(), state_->task, state);
  }
  state.microbatches.update(state.progress.consumed_train_samples, true);
  state_->stepper->train_step();
  state_->stepper->finish_step();
  const IterationResult result = state_->stepper->take_finished().value().result;
  StepResult step;
  step.iteration = state.progress.iteration;
  step.is_skipped = result.is_skipped;
  if (!result.losses.empty()) step.loss = result.losses.front().second;
  step.grad_norm = result.grad_norm;
  step.learning_rate = result.learning_rate;
  return step;
}

void Trainer::save() { state_->run.save(); }
int64_t Trainer::iteration() const { return state_->run.state().progress.iteration; }
std::vector<NamedTensor> Trainer::parameters() const {
  return parameters_of(state_->run.state().chunks);
}

}  // namespace megatron::api
