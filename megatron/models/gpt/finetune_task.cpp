#include "megatron/models/gpt/finetune_task.h"

#include <algorithm>
#include <utility>

namespace megatron {

FinetuneTask::FinetuneTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                           Data data)
    : GptTask(config, std::move(tokenizer)), data_(std::move(data)) {}

SplitDatasets FinetuneTask::open_datasets(const SampleCounts& sizes) const {
  const TrainingConfig& training = config().training;
  return epoch_datasets(data_.train, data_.valid, sizes,
                        {.batch_size = training.global_batch_size,
                         .seed = training.seed,
                         .last_id = tokenizer().eod()});
}

// The last position has no next token. In an evaluation each block counts once, with equal weight
// in the mean over all microbatches.
void FinetuneTask::adjust_batch(GptBatch& batch, Split split) const {
  const int64_t s = batch.seq_length;
  const auto row = [&](int64_t i) { return batch.loss_mask.begin() + i * s; };
  for (int64_t i = 0; i < batch.micro_batch_size; ++i) row(i)[s - 1] = 0;
  if (split == Split::kTrain) return;
  const TrainingConfig& training = config().training;
  const int64_t samples = training.eval_iters * training.global_batch_size;
  const int64_t blocks = data_.valid->num_blocks();
  for (int64_t i = 0; i < batch.micro_batch_size; ++i) {
    const bool is_repeated = (batch.first_sample + i) % samples >= blocks;
    if (is_repeated) std::fill(row(i), row(i + 1), 0.0F);
  }
  const auto share = static_cast<double>(blocks) / static_cast<double>(samples);
  batch.loss_divisor =
      static_cast<float>(share * static_cast<double>(batch.micro_batch_size * (s - 1)));
}

void FinetuneTask::evaluated(Split split, const Progress& progress, const NamedValues& losses) {
  report_.evaluated(split, config().training, progress, losses);
}

}  // namespace megatron
