#include "megatron/ops/relative_bias.h"

#include <algorithm>
#include <cmath>

#include "megatron/kernels/relative_bias.h"
#include "megatron/ops/elementwise.h"

namespace megatron {

int64_t relative_bucket(int64_t distance, const RelativeBuckets& buckets) {
  int64_t rows = buckets.num_buckets;
  int64_t first = 0;
  if (buckets.is_bidirectional) {
    rows /= 2;
    if (distance > 0) first = rows;
    distance = std::abs(distance);
  } else {
    distance = std::max<int64_t>(-distance, 0);
  }
  const int64_t exact = rows / 2;
  if (distance < exact) return first + distance;
  // In fp32, as transformers rounds it: a distance on the border of two rows must not change sides.
  const auto small = static_cast<float>(exact);
  const float octaves = std::log(static_cast<float>(distance) / small) /
                        static_cast<float>(std::log(static_cast<double>(buckets.max_distance) /
                                                    static_cast<double>(exact)));
  const auto row = exact + static_cast<int64_t>(octaves * static_cast<float>(rows - exact));
  return first + std::min(row, rows - 1);
}

Tensor relative_rows(int64_t first_distance, int64_t count, const RelativeBuckets& buckets) {
  Tensor rows({count}, DType::kInt64, Stream{});
  for (int64_t i = 0; i < count; ++i) {
    rows.span<int64_t>()[static_cast<size_t>(i)] = relative_bucket(first_distance + i, buckets);
  }
  return rows;
}

Variable relative_bias(const Variable& table, const Tensor& rows) {
  const Variable in_fp32 = cast(table, DType::kFloat32);
  Tensor bias({table.size(1), rows.numel()}, DType::kFloat32, table.stream());
  kernels::relative_bias_forward(bias.view(), in_fp32.data().view(), rows.view(), bias.stream());
  return record("relative_bias", bias, {in_fp32},
                [rows, shape = table.shape()](const Tensor& dbias, const Wants&) -> Grads {
                  Tensor dtable(shape, DType::kFloat32, dbias.stream());
                  kernels::relative_bias_backward(dtable.view(), dbias.view(), rows.view(),
                                                  dtable.stream());
                  return {dtable};
                });
}

}  // namespace megatron
