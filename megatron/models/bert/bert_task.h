#pragma once

#include <memory>

#include "megatron/data/masking.h"
#include "megatron/models/model_task.h"

namespace megatron {

// The task of `megatron pretrain-bert`: masked language modeling and sentence order, on datasets of
// sentences.
class BertTask : public ModelTask {
 public:
  // `config` is resolved and has padded_vocab_size. Throws ConfigError for settings that BERT does
  // not support, and, with datasets, if the tokenizer has no [CLS], [SEP], [MASK] or [PAD]. Without
  // datasets, or a tokenizer, a derived class makes the microbatches.
  BertTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
           bool has_datasets = true);
  ~BertTask() override { close(); }

  std::vector<const Module*> build_model(const ModelSite& site) override;
  // The sentence-order loss is a mean over samples.
  bool weighs_tokens() const override { return !config().transformer.bert_binary_head; }
  void close() override;

 protected:
  SplitDatasets open_datasets(const SampleCounts& sizes) const override;
  TextMicrobatch make_batch(const SampleDataset& dataset, const SampleGroup& group, Split split,
                            int64_t chunk) const override;
  MicrobatchOutput loss(const Model& model, const Variable& hidden,
                        const TokenTargets& targets) const override;

  // REQUIRES: the task has datasets.
  const MaskingVocabulary& vocabulary() const { return *vocabulary_; }
  // [b, 1] fp32: ones, on the model's device.
  const Tensor& sample_weights() const { return sample_weights_; }

 private:
  std::shared_ptr<const MaskingVocabulary> vocabulary_;  // null: the task has no datasets
  Tensor sample_weights_;
};

}  // namespace megatron
