#include "megatron/kernels/cross_entropy.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void cross_entropy_statistics(TensorView statistics, ConstView logits, ConstView labels,
                              int64_t first_column, int64_t num_columns, Stream stream) {
  if (stream.is_cpu()) {
    return cpu::cross_entropy_statistics(statistics, logits, labels, first_column, num_columns,
                                         stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::cross_entropy_statistics(statistics, logits, labels, first_column, num_columns,
                                          stream);
  }
  throw_built_without_cuda("cross_entropy");
}

void cross_entropy_losses(TensorView losses, TensorView log_sum_exp, ConstView statistics,
                          ConstView labels, float label_smoothing, int64_t num_columns,
                          Stream stream) {
  if (stream.is_cpu()) {
    return cpu::cross_entropy_losses(losses, log_sum_exp, statistics, labels, label_smoothing,
                                     num_columns, stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::cross_entropy_losses(losses, log_sum_exp, statistics, labels, label_smoothing,
                                      num_columns, stream);
  }
  throw_built_without_cuda("cross_entropy");
}

void cross_entropy_backward(TensorView dlogits, ConstView dlosses, ConstView logits,
                            ConstView log_sum_exp, ConstView labels, int64_t first_column,
                            float label_smoothing, int64_t num_columns, Stream stream) {
  if (stream.is_cpu()) {
    return cpu::cross_entropy_backward(dlogits, dlosses, logits, log_sum_exp, labels, first_column,
                                       label_smoothing, num_columns, stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::cross_entropy_backward(dlogits, dlosses, logits, log_sum_exp, labels, first_column,
                                        label_smoothing, num_columns, stream);
  }
  throw_built_without_cuda("cross_entropy");
}

}  // namespace megatron::kernels
