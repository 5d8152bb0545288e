#include "megatron/tensor/hash_sums.h"

#include "megatron/kernels/hash.h"

namespace megatron {

HashSums::HashSums(size_t num_tensors)
    : num_tensors_(num_tensors),
      on_host_(zeros({static_cast<int64_t>(num_tensors)}, DType::kInt64, Stream{})) {}

void HashSums::add(size_t tensor, ConstView x, int64_t begin, Stream stream) {
  const int64_t count = x.numel();
  x.shape = {1, count};
  add_rows(tensor, x, begin, count, stream);
}

void HashSums::add_rows(size_t tensor, ConstView x, int64_t begin, int64_t stride, Stream stream) {
  if (x.numel() == 0) return;
  if (!stream.is_cpu() && !on_device_.defined()) {
    on_device_ = zeros(on_host_.shape(), DType::kInt64, stream);
  }
  Tensor& hashes = stream.is_cpu() ? on_host_ : on_device_;
  kernels::add_hash(hashes.slice(static_cast<int64_t>(tensor), 1).view(), x, begin, stride, stream);
}

std::vector<uint64_t> HashSums::values() const {
  std::vector<uint64_t> values(num_tensors_);
  const auto add_all = [&](const Tensor& hashes) {
    for (size_t i = 0; i < num_tensors_; ++i) {
      values[i] += static_cast<uint64_t>(hashes.span<int64_t>()[i]);
    }
  };
  add_all(on_host_);
  if (on_device_.defined()) add_all(on_device_.to(Stream{}));
  return values;
}

}  // namespace megatron
