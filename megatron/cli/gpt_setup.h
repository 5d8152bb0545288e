#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megatron/device/stream.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/gradient_reduction.h"
#include "megatron/optim/optimizer.h"
#include "megatron/settings/training_args.h"
#include "megatron/training/trainer.h"

namespace megatron::cli {

// What stands in the way of replaying the microbatches of a run as a CUDA graph: the flag and why.
// Nothing where they can be replayed on a GPU.
std::optional<std::string> why_no_graph(const TrainingArgs& args);

// Everything that one rank of a GPT training run owns, built from resolved args with
// padded_vocab_size known: its chunks of the model with their first values, flat buffers,
// optimizer, schedules, counters.
class GptSetup {
 public:
  // Every rank of `world` calls it.
  explicit GptSetup(const TrainingArgs& args, const comm::Group& world = {});
  GptSetup(const GptSetup&) = delete;
  GptSetup& operator=(const GptSetup&) = delete;

  const TrainingArgs& args() const { return args_; }
  Stream stream() const { return stream_.get(); }
  const ParallelContext& parallel() const { return parallel_; }
  // This rank's chunks of the model, in the order of the layers; one without an interleaved
  // pipeline.
  const std::vector<std::unique_ptr<GptModel>>& chunks() const { return chunks_; }
  RandomState& random() { return random_; }
  FlatParameters& parameters() { return *parameters_; }
  Optimizer& optimizer() { return *optimizer_; }
  ParameterScheduler& scheduler() { return *scheduler_; }
  MicrobatchCalculator& microbatches() { return *microbatches_; }
  Progress& progress() { return progress_; }

  // What a Trainer of `task` works on; saving is left out. The task and this must outlive it.
  TrainerParts parts(TrainTask& task);

 private:
  ActivationType activations() const;
  TrainingArgs args_;
  ParallelContext parallel_;
  OwnedStream stream_;
  RandomState random_;
  Progress progress_;
  std::vector<std::unique_ptr<GptModel>> chunks_;
  std::unique_ptr<FlatParameters> parameters_;
  std::unique_ptr<GradientReduction> gradients_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ParameterScheduler> scheduler_;
  std::unique_ptr<MicrobatchCalculator> microbatches_;
};

}  // namespace megatron::cli
