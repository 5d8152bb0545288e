#include "megatron/parallel/tensor/vocabulary.h"

#include <fmt/format.h>

#include "megatron/core/error.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {

VocabParallelEmbedding::VocabParallelEmbedding(int64_t rows, int64_t size, const TensorParallel& tp,
                                               const Options& options, const Placement& placement)
    : tp_(tp) {
  if (rows % tp.size() != 0) {
    throw ConfigError(
        fmt::format("a vocabulary of {} rows does not divide among {} tensor-parallel ranks; pad "
                    "it with --make-vocab-size-divisible-by",
                    rows, tp.size()));
  }
  weight_ = add_parameter("weight", {rows / tp.size(), size},
                          {.role = ParameterRole::kEmbedding,
                           .init = options.init,
                           .sharding = tp.sharding(0),
                           .has_vocabulary_rows = true,
                           .is_tied = options.is_tied,
                           .is_copy = options.is_copy},
                          placement);
}

Variable VocabParallelEmbedding::forward_partial(const RowIds& ids, const Variable& position,
                                                 const RowIds& position_ids) const {
  const int64_t rows = weight_.size(0);
  return embedding_shard(weight_, ids, position, position_ids,
                         {.first_row = tp_.rank() * rows,
                          .num_rows = tp_.size() * rows,
                          .adds_position = tp_.rank() == 0});
}

VocabularyShard vocabulary_shard(int64_t columns, const TensorParallel& tp, int64_t vocab_size) {
  if (tp.size() == 1) return {.num_columns = vocab_size};
  return {.first_column = tp.rank() * columns,
          .num_columns = vocab_size > 0 ? vocab_size : tp.size() * columns,
          .gather = [group = tp.group](const Tensor& statistics) {
            const Tensor one =
                statistics.reshape({1, statistics.size(0), statistics.size(1), statistics.size(2)});
            return gathered_sequence(one, group);
          }};
}

}  // namespace megatron
