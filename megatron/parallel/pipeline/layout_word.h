#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// The letters of each stage that `word` lists, in the order of the layers: E is the embedding, t a
// layer, a and f its attention and its MLP, m a layer for a further token, L the loss. A | ends a
// stage, x*n repeats a letter and (..)*n a group, which contains no other group. Commas mean
// nothing, and af in a stage becomes t. Empty, with a sentence in `problem`, if the word breaks
// these rules or lists more than a million letters.
// Compat: --pipeline-model-parallel-layout of Megatron Core 0.19, which has no a and f.
std::vector<std::string> stages_of_layout(std::string_view word, std::string& problem);

// Reasons why a model cannot have the layout on so many pipeline ranks, one sentence each. The
// stages go round the ranks: stage i is a chunk of rank i % ranks.
std::vector<std::string> layout_word_problems(std::string_view word, int64_t ranks,
                                              int64_t num_layers, int64_t mtp_num_layers);

}  // namespace megatron
