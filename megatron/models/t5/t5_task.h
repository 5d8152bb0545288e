#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megatron/data/masking.h"
#include "megatron/models/model_task.h"

namespace megatron {

// Settings that T5 does not support, a sentence each; empty without one.
std::vector<std::string> t5_run_problems(const RunConfig& config);

// The task of `megatron pretrain-t5`: span corruption with sentinels, on datasets of sentences.
class T5Task : public ModelTask {
 public:
  // `config` is resolved and has padded_vocab_size. Throws ConfigError for settings that T5 does
  // not support, and, with datasets, if the tokenizer has no padding, end or sentinel tokens.
  // Without datasets, or a tokenizer, a derived class makes the microbatches.
  T5Task(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
         bool has_datasets = true);
  ~T5Task() override { close(); }

 protected:
  SplitDatasets open_datasets(const SampleCounts& sizes) const override;
  TextMicrobatch make_batch(const SampleDataset& dataset, const SampleGroup& group, Split split,
                            int64_t chunk) const override;

 private:
  std::shared_ptr<const MaskingVocabulary> vocabulary_;  // null: the task has no datasets
};

}  // namespace megatron
