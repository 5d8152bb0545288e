#pragma once

#include <map>
#include <vector>

#include "megatron/inference/draft.h"
#include "megatron/inference/model_step.h"

namespace megatron {

// Drafts of a model's multi-token prediction (DeepSeek-V3, arXiv:2412.19437, sec. 5.4.3): draft k
// is the most probable token of depth k, which reads the hidden states of the depth before and the
// tokens k further on. Each depth has keys and values of its own, in pages with the engine's
// numbers.
//
// A depth reads positions again whose further tokens were drafts. In pages of the prefix cache it
// finds the keys of the text that filled them, which may have gone on differently: drafts may then
// be worse.
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
  // The input of a depth.
  struct DepthInput {
    std::vector<PagedRow> rows;      // of its cache, one for each text
    std::vector<int64_t> states;     // rows of the states before, and behind them of ends_
    std::vector<int64_t> positions;  // of the states
    std::vector<int64_t> tokens, token_positions;  // the further ones
  };
  // The part of a text that has been read.
  struct Read {
    int64_t row = 0;    // in ends_
    int64_t first = 0;  // position; those before were in the prefix cache
    int64_t end = 0;
  };

  // The first position that this call and those directly before have read.
  int64_t first_read(const DraftText& text) const;
  DepthInput input_of(int64_t k, std::span<const DraftText> texts,
                      std::span<const std::vector<int32_t>> drafts,
                      std::span<const PagedRow> before, int64_t num_states) const;
  Tensor states_of(int64_t k, const DepthInput& input, const Tensor& before);
  // The most probable tokens of the rows `ids` of states [t, 1, h], on all ranks.
  std::vector<int32_t> most_probable(const Tensor& states, const std::vector<int64_t>& ids) const;
  void keep(std::span<const DraftText> texts, std::vector<Tensor> ends);

  InferenceModel model_;
  int64_t num_drafts_;
  std::vector<KvCache> caches_;  // of each depth, where the model ends
  // The last call's texts, by identity, and for each depth but the last the states [texts, 1, h]
  // where the next depth begins in the next call.
  std::map<int64_t, Read> reads_;
  std::vector<Tensor> ends_;
};

}  // namespace megatron
