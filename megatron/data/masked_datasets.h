#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "megatron/data/config.h"
#include "megatron/data/masking.h"
#include "megatron/data/sentence_index.h"
#include "megatron/data/split_datasets.h"

namespace megatron {

// One sample of BERT, as views of the integers from BertDataset::read().
struct BertSample {
  explicit BertSample(std::span<int64_t> run);
  // Integers of a sample with sequences of this length.
  static int64_t size(int64_t seq_length) { return 5 * seq_length + 2; }

  std::span<int64_t> text;          // [s] cls A sep B sep, then padding
  std::span<int64_t> types;         // [s] 0 for A, 1 for B
  std::span<int64_t> labels;        // [s] the original of a masked token, else -1
  std::span<int64_t> loss_mask;     // [s] 1 for masked tokens
  std::span<int64_t> padding_mask;  // [s] 1 for tokens, 0 for padding
  int64_t& is_random;               // 1: B precedes A in the text (the label of the binary head)
  int64_t& is_truncated;
};

// The same for T5.
struct T5Sample {
  T5Sample(std::span<int64_t> run, int64_t encoder_seq_length);
  static int64_t size(int64_t encoder_seq_length, int64_t decoder_seq_length) {
    return encoder_seq_length + 3 * decoder_seq_length + 1;
  }

  std::span<int64_t> encoder;    // [se] text with a sentinel for each masked span
  std::span<int64_t> decoder;    // [sd] bos, then each sentinel with its span
  std::span<int64_t> labels;     // [sd] the decoder's next tokens, ending with eos; then -1
  std::span<int64_t> loss_mask;  // [sd] 1 for labels
  int64_t& is_truncated;
};

// Pairs of sentences with masked words (Devlin et al. 2018, arXiv:1810.04805, sec. 3.1), equal to
// the samples of Megatron-LM core_r0.5.0. With a binary head a sample has two segments, swapped in
// every second sample; without it has one.
class BertDataset final : public SampleDataset {
 public:
  struct Settings {
    MaskingOptions masking = {.probability = 0.15, .max_ngram = 3, .is_geometric = false};
    double short_seq_prob = 0.1;
    bool has_binary_head = true;
    std::shared_ptr<const MaskingVocabulary> vocabulary;
  };

  // Loads the index from the cache, or builds and caches it. Throws ConfigError if the split has no
  // usable document.
  BertDataset(std::shared_ptr<const IndexedDataset> data, SplitBounds bounds, Split split,
              std::optional<int64_t> num_samples, const DatasetOptions& options,
              const Settings& settings);

  int64_t num_samples() const override { return index_.num_samples(); }
  int64_t sample_size() const override { return BertSample::size(seq_length_); }
  void read(int64_t sample, std::span<int64_t> out) const override;

 private:
  std::shared_ptr<const IndexedDataset> data_;
  int64_t seq_length_;
  int64_t seed_;
  Settings settings_;
  SentenceIndex index_;
};

// Text with masked spans, and the spans (Raffel et al. 2019, arXiv:1910.10683, sec. 3.1.4), equal
// to the samples of Megatron-LM core_r0.5.0.
class T5Dataset final : public SampleDataset {
 public:
  struct Settings {
    MaskingOptions masking = {.probability = 0.15, .max_ngram = 10, .is_geometric = true};
    double short_seq_prob = 0.1;
    int64_t decoder_seq_length = 0;
    std::shared_ptr<const MaskingVocabulary> vocabulary;
  };

  T5Dataset(std::shared_ptr<const IndexedDataset> data, SplitBounds bounds, Split split,
            std::optional<int64_t> num_samples, const DatasetOptions& options,
            const Settings& settings);

  int64_t num_samples() const override { return index_.num_samples(); }
  int64_t sample_size() const override {
    return T5Sample::size(seq_length_, settings_.decoder_seq_length);
  }
  // Throws ConfigError if a sample has more spans than there are sentinels, or does not fit the
  // decoder.
  void read(int64_t sample, std::span<int64_t> out) const override;

 private:
  std::shared_ptr<const IndexedDataset> data_;
  int64_t seq_length_;  // of the encoder
  int64_t seed_;
  Settings settings_;
  SentenceIndex index_;
};

// The datasets of a run of BERT or T5.
DatasetMaker bert_dataset_maker(const BertDataset::Settings& settings);
DatasetMaker t5_dataset_maker(const T5Dataset::Settings& settings);

}  // namespace megatron
