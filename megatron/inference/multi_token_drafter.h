#pragma once

#include <vector>

#include "megatron/inference/draft.h"
#include "megatron/inference/model_step.h"

namespace megatron {

// Drafts of a model's multi-token prediction (DeepSeek-V3, arXiv:2412.19437, sec. 5.4.3): draft k
// is the most probable token of depth k, which reads the hidden states of the depth before and the
// tokens k further on. Each depth has keys and values of its own, in pages with the engine's
// numbers.
//
// Where the token k further on is a draft that is rejected later, depth k > 1 keeps the key of that
// draft, and in pages of the prefix cache depths keep those of the text that filled them: drafts
// may then be worse, never the tokens that are drawn.
class MultiTokenDrafter final : public Drafter {
 public:
  // For an engine with this number of pages (num_cache_pages()). Throws ConfigError unless the
  // model predicts num_drafts further tokens. The model must outlive it.
  MultiTokenDrafter(const InferenceModel& model, int64_t num_drafts, int64_t num_pages,
                    int64_t page_tokens);

  int64_t max_drafts() const override { return num_drafts_; }
  bool reads_hidden_states() const override { return true; }
  std::vector<std::vector<int32_t>> propose(std::span<const DraftText> texts,
                                            const Tensor& hidden) override;

 private:
  // The most probable tokens of the rows `ids` of states [t, 1, h], on all ranks.
  std::vector<int32_t> most_probable(const Variable& states, const std::vector<int64_t>& ids) const;

  InferenceModel model_;
  int64_t num_drafts_;
  std::vector<KvCache> caches_;  // of each depth, where the model ends
};

}  // namespace megatron
