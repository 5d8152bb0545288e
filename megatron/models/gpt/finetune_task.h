#pragma once

#include <memory>
#include <optional>

#include "megatron/data/text_blocks.h"
#include "megatron/models/epoch_report.h"
#include "megatron/models/gpt/gpt_task.h"

namespace megatron {

// The task of `megatron finetune`: next-token prediction on blocks of text, in epochs. As in
// transformers, the loss of a block is the mean over its tokens except the first, which has no
// prediction. Derive from it to change the loss.
class FinetuneTask : public GptTask {
 public:
  using Data = BlockSplits;

  // `config` is resolved: seq_length is the length of a block, eval_iters batches hold the
  // validation blocks, and eval_interval is the number of iterations of an epoch.
  FinetuneTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer, Data data);
  ~FinetuneTask() override { close(); }

  // Prints "epoch 0: perplexity: 12.5 eval_loss: 2.5".
  void evaluated(Split split, const Progress& progress, const NamedValues& losses) override;
  // exp of the last evaluation's loss; none before.
  std::optional<double> perplexity() const { return report_.perplexity(); }

 protected:
  SplitDatasets open_datasets(const SampleCounts& sizes) const override;
  void adjust_batch(GptBatch& batch, Split split) const override;

 private:
  const Data data_;
  EpochReport report_;
};

}  // namespace megatron
