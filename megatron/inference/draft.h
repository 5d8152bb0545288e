#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/tensor/tensor.h"

// Speculative decoding (Leviathan et al. 2023, arXiv:2211.17192): a cheap guess of the next tokens,
// which the engine verifies in one forward pass.
namespace megatron {

struct InferenceModel;

// Where drafts come from.
enum class DraftMethod { kNgram, kMultiToken, kModel };
const char* name_of(DraftMethod method);  // "ngram", "mtp", "draft_model"

// Fields are flags, except the last.
struct DraftOptions {
  int64_t num_speculative_tokens = 0;  // drafts of a text that a step verifies; 0: none
  DraftMethod speculative_method = DraftMethod::kNgram;
  int64_t prompt_lookup_min = 2;
  int64_t prompt_lookup_max = 4;
  std::string speculative_model = {};  // checkpoint of the smaller model of kModel
  std::shared_ptr<const InferenceModel> draft_model = {};  // loaded from it
};

// A text after a pass of the model over some of its tokens.
struct DraftText {
  int64_t text = 0;                     // identity, never reused; a preempted text gets another
  std::span<const int32_t> tokens;      // the prompt and all drawn tokens
  std::span<const int32_t> pages = {};  // of the KV cache, for tokens [0, begin + count) or more
  // The pass read the tokens [begin, begin + count), rejected drafts not counted. Tokens before
  // `begin` were read earlier or found in the prefix cache. begin + count < tokens.size().
  int64_t begin = 0;
  int64_t count = 0;
  int64_t first_row = 0;  // of token `begin` in the pass
  // Maximum number of drafts; 0 while a prompt is being read and for texts that take none.
  int64_t max_drafts = 0;
};

// Proposes the tokens that continue texts. A draft is verified by drawing at its position as
// without drafts (same logits, same random number) and accepted if that gives the same token.
// Drafts therefore change neither greedy nor sampled texts, only the number of passes. The engine
// overwrites keys and values of rejected drafts.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // Maximum number of drafts of a text.
  virtual int64_t max_drafts() const = 0;
  // True if propose() reads `hidden`, and must therefore see every pass, also over prompts.
  virtual bool reads_hidden_states() const = 0;
  // The drafts of each text, at most its max_drafts, which may be empty. Called after each pass by
  // every rank of the model, with the same result.
  //   hidden  [rows of the pass, 1, h], behind the final norm; undefined if not read, and on all
  //           stages of a pipeline but the last
  virtual std::vector<std::vector<int32_t>> propose(std::span<const DraftText> texts,
                                                    const Tensor& hidden) = 0;
};

// Prompt lookup (Saxena 2023; vLLM's method "ngram"): the tokens that followed the last earlier
// occurrence of the text's last max_ngram tokens, or of as few as min_ngram; repeated where the
// text ends.
class NgramDrafter final : public Drafter {
 public:
  // REQUIRES: num_drafts > 0, 1 <= min_ngram <= max_ngram.
  NgramDrafter(int64_t num_drafts, int64_t min_ngram, int64_t max_ngram);

  int64_t max_drafts() const override { return num_drafts_; }
  bool reads_hidden_states() const override { return false; }
  std::vector<std::vector<int32_t>> propose(std::span<const DraftText> texts,
                                            const Tensor& hidden) override;

 private:
  int64_t num_drafts_, min_ngram_, max_ngram_;
};

}  // namespace megatron
