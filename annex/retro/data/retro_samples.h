#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "annex/retro/data/chunk_database.h"
#include "megatron/data/blended_dataset.h"
#include "megatron/data/gpt_dataset.h"
#include "megatron/data/sample_dataset.h"
#include "megatron/data/split_datasets.h"

namespace megatron {

// The GPT samples of one split, as in a run of pretrain-gpt, and their documents, whose chunks must
// not be retrieved for them.
class RetroSamples {
 public:
  // `dataset` is a blend of the members or, without weights, the only member.
  RetroSamples(std::shared_ptr<const SampleDataset> dataset,
               std::vector<std::shared_ptr<const GptDataset>> members, std::string digest);

  const std::shared_ptr<const SampleDataset>& dataset() const { return dataset_; }
  // Identifies the samples: the suffix of the name of their neighbours' directory.
  const std::string& digest() const { return digest_; }
  // The documents from which a sample has tokens. Datasets are numbered as in --data-path.
  std::vector<ChunkDatabase::Document> documents_of(int64_t sample) const;

 private:
  std::shared_ptr<const SampleDataset> dataset_;
  std::vector<std::shared_ptr<const GptDataset>> members_;
  std::shared_ptr<const BlendedDataset> blend_;  // null: a single member
  std::string digest_;
};

// By split; empty if a split has no data or no samples are requested.
struct RetroSplits {
  std::optional<RetroSamples> train;
  std::optional<RetroSamples> valid;
  std::optional<RetroSamples> test;

  const std::optional<RetroSamples>& of(Split split) const;
};

// The samples of --data-path, of the parts of the documents that are in the same split of --split
// and of `split_preprocessing` (--retro-gpt-split). Their order is that of build_gpt_datasets().
// Compat: digests are those of class MultiSplitGPTDataset of core_r0.5.0, or of its blend. Throws
// as build_gpt_datasets() does, and ConfigError unless all splits have the same --data-path.
RetroSplits build_retro_samples(const DataConfig& config, const std::string& split_preprocessing,
                                const SampleCounts& samples, int64_t seq_length, int64_t seed,
                                const Tokenizer& tokenizer);

}  // namespace megatron
