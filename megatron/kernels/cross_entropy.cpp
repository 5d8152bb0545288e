#include "megatron/kernels/cross_entropy.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void expect_labels_cover(const Labels& labels, const Shape& shape) {
  const Shape& ids = labels.ids.shape;
  if (ids.rank() == 2 && ids[0] == shape[1] && ids[1] >= labels.first_position + shape[0]) return;
  throw ShapeError("cross_entropy: labels " + ids.str() + " have none for " +
                   std::to_string(shape[0]) + " positions of " + std::to_string(shape[1]) +
                   " samples from position " + std::to_string(labels.first_position) + " on");
}

void cross_entropy_statistics(TensorView statistics, ConstView logits, const Labels& labels,
                              int64_t first_column, int64_t num_columns, Stream stream) {
  return dispatch<cpu::cross_entropy_statistics, cuda::cross_entropy_statistics>(
      "cross_entropy", statistics, logits, labels, first_column, num_columns, stream);
}

void cross_entropy_losses(TensorView losses, TensorView log_sum_exp, ConstView statistics,
                          const Labels& labels, float label_smoothing, int64_t num_columns,
                          Stream stream) {
  return dispatch<cpu::cross_entropy_losses, cuda::cross_entropy_losses>(
      "cross_entropy", losses, log_sum_exp, statistics, labels, label_smoothing, num_columns,
      stream);
}

void cross_entropy_backward(TensorView dlogits, ConstView dlosses, ConstView logits,
                            ConstView log_sum_exp, const Labels& labels, int64_t first_column,
                            float label_smoothing, int64_t num_columns, Stream stream) {
  return dispatch<cpu::cross_entropy_backward, cuda::cross_entropy_backward>(
      "cross_entropy", dlogits, dlosses, logits, log_sum_exp, labels, first_column, label_smoothing,
      num_columns, stream);
}

}  // namespace megatron::kernels
