#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "annex/retro/tasks/dialogue_prompt.h"
#include "megatron/data/gpt_batch.h"
#include "megatron/data/sample_dataset.h"

// Samples and microbatches of dialogues, for a GPT or a Retro.
namespace megatron {

struct DialogueSampleOptions {
  PromptOptions prompt;
  int64_t seq_length = 0;  // s
  int32_t eos = 0;         // ends an answer
  int32_t pad = 0;
  int32_t eod = 0;              // fills neighbours
  int64_t num_neighbors = 0;    // k; 0: no neighbours are read
  int64_t neighbor_length = 0;  // r
  bool reuse_top = false;  // neighbours include the contexts of the prompt; else only later ones
};

// A sample has the tokens of a dialogue, [s + 1]: prompt, answer, end token and padding; then the
// positions where the answer begins and where its end token ends; then the tokens of its
// neighbours, [k, r]. A prompt of more than s tokens is truncated to s - 1, and an answer to the
// rest of s.
class DialogueDataset final : public SampleDataset {
 public:
  // Cycles through the dialogues for num_samples samples; 0: each once. Throws ConfigError if there
  // is no dialogue. The tokenizer must outlive it.
  DialogueDataset(std::vector<Dialogue> dialogues, const DialogueSampleOptions& options,
                  int64_t num_samples, const Tokenizer& tokenizer);

  int64_t num_samples() const override { return num_samples_; }
  int64_t sample_size() const override { return options_.seq_length + 1 + behind_text(options_); }
  void read(int64_t sample, std::span<int64_t> out) const override;

  // Number of integers after the tokens of a sample.
  static int64_t behind_text(const DialogueSampleOptions& options) {
    return 2 + options.num_neighbors * options.neighbor_length;
  }

 private:
  std::vector<Dialogue> dialogues_;
  DialogueSampleOptions options_;
  int64_t num_samples_;
  const Tokenizer& tokenizer_;
};

// Converts a microbatch of such samples, whose neighbor_tokens are the integers after the text.
// With answer_loss_only only labels of the answer and its end token count in the loss. A Retro gets
// two chunks with the same neighbours: the prompt, and the rest. The first chunk is as long as the
// shortest prompt, but at most half of the sequence.
void set_answers(GptBatch& batch, const DialogueSampleOptions& options, bool answer_loss_only);

}  // namespace megatron
