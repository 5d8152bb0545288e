#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megatron/data/text_blocks.h"
#include "megatron/models/bert/bert_task.h"
#include "megatron/models/epoch_report.h"

namespace megatron {

// A block of tokens of which some are hidden.
struct MaskedBlock {
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;  // the original of a masked token, else -1

  int64_t num_masked() const;
};

// Masks each token but [CLS], [SEP] and [PAD] with the probability: 8 of 10 masked tokens become
// [MASK], one a random token, and one stays (Devlin et al. 2018, arXiv:1810.04805, sec. 3.1). All
// depends on the seed alone. Compat: transformers' DataCollatorForLanguageModeling, with numpy's
// RandomState(seed): for each such token one number in [0, 1), and two more if it is below the
// probability, the kind of mask and the random token.
MaskedBlock masked_block(std::span<const int64_t> ids, double probability,
                         const MaskingVocabulary& vocabulary, uint32_t seed);

// Masked words in blocks of text, in epochs: what `megatron finetune` trains of a BERT without
// --num_labels. Training masks a block anew in each epoch, with the seed + the number of the
// sample; evaluations mask it alike.
class MaskedBlocksTask final : public BertTask {
 public:
  // `config` is resolved and has no binary head: eval_iters batches hold the validation blocks, and
  // eval_interval is the number of iterations of an epoch.
  MaskedBlocksTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                   BlockSplits data);

  void open_data(const Progress& progress) override;
  bool has_split(Split split) const override { return loaders_.has_split(split); }
  std::vector<std::string> groups(Split split) const override { return loaders_.groups(split); }
  void use_group(Split split, size_t group) override { loaders_.use_group(split, group); }
  Microbatch get_batch(Split split, int64_t chunk) override { return loaders_.next(split, chunk); }
  void evaluated(Split split, const Progress& progress, const NamedValues& losses) override;
  void close() override;

  // exp of the last evaluation's loss; none before.
  std::optional<double> perplexity() const { return report_.perplexity(); }

 private:
  MaskedBlock masked(std::span<const int64_t> ids, int64_t sample) const;
  Samples samples(const SampleDataset& blocks, const SampleGroup& group, Split split) const;

  const BlockSplits data_;
  int64_t num_valid_masked_ = 0;
  EpochReport report_;
  SplitLoaders loaders_;
};

}  // namespace megatron
