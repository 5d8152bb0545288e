#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "annex/retro/tasks/dialogue_data.h"
#include "megatron/tokenizers/tokenizer.h"

// Prompts. The texts are byte-identical to Megatron-LM core_r0.5.0's, because tuned models expect
// them.
namespace megatron {

// Compat: Megatron-LM uses one form to tune a Retro, and the other to tune a GPT and to generate
// with both.
enum class PromptVariant { kRetro, kPlain };

struct PromptOptions {
  PromptVariant variant = PromptVariant::kRetro;
  std::string dataset;           // its name selects the instruction: short answer, ...
  int64_t ft_neighbours = 1;     // contexts before the question
  int64_t template_id = 0;       // kPlain: one of 7 layouts of contexts and question; 0: the usual
  bool is_short_format = false;  // "Question: Q? Answer: The answer is" for every data set
};
inline constexpr int64_t kPromptTemplates = 7;

// The preamble of the conversation.
std::string_view prompt_preamble(PromptVariant variant);

// The ids of preamble, contexts and question. Truncates the contexts so that, with the other parts,
// each tokenized alone, and answer_length tokens, the total is seq_length.
std::vector<int32_t> prompt_ids(const Dialogue& dialogue, const PromptOptions& options,
                                int64_t answer_length, int64_t seq_length,
                                const Tokenizer& tokenizer);

// Neighbours for the encoder of a Retro: k contexts from context `first` on, truncated or padded
// with `fill` to r ids each; a missing one is all `fill`.
std::vector<int64_t> context_ids(const Dialogue& dialogue, int64_t first, int64_t k, int64_t r,
                                 int32_t fill, const Tokenizer& tokenizer);

}  // namespace megatron
