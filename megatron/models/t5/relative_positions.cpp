#include "megatron/models/t5/relative_positions.h"

#include <algorithm>

#include "megatron/transformer/init.h"

namespace megatron {

RelativePositions::Table::Table(const TransformerConfig& config, const TensorParallel& tp,
                                Stream stream, const Options& options)
    : weight(add_parameter(
          "weight", {config.relative_attention_num_buckets, config.num_attention_heads / tp.size()},
          {.role = ParameterRole::kEmbedding,
           .init = input_init(config),
           .sharding = tp.sharding(1),
           .is_tied = options.is_tied,
           .is_copy = options.is_copy},
          {.dtype = config.params_dtype, .stream = stream})) {}

RelativePositions::RelativePositions(const TransformerConfig& config, const TensorParallel& tp,
                                     Stream stream, const Options& options)
    : buckets_{.num_buckets = config.relative_attention_num_buckets,
               .max_distance = config.relative_attention_max_distance,
               .is_bidirectional = options.is_bidirectional},
      table_(config, tp, stream, options),
      length_(options.length),
      rows_(relative_rows(-length_, 2 * length_ + 1, buckets_).to(stream)) {
  add_child("relative_attention_bias", table_);
}

Variable RelativePositions::forward(int64_t length) const {
  const int64_t count = 2 * length - 1;
  const Tensor rows = length <= length_
                          ? rows_.slice(length_ - length + 1, count)
                          : relative_rows(1 - length, count, buckets_).to(rows_.stream());
  return relative_bias(table_.weight, rows);
}

Tensor RelativePositions::by_distance(int64_t length) const {
  const NoGrad no_grad;
  Tensor rows = relative_rows(1 - length, length, buckets_);
  std::ranges::reverse(rows.span<int64_t>());
  return relative_bias(table_.weight, rows.to(rows_.stream())).data();
}

}  // namespace megatron
