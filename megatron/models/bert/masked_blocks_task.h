#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "megatron/data/text_blocks.h"
#include "megatron/models/bert/bert_task.h"
#include "megatron/models/epoch_report.h"

namespace megatron {

// A block of tokens, some of them masked.
struct MaskedBlock {
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;  // the original of a masked token, else -1

  int64_t num_masked() const;
};

// Masks each token but [CLS], [SEP] and [PAD] with the probability: 8 of 10 masked tokens become
// [MASK], one a random token, and one stays (Devlin et al. 2018, arXiv:1810.04805, sec. 3.1). The
// result depends only on the seed. Compat: transformers' DataCollatorForLanguageModeling, with
// numpy's RandomState(seed): for each such token one number in [0, 1), and two more if it is below
// the probability, the kind of mask and the random token.
MaskedBlock masked_block(std::span<const int64_t> ids, double probability,
                         const MaskingVocabulary& vocabulary, uint32_t seed);

// The task of `megatron finetune` for a BERT without --num_labels: masked language modeling on
// blocks of text, in epochs. Training masks a block differently in each epoch (seed + number of the
// sample); evaluation always masks it alike.
class MaskedBlocksTask final : public BertTask {
 public:
  // `config` is resolved and has no binary head: eval_iters batches hold the validation blocks, and
  // eval_interval is the number of iterations of an epoch.
  MaskedBlocksTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                   BlockSplits data);
  ~MaskedBlocksTask() override { close(); }

  void evaluated(Split split, const Progress& progress, const NamedValues& losses) override;

  // exp of the last evaluation's loss; none before.
  std::optional<double> perplexity() const { return report_.perplexity(); }

 protected:
  SplitDatasets open_datasets(const SampleCounts& sizes) const override;
  TextMicrobatch make_batch(const SampleDataset& blocks, const SampleGroup& group, Split split,
                            int64_t chunk) const override;

 private:
  MaskedBlock masked(std::span<const int64_t> ids, int64_t sample) const;

  const BlockSplits data_;
  int64_t num_valid_masked_ = 0;
  EpochReport report_;
};

}  // namespace megatron
