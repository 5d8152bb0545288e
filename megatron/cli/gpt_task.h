#pragma once

#include <array>
#include <memory>
#include <optional>

#include "megatron/cli/args/training_args.h"
#include "megatron/data/data_loader.h"
#include "megatron/data/gpt_batch.h"
#include "megatron/data/gpt_datasets.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/training/progress.h"
#include "megatron/training/train_task.h"

namespace megatron::cli {

// Next-token prediction on .bin/.idx data: what `megatron pretrain-gpt` trains.
class GptTask final : public TrainTask {
 public:
  // Opens the data where `progress` stands. `model` and `random` must outlive the task.
  GptTask(const TrainingArgs& args, const Tokenizer& tokenizer, const GptModel& model,
          RandomState& random, const Progress& progress);

  bool has_split(Split split) const override;
  MicrobatchLoss forward_step(Split split) override;

 private:
  using Loader = DataLoader<GptBatch>;
  std::unique_ptr<Loader>& loader(Split split) { return loaders_[static_cast<size_t>(split)]; }

  const GptModel& model_;
  RandomState& random_;
  DataConfig data_;
  std::array<std::unique_ptr<Loader>, 3> loaders_;
};

}  // namespace megatron::cli
