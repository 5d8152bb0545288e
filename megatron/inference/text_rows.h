#pragma once

#include <cstdint>
#include <vector>

#include "megatron/tensor/tensor.h"

// Conversion of ids and labels, a list per text, to tensors [b, s] on the host.
namespace megatron {

using IdRows = std::vector<std::vector<int32_t>>;

// transformers' label of tokens that the loss ignores.
inline constexpr int32_t kDoesNotCount = -100;

// Throws ConfigError unless there is a text, and all are equally long.
void expect_texts(const IdRows& ids);
// Throws ConfigError unless `rows` has a value for each of `ids`; `what` names its field.
void expect_like_ids(const IdRows& rows, const IdRows& ids, const char* what);
// Throws ConfigError for a value that is negative, or not below `limit`.
void expect_below(const IdRows& rows, int64_t limit, const char* what, const char* remedy);

// int64. REQUIRES: the rows are equally long.
Tensor tensor_of_rows(const IdRows& rows);
// Converts an attention mask, 1 visible and 0 padding, to bool, true hidden; undefined if it is
// empty. Throws as expect_like_ids().
Tensor padding_mask_of(const IdRows& attention_mask, const IdRows& ids);

// Labels and their loss mask.
struct Targets {
  Tensor labels;     // [b, s] int64; 0 where none counts
  Tensor loss_mask;  // [b, s] fp32
};
// Throws ConfigError for a label that is neither -100 nor below vocab_size, or if all are ignored.
Targets targets_of(const IdRows& labels, int64_t vocab_size);

}  // namespace megatron
