#pragma once

#include "megatron/comm/group.h"
#include "megatron/ops/expert_mlp.h"

namespace megatron {

// True if an expert has enough rows in each half of the tokens, given those of all ranks in
// balance: kMinPieceRows on a GPU (parallel/tensor/pieces.h), because the products lose more than
// the overlap gains with fewer, and a tile of products on a CPU.
bool cuts_tokens(int64_t rows_of_expert, Stream stream);

// expert_mlp() of ranks that have different tokens: every rank of the two groups gets the tokens of
// all, and adds what its experts make of them. `experts` have other experts each, `shares` a share
// of the same ones.
//
// Tokens are cut into two halves if cuts_tokens(): one travels while experts work on the other, and
// gradients travel while those of the matrices are made. With a top k of 8 or more nearly every
// token has an expert on each of up to eight ranks, so that all tokens go to all of them.
//
//   x, y [T, h]   ids, weights [T, k]: this rank's tokens
Variable experts_of_ranks(const Variable& x, const Tensor& ids, const Variable& weights,
                          const ExpertMatrices& matrices, const ExpertMlpOptions& options,
                          const comm::Group& experts, const comm::Group& shares);

}  // namespace megatron
