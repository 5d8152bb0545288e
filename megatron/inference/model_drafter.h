#pragma once

#include <vector>

#include "megatron/inference/draft.h"
#include "megatron/inference/engine.h"

namespace megatron {

// Drafts of a smaller GPT with the same vocabulary: its most probable continuations. It has an
// engine of its own, whose prefix cache keeps the keys of earlier tokens; of them a text's last
// page, at most kPageTokens, is read again.
class ModelDrafter final : public Drafter {
 public:
  // For an engine with these options that draws tokens of a vocabulary of this size. Throws
  // ConfigError if `model` has another one. The model of `model` must outlive it.
  ModelDrafter(const InferenceModel& model, int64_t num_drafts, const EngineOptions& options,
               int64_t vocab_size);

  int64_t max_drafts() const override { return num_drafts_; }
  bool reads_hidden_states() const override { return false; }
  // A text that reaches the end of the smaller model's positions gets fewer drafts, or none.
  std::vector<std::vector<int32_t>> propose(std::span<const DraftText> texts,
                                            const Tensor& hidden) override;

 private:
  static constexpr int64_t kPageTokens = 4;
  static EngineOptions options_of(const InferenceModel& model, const EngineOptions& options);

  int64_t num_drafts_;
  int64_t most_tokens_;  // of a text with its drafts
  Engine engine_;
};

}  // namespace megatron
