#pragma once

#include <array>
#include <memory>
#include <vector>

#include "megatron/cli/gpt_setup.h"
#include "megatron/data/data_loader.h"
#include "megatron/data/gpt_batch.h"
#include "megatron/data/gpt_datasets.h"

namespace megatron::cli {

// Next-token prediction on .bin/.idx data: what `megatron pretrain-gpt` trains.
class GptTask final : public TrainTask {
 public:
  // Opens the data where the run stands; every rank calls it. `setup` must outlive the task.
  GptTask(const Tokenizer& tokenizer, GptSetup& setup);

  bool has_split(Split split) const override;
  MicrobatchOutput forward_step(Split split, int64_t chunk, const Variable& activations) override;

 private:
  using Loader = DataLoader<GptBatch>;
  // What a chunk of the model reads of the data: tokens where it begins, labels where it ends,
  // documents everywhere if their borders matter.
  bool reads_data(const GptModel& chunk) const;
  GptBatch next_batch(Split split, size_t chunk);

  GptSetup& setup_;
  std::array<bool, 3> has_split_{};
  // By split, then by chunk of this rank: each goes through the microbatches on its own. Null where
  // the chunk reads nothing.
  std::array<std::vector<std::unique_ptr<Loader>>, 3> loaders_;
};

}  // namespace megatron::cli
