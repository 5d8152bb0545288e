#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "megatron/data/dataset_options.h"
#include "megatron/data/gpt_index.h"
#include "megatron/data/index_cache.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/data/sample_dataset.h"
#include "megatron/data/split.h"

namespace megatron {

// The samples of one split of one indexed dataset: sequences are shuffled and concatenated, cut
// into samples of seq_length + 1 tokens (adjacent samples share one), and shuffled again. Order and
// cache files are those of Megatron-LM core_r0.5.0.
class GptDataset final : public SampleDataset {
 public:
  // Loads the index from the cache, or builds and caches it. `num_samples` is the required minimum;
  // empty means one epoch. Throws ConfigError if the sequences hold no tokens.
  GptDataset(std::shared_ptr<const IndexedDataset> data, IndexRange sequences, Split split,
             std::optional<int64_t> num_samples, const DatasetOptions& options);

  int64_t num_samples() const override { return index_.num_samples(); }
  int64_t sample_size() const override { return seq_length_ + 1; }
  void read(int64_t sample, std::span<int64_t> out) const override;
  // The sequences from which a sample has tokens, in order. Throws Error as read() does.
  std::vector<int64_t> sequences_of(int64_t sample) const;

  const GptIndex& index() const { return index_; }

 private:
  void load_or_build(IndexRange sequences, const EpochPlan& plan, int64_t seed,
                     const IndexCache& cache);
  bool load(IndexRange sequences, const EpochPlan& plan, const IndexCache& cache);
  // Calls part(sequence, offset, count) for each run of tokens of a sample.
  template <class Part>
  void each_part(int64_t sample, const Part& part) const;

  std::shared_ptr<const IndexedDataset> data_;
  int64_t seq_length_;
  int64_t vocab_size_;
  GptIndex index_;
};

}  // namespace megatron
