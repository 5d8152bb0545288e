#pragma once

#include <memory>
#include <optional>

#include "megatron/data/gpt_batch.h"
#include "megatron/models/model_task.h"
#include "megatron/training/curriculum.h"

namespace megatron {

// The task of `megatron pretrain-gpt`: next-token prediction on .bin/.idx data. Derive from it to
// change the data or the loss.
class GptTask : public ModelTask {
 public:
  // `config` is resolved and has padded_vocab_size.
  GptTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer);
  ~GptTask() override { close(); }

  void open_data(const Progress& progress) override;
  bool weighs_tokens() const override;

 protected:
  SplitDatasets open_datasets(const SampleCounts& sizes) const override;
  // Ids after the text of each sample, GptBatch::neighbor_tokens.
  virtual int64_t trailing_ids_per_sample() const;
  // Hook that changes a microbatch of the split after it was read: labels, token weights of the
  // loss. Runs on the prefetching threads.
  virtual void adjust_batch(GptBatch& batch, Split split) const;

  bool reads_data(int64_t chunk) const override;
  TextMicrobatch make_batch(const SampleDataset& dataset, const SampleGroup& group, Split split,
                            int64_t chunk) const override;
  // The part of a batch of whole sequences that the chunk and the context-parallel rank need.
  TextMicrobatch part_of_batch(const GptBatch& whole, int64_t chunk, Split split) const;

 private:
  // True if positions or lengths differ between batches or between ranks.
  bool reads_positions() const;
  // Adds the part of the inputs and targets of multi-token prediction.
  void add_future(TextMicrobatch& made, const GptBatch& whole) const;
  // Applies the curriculum to a training microbatch.
  void shorten(GptBatch& batch) const;

  std::optional<const Curriculum> curriculum_;
  Progress begin_;  // of the run
};

}  // namespace megatron
