#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "megatron/data/sample_dataset.h"
#include "megatron/data/text_files.h"
#include "megatron/tokenizers/tokenizer.h"

// Texts for fine-tuning: whole texts as token ids, in blocks of equal length.
namespace megatron {

// The concatenated ids of texts.
struct TokenizedTexts {
  std::vector<int32_t> ids;
  std::vector<int64_t> ends;  // end of each text in `ids`

  int64_t num_texts() const { return static_cast<int64_t>(ends.size()); }
  std::span<const int32_t> text(int64_t i) const {
    const int64_t begin = i == 0 ? 0 : ends[static_cast<size_t>(i - 1)];
    return std::span(ids).subspan(static_cast<size_t>(begin),
                                  static_cast<size_t>(ends[static_cast<size_t>(i)] - begin));
  }
};

// The texts of the files, each with the special tokens that the tokenizer adds.
TokenizedTexts tokenized_texts(std::span<const std::filesystem::path> files,
                               const TextFileOptions& options, const Tokenizer& tokenizer);

// Blocks of block_size ids.
struct TextBlocks {
  int64_t block_size = 0;
  std::vector<int32_t> ids;

  int64_t num_blocks() const { return static_cast<int64_t>(ids.size()) / block_size; }
};

// Blocks of one id each, 0 .. n - 1: an EpochDataset of them orders n samples of any other kind.
std::shared_ptr<const TextBlocks> numbered_blocks(int64_t n);

// The data of a fine-tuning run.
struct BlockSplits {
  std::shared_ptr<const TextBlocks> train;
  std::shared_ptr<const TextBlocks> valid;  // null: no evaluation
};

// Texts [begin, end) in blocks: the ids of each group of 1000 texts are cut into blocks, and the
// remainder of a group is dropped. Compat: so do the example scripts of transformers.
TextBlocks text_blocks(const TokenizedTexts& texts, int64_t begin, int64_t end, int64_t block_size);

// Blocks in epochs. Each epoch has the blocks in a new order, and then repeats its first blocks to
// fill the last batch.
class EpochDataset final : public SampleDataset {
 public:
  struct Options {
    int64_t num_samples = 0;
    int64_t batch_size = 1;   // an epoch is a multiple of it
    bool drops_last = false;  // drops an incomplete last batch instead of filling it
    bool is_shuffled = true;  // by torch.randperm seeded with seed + epoch; else in order
    int64_t seed = 0;
    int64_t last_id = 0;  // a sample has one id more than a block
  };

  EpochDataset(std::shared_ptr<const TextBlocks> blocks, const Options& options);
  ~EpochDataset() override;

  int64_t num_samples() const override { return options_.num_samples; }
  int64_t sample_size() const override { return blocks_->block_size + 1; }
  void read(int64_t sample, std::span<int64_t> out) const override;

  // Samples of an epoch: blocks, and repeated ones.
  int64_t epoch_samples() const { return epoch_samples_; }
  // True if the sample repeats a block of its epoch.
  bool is_repeated(int64_t sample) const {
    return sample % epoch_samples_ >= blocks_->num_blocks();
  }

 private:
  class Orders;

  const std::shared_ptr<const TextBlocks> blocks_;
  const Options options_;
  const int64_t epoch_samples_;
  const std::unique_ptr<Orders> orders_;
};

}  // namespace megatron
