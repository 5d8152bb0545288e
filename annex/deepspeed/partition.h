#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/transformer/config.h"

// DeepSpeed's partition of a GPT's layer list into pipeline stages (--pp-partition-method).
namespace megatron::frontends {

// The list: three entries before the layers of the transformer (cast, embedding, transposition),
// and four after them (transposition, norm, output, cast).
inline constexpr int64_t kEntriesBefore = 3;
inline constexpr int64_t kEntriesBehind = 4;

// The weights of the entries: their parameters on one of `tensor_ranks` ranks. The output has those
// of the embedding, which it shares. `config` is a GPT's, resolved, with padded_vocab_size.
std::vector<int64_t> entry_weights(const TransformerConfig& config, int64_t tensor_ranks);

// The numbers of entries in consecutive parts: minimizes the weight of the heaviest part, and fills
// parts from the left, so that the last ones may be empty. Compat: the result of DeepSpeed 0.8's
// partition_balanced().
std::vector<int64_t> balanced_parts(std::span<const int64_t> weights, int64_t parts);

// The layers of the transformer in each of such parts of a list with so many of them.
std::vector<int64_t> layers_of_parts(std::span<const int64_t> parts, int64_t layers);

}  // namespace megatron::frontends
