#pragma once

#include "megatron/nn/module.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/embedding.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// An embedding table whose rows are spread over the tensor-parallel group: rank i has rows
// [i v/tp, (i + 1) v/tp)   (Shoeybi et al. 2019, arXiv:1909.08053, sec. 3).
//
//   weight [v/tp, h]
class VocabParallelEmbedding final : public Module {
 public:
  struct Options {
    Init init;
    bool is_tied = false;  // as ParameterInfo
    bool is_copy = false;
  };
  // Throws ConfigError unless v is a multiple of tp.
  VocabParallelEmbedding(int64_t rows, int64_t size, const TensorParallel& tp,
                         const Options& options, const Placement& placement);

  // ids [b, s] -> [s, b, h], zero where another rank has the row. The sum over ranks is the
  // embedding of words plus, if given, of positions (ops/embedding.h).
  Variable forward_partial(const RowIds& ids, const Variable& position = {},
                           const RowIds& position_ids = {}) const;
  const Variable& weight() const { return weight_; }

 private:
  TensorParallel tp_;
  Variable weight_;
};

// Describes logits [s, b, v/tp], whose columns are spread like the rows of a
// VocabParallelEmbedding, to cross_entropy() and log_probabilities(). They gather four numbers a
// token, once. Columns from vocab_size on are padding; 0: there is none.   columns: v/tp
VocabularyShard vocabulary_shard(int64_t columns, const TensorParallel& tp, int64_t vocab_size = 0);

}  // namespace megatron
