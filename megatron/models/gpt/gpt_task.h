#pragma once

#include <memory>
#include <optional>

#include "megatron/data/gpt_batch.h"
#include "megatron/models/model_task.h"
#include "megatron/training/curriculum.h"

namespace megatron {

// Next-token prediction on .bin/.idx data: what `megatron pretrain-gpt` trains. Derive from it to
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
  // Numbers behind the text in each sample, which GptBatch has as neighbor_tokens.
  virtual int64_t trailing_ids_per_sample() const;
  // Changes a microbatch of the split that was just read: its labels, the weights of its tokens in
  // the loss. Runs on the threads that read ahead.
  virtual void adjust_batch(GptBatch& batch, Split split) const;

  bool reads_data(int64_t chunk) const override;
  TextMicrobatch make_batch(const SampleDataset& dataset, const SampleGroup& group, Split split,
                            int64_t chunk) const override;
  // The chunk's part of a batch of whole sequences, and of it the context-parallel rank's part.
  TextMicrobatch part_of_batch(const GptBatch& whole, int64_t chunk, Split split) const;

 private:
  // Whether positions or lengths differ from batch to batch, or from rank to rank.
  bool reads_positions() const;
  // Adds the part of the inputs and targets of multi-token prediction.
  void add_future(TextMicrobatch& made, const GptBatch& whole) const;
  // Applies the curriculum to a training microbatch.
  void shorten(GptBatch& batch) const;

  std::optional<const Curriculum> curriculum_;
  Progress begin_;  // of the run
};

}  // namespace megatron
