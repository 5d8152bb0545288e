#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "megatron/data/sample_dataset.h"

namespace megatron {

// Synthetic samples of a Retro: those of a GPT, each with tokens of later samples as neighbours.
class MockRetroDataset final : public SampleDataset {
 public:
  // `neighbor_tokens` follow the text of each sample.
  MockRetroDataset(std::shared_ptr<const SampleDataset> texts, int64_t neighbor_tokens);

  int64_t num_samples() const override { return texts_->num_samples(); }
  int64_t sample_size() const override { return texts_->sample_size() + neighbor_tokens_; }
  void read(int64_t sample, std::span<int64_t> out) const override;

 private:
  std::shared_ptr<const SampleDataset> texts_;
  int64_t neighbor_tokens_;
};

}  // namespace megatron
