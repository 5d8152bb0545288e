#include "megatron/parallel/data_parallel.h"

#include "megatron/core/error.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {

Tensor avg_losses_across_data_parallel_group(std::span<const Tensor> losses,
                                             const comm::Group& data) {
  if (losses.empty()) throw ShapeError("avg_losses_across_data_parallel_group: there is no loss");
  const auto count = static_cast<int64_t>(losses.size());
  Tensor joined = zeros({count}, DType::kFloat32, losses.front().stream());
  for (int64_t i = 0; i < count; ++i) {
    Tensor place = joined.slice(i, 1);
    copy_into(place, losses[static_cast<size_t>(i)].reshape({1}));
  }
  if (data.size() == 1) return joined;
  Tensor mean = all_reduced(joined, data);
  scale_inplace(mean, 1.0F / static_cast<float>(data.size()));
  return mean;
}

Tensor gather_across_data_parallel_groups(const Tensor& x, const comm::Group& data) {
  return gathered_sequence(x.rank() == 0 ? x.reshape({1}) : x, data);
}

}  // namespace megatron
