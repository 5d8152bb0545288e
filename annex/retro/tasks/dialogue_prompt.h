#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "annex/retro/tasks/dialogue_data.h"
#include "megatron/tokenizers/tokenizer.h"

// What a model reads before it answers. The texts are those of Megatron-LM core_r0.5.0, byte for
// byte: a model that was tuned with them expects them.
namespace megatron {

// Compat: Megatron-LM tunes a Retro with one form, and tunes a GPT and lets both write with the
// other.
enum class PromptVariant { kRetro, kPlain };

struct PromptOptions {
  PromptVariant variant = PromptVariant::kRetro;
  std::string dataset;           // its name decides how the question is put: short answer, ...
  int64_t ft_neighbours = 1;     // so many contexts stand before the question
  int64_t template_id = 0;       // kPlain: one of 7 layouts of contexts and question; 0: the usual
  bool is_short_format = false;  // "Question: Q? Answer: The answer is", whatever the data set
};
inline constexpr int64_t kPromptTemplates = 7;

// How the conversation is opened.
std::string_view prompt_preamble(PromptVariant variant);

// The ids of preamble, contexts and question. Contexts are cut so that the other parts, each
// tokenized alone, and answer_length tokens make seq_length tokens with them.
std::vector<int32_t> prompt_ids(const Dialogue& dialogue, const PromptOptions& options,
                                int64_t answer_length, int64_t seq_length,
                                const Tokenizer& tokenizer);

// Neighbours for the encoder of a Retro: k contexts of r ids each, from context `first` on, cut or
// filled with `fill`; a missing one is all `fill`.
std::vector<int64_t> context_ids(const Dialogue& dialogue, int64_t first, int64_t k, int64_t r,
                                 int32_t fill, const Tokenizer& tokenizer);

}  // namespace megatron
