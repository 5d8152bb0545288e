#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/text_blocks.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/tasks/classification_data.h"
#include "megatron/training/run_config.h"
#include "megatron/training/split_loaders.h"
#include "megatron/training/train_task.h"

namespace megatron {

// Fine-tunes a BERT with a classification head on the pooled first token: MNLI, QQP and RACE of
// Megatron-LM's tasks/main.py. After each epoch it prints the accuracy on each validation set.
//
// A sample of RACE is four sequences, one for each answer; the head gives each a score.
class ClassificationTask : public TrainTask {
 public:
  struct Data {
    ClassificationProblem problem;
    std::shared_ptr<const ClassificationSet> train;  // null: evaluation only
    // For the loss during training: all validation sets as one; null: none.
    std::shared_ptr<const ClassificationSet> valid;
    std::vector<std::shared_ptr<const ClassificationSet>> measured;  // for the accuracies
  };
  struct Options {
    bool keep_last = false;  // fill the last batch of an epoch, in place of leaving it out
  };

  // `config` is resolved and has padded_vocab_size. Throws ConfigError for what the task has not.
  ClassificationTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer, Data data,
                     const Options& options);

  std::string_view model_name() const override { return data_.problem.name; }
  std::vector<const Module*> build_model(const ModelSite& site) override;
  std::vector<ChunkBoundary> boundaries() const override { return {ChunkBoundary{}}; }
  void open_data(const Progress& progress) override;
  bool has_split(Split split) const override { return loaders_.has_split(split); }
  Microbatch get_batch(Split split, int64_t chunk) override { return loaders_.next(split, chunk); }
  MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                std::span<const Variable> activations) override;
  bool ends_epoch(const Progress& progress) const override;
  void epoch_ended(const Progress& progress) override;
  int64_t tokens_per_sample() const override;
  int64_t sequences_per_sample() const override { return data_.problem.pairs_of_sample; }
  double flops(int64_t batch_size) const override;
  void close() override;
  std::map<std::string, ArgMap> recorded() const override;

  // Prints the accuracy on each set, and that of all. Every rank calls it, after the model was
  // built.
  void measure(int64_t epoch);
  // The same; every prediction becomes a line of predictions_<set>.jsonl in `folder`, with the
  // sample's uid, label and the probabilities of the classes.
  void measure_and_predict(int64_t epoch, const std::string& folder);

  // The BERT that the task trains.
  static BertHeads heads_of(const ClassificationProblem& problem);

 protected:
  // The sums over the samples of a set.
  struct Totals {
    int64_t correct = 0;  // samples whose highest score is that of their class
    double loss = 0;
  };
  // Of all ranks, each sample once, without dropout. Every rank calls it.
  Totals totals_of(const ClassificationSet& set);

  const RunConfig& config() const { return config_; }
  const Data& data() const { return data_; }

 private:
  // Samples of a set, by their numbers, on the host.
  Microbatch microbatch(const ClassificationSet& set, std::span<const int64_t> samples,
                        bool has_gradient) const;
  // [samples, classes]
  Variable scores(const Microbatch& batch) const;
  Variable loss_of(const Variable& scores, const Tensor& labels) const;
  // Of this rank's samples. Appends lines to `predictions` if it is not null.
  Totals own_totals(const ClassificationSet& set, std::string* predictions) const;
  void measure_sets(int64_t epoch, const std::string* folder);
  int64_t classes() const { return data_.problem.num_labels; }

  const RunConfig config_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const Data data_;
  const Options options_;
  const ParallelContext* parallel_ = nullptr;
  RandomState* random_ = nullptr;
  std::unique_ptr<const BertModel> model_;
  RowIds positions_;
  Tensor sample_weights_;  // [micro_batch_size, 1] fp32: ones
  SplitLoaders loaders_;
};

// Iterations of an epoch of a set; 0 if the samples fill no batch.
int64_t epoch_iterations(const ClassificationSet& set, int64_t global_batch_size, bool keep_last);

}  // namespace megatron
