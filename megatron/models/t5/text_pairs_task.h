#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "megatron/data/text_blocks.h"
#include "megatron/models/epoch_report.h"
#include "megatron/models/model_task.h"

namespace megatron {

// Pairs of texts, sources.text(i) and targets.text(i), without special tokens.
struct TextPairs {
  TokenizedTexts sources;
  TokenizedTexts targets;

  int64_t num_pairs() const { return targets.num_texts(); }
};

// The task of `megatron finetune` for a T5: sequence to sequence, in epochs. Sources and labels are
// truncated so that the end token fits; the decoder reads the labels shifted by one. As in
// transformers, the loss is the mean over the labels of a microbatch.
class TextPairsTask final : public ModelTask {
 public:
  struct Data {
    std::shared_ptr<const TextPairs> train;
    std::shared_ptr<const TextPairs> valid;  // null: no evaluation
  };
  struct Ids {
    int64_t pad = 0;
    int64_t eos = 0;
    int64_t start = 0;  // first token of the decoder
  };

  // Throws ConfigError for settings that T5 does not support. `config` is resolved: eval_iters
  // batches hold the validation pairs, and eval_interval is the number of iterations of an epoch.
  TextPairsTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer, Data data,
                const Ids& ids);
  ~TextPairsTask() override { close(); }

  void evaluated(Split split, const Progress& progress, const NamedValues& losses) override;

  // exp of the last evaluation's loss; none before.
  std::optional<double> perplexity() const { return report_.perplexity(); }

 protected:
  SplitDatasets open_datasets(const SampleCounts& sizes) const override;
  TextMicrobatch make_batch(const SampleDataset& order, const SampleGroup& group, Split split,
                            int64_t chunk) const override;

 private:
  // Labels of a pair, with its end token.
  int64_t num_labels(const TextPairs& pairs, int64_t pair) const;
  int64_t num_labels(const TextPairs& pairs) const;

  const Data data_;
  const Ids ids_;
  int64_t num_valid_labels_ = 0;
  EpochReport report_;
};

}  // namespace megatron
