#include "megatron/tensor/hash_sums.h"

#include <iterator>
#include <utility>

#include "megatron/kernels/hash.h"

namespace megatron {

HashSums::HashSums(size_t num_tensors) : on_host_(num_tensors) {}

void HashSums::add(size_t tensor, ConstView x, int64_t begin, Stream stream) {
  const int64_t count = x.numel();
  x.shape = {1, count};
  add_rows(tensor, x, begin, count, stream);
}

void HashSums::add_rows(size_t tensor, ConstView x, int64_t begin, int64_t stride, Stream stream) {
  if (x.numel() == 0) return;
  if (stream.is_cpu()) {
    kernels::add_hash({&on_host_[tensor], {1}, DType::kInt64}, x, begin, stride, stream);
    return;
  }
  if (!on_device_.defined()) on_device_ = zeros({std::ssize(on_host_)}, DType::kInt64, stream);
  kernels::add_hash(on_device_.slice(static_cast<int64_t>(tensor), 1).view(), x, begin, stride,
                    stream);
}

std::vector<uint64_t> HashSums::values() const {
  std::vector<uint64_t> values(on_host_.begin(), on_host_.end());
  if (!on_device_.defined()) return values;
  const Tensor of_device = on_device_.to(Stream{});
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] += static_cast<uint64_t>(std::as_const(of_device).span<int64_t>()[i]);
  }
  return values;
}

}  // namespace megatron
