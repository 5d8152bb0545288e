#include "megatron/parallel/tensor/lora.h"

#include <cmath>

#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/tensor/linear.h"

namespace megatron {
namespace {

// Normal, with the variance of PEFT's uniform numbers in +-1 / sqrt(in).
ParameterInfo info_of_a(int64_t in, const Sharding& sharding) {
  return {.role = ParameterRole::kMatrix,
          .init = Init::normal(1.0 / std::sqrt(3.0 * static_cast<double>(in))),
          .sharding = sharding,
          .is_adapter = true};
}

ParameterInfo info_of_b(const Sharding& sharding) {
  return {.role = ParameterRole::kMatrix, .sharding = sharding, .is_adapter = true};
}

}  // namespace

ColumnParallelLora::ColumnParallelLora(int64_t in, int64_t out, int64_t parts,
                                       const TensorParallel& tp, const LoraOptions& options,
                                       const Placement& placement)
    : tp_(tp),
      scale_(static_cast<float>(options.scale)),
      a_(add_parameter(kLoraA, {options.rank, in}, info_of_a(in, {}), placement)),
      b_(add_parameter(kLoraB, {out / tp.size(), options.rank}, info_of_b(tp.sharding(0, parts)),
                       placement)) {}

Variable ColumnParallelLora::forward(const Variable& x, const DropoutKey& dropout) const {
  const Variable kept = megatron::dropout(x, dropout);
  const Variable narrow = megatron::scale(linear(kept, a_, Variable()), scale_);  // [s, b, rank]
  return column_parallel_linear(narrow, b_, Variable(), tp_);
}

RowParallelLora::RowParallelLora(int64_t in, int64_t out, const TensorParallel& tp,
                                 const LoraOptions& options, const Placement& placement)
    : tp_(tp),
      scale_(static_cast<float>(options.scale)),
      a_(add_parameter(kLoraA, {options.rank, in / tp.size()}, info_of_a(in, tp.sharding(1)),
                       placement)),
      b_(add_parameter(kLoraB, {out, options.rank}, info_of_b({}), placement)) {}

Variable RowParallelLora::forward(const Variable& x, const DropoutKey& dropout) const {
  const Variable kept = megatron::dropout(x, dropout, tp_.rank() * x.size(-1));
  const Variable narrow = scale(row_parallel_linear(kept, a_, tp_), scale_);  // [s, b, rank]
  return linear(narrow, b_, Variable());
}

}  // namespace megatron
