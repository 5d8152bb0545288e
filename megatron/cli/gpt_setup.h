#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "megatron/cli/args/training_args.h"
#include "megatron/device/stream.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/optimizer.h"
#include "megatron/training/trainer.h"

namespace megatron::cli {

// Everything a GPT training run owns, built from resolved args with padded_vocab_size known: the
// model with its first values, flat buffers, optimizer, schedules, counters.
class GptSetup {
 public:
  explicit GptSetup(const TrainingArgs& args);
  GptSetup(const GptSetup&) = delete;
  GptSetup& operator=(const GptSetup&) = delete;

  const TrainingArgs& args() const { return args_; }
  Stream stream() const { return stream_.get(); }
  const GptModel& model() const { return *model_; }
  RandomState& random() { return random_; }
  FlatParameters& parameters() { return *parameters_; }
  Optimizer& optimizer() { return *optimizer_; }
  ParameterScheduler& scheduler() { return *scheduler_; }
  MicrobatchCalculator& microbatches() { return *microbatches_; }
  Progress& progress() { return progress_; }

  // What a Trainer of `task` works on; saving is left out. The task and this must outlive it.
  TrainerParts parts(TrainTask& task);

 private:
  TrainingArgs args_;
  OwnedStream stream_;
  RandomState random_;
  Progress progress_;
  std::unique_ptr<GptModel> model_;
  std::unique_ptr<FlatParameters> parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ParameterScheduler> scheduler_;
  std::unique_ptr<MicrobatchCalculator> microbatches_;
};

}  // namespace megatron::cli
