#include "megatron/training/loss_sums.h"

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"

namespace megatron {

void LossSums::add(const MicrobatchOutput& microbatch) {
  const auto num_values = static_cast<int64_t>(microbatch.logged.size());
  if (num_values == 0) return;
  const bool is_first = names_.empty();
  if (is_first) {
    sums_ = Tensor({num_values}, DType::kFloat32, microbatch.logged.front().second.stream());
  }
  invariant(sums_.numel() == num_values, "every microbatch logs the same values");
  for (int64_t i = 0; i < num_values; ++i) {
    const auto& [name, value] = microbatch.logged[static_cast<size_t>(i)];
    Tensor sum = sums_.slice(i, 1);
    if (is_first) {
      names_.push_back(name);
      copy_into(sum, value.reshape({1}));
    } else {
      add_inplace(sum, value.reshape({1}));
    }
  }
}

void LossSums::reduce(const comm::Group& data) {
  if (!sums_.defined()) return;
  comm::all_reduce(sums_.view(), comm::Reduce::kSum, data, sums_.stream());
}

NamedValues LossSums::means(int64_t count) const {
  if (names_.empty()) return {};
  const Tensor here = sums_.to(Stream{});
  return means_of(names_, here.span<float>(), count);
}

NamedValues means_of(const std::vector<std::string>& names, std::span<const float> sums,
                     int64_t count) {
  NamedValues values;
  for (size_t i = 0; i < names.size(); ++i) {
    values.emplace_back(names[i], static_cast<double>(sums[i]) / static_cast<double>(count));
  }
  return values;
}

}  // namespace megatron
