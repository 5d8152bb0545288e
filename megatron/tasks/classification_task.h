#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/text_blocks.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/models/model_task.h"
#include "megatron/tasks/classification_data.h"

namespace megatron {

// Fine-tunes a BERT with a classification head on the pooled first token: MNLI, QQP and RACE of
// Megatron-LM's tasks/main.py. After each epoch it prints the accuracy on each validation set.
//
// A sample of RACE is four sequences, one for each answer; the head gives each a score.
class ClassificationTask : public ModelTask {
 public:
  struct Data {
    ClassificationProblem problem;
    std::shared_ptr<const ClassificationSet> train;  // null: evaluation only
    // For the validation loss during training: all validation sets joined; null: none.
    std::shared_ptr<const ClassificationSet> valid;
    std::vector<std::shared_ptr<const ClassificationSet>> measured;  // for the accuracies
  };
  struct Options {
    bool keep_last = false;  // fills the last batch of an epoch instead of dropping it
  };

  // `config` is resolved and has padded_vocab_size. Throws ConfigError for unsupported settings.
  ClassificationTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer, Data data,
                     const Options& options);
  ~ClassificationTask() override { close(); }

  std::string_view model_name() const override { return data_.problem.name; }
  std::vector<const Module*> build_model(const ModelSite& site) override;
  bool weighs_tokens() const override { return false; }
  bool ends_epoch(const Progress& progress) const override;
  void epoch_ended(const Progress& progress) override;
  int64_t tokens_per_sample() const override;
  int64_t sequences_per_sample() const override { return data_.problem.pairs_of_sample; }
  double flops(int64_t batch_size) const override;
  void close() override;

  // Prints the accuracy on each set, and over all sets. Every rank calls it, after the model was
  // built.
  void measure(int64_t epoch);
  // The same; also writes a line per sample to predictions_<set>.jsonl in `folder`: the sample's
  // uid, its label and the class probabilities.
  void measure_and_predict(int64_t epoch, const std::string& folder);

  // The trained BERT.
  static BertHeads heads_of(const ClassificationProblem& problem);

 protected:
  std::vector<std::unique_ptr<const Model>> make_chunks(const ModelSite& site) const override;
  SplitDatasets open_datasets(const SampleCounts& sizes) const override;
  TextMicrobatch make_batch(const SampleDataset& dataset, const SampleGroup& group, Split split,
                            int64_t chunk) const override;
  MicrobatchOutput loss(const Model& model, const Variable& hidden,
                        const TokenTargets& targets) const override;

  // Sums over the samples of a set.
  struct Totals {
    int64_t correct = 0;  // samples whose label has the highest score
    double loss = 0;
  };
  // Evaluates over all ranks, each sample once, without dropout. Every rank calls it.
  Totals totals_of(const ClassificationSet& set);

  const Data& data() const { return data_; }

 private:
  // Samples of a set, by their numbers, on the host. Their labels are targets.labels.
  TextMicrobatch batch_of(const ClassificationSet& set, std::span<const int64_t> samples,
                          Split split) const;
  // The scores [samples, classes] of the model's output.
  Variable scores(const Model& model, const Variable& hidden) const;
  // Evaluates this rank's samples. Appends lines to `predictions` if it is not null.
  Totals own_totals(const ClassificationSet& set, std::string* predictions) const;
  void measure_sets(int64_t epoch, const std::string* folder);
  int64_t classes() const { return data_.problem.num_labels; }

  const Data data_;
  const Options options_;
  Tensor sample_weights_;  // [micro_batch_size, 1] fp32: ones
};

// Iterations of an epoch of a set; 0 if the samples do not fill a batch.
int64_t epoch_iterations(const ClassificationSet& set, int64_t global_batch_size, bool keep_last);

}  // namespace megatron
