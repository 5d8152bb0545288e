#pragma once

#include <array>
#include <memory>
#include <vector>

#include "megatron/cli/gpt_setup.h"
#include "megatron/data/data_loader.h"
#include "megatron/data/split_datasets.h"
#include "megatron/models/gpt/gpt_step.h"

namespace megatron::cli {

// Next-token prediction on .bin/.idx data: what `megatron pretrain-gpt` trains.
class GptTask final : public TrainTask {
 public:
  // Opens the data where the run stands; every rank calls it. `setup` must outlive the task.
  GptTask(const Tokenizer& tokenizer, GptSetup& setup);

  bool has_split(Split split) const override;
  Microbatch get_batch(Split split, int64_t chunk) override;
  MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                const Variable& activations) override;

 private:
  using Loader = DataLoader<Microbatch>;

  std::vector<std::unique_ptr<const GptStep>> steps_;  // by chunk of this rank
  std::array<bool, 3> has_split_{};
  // By split, then by chunk: each goes through the microbatches on its own. Null where the chunk
  // reads nothing. Their threads use steps_.
  std::array<std::vector<std::unique_ptr<Loader>>, 3> loaders_;
};

}  // namespace megatron::cli
