#include "megatron/training/loss_sums.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"

namespace megatron {

void LossSums::add(const MicrobatchOutput& microbatch) {
  if (microbatch.logged.empty()) return;
  std::vector<std::pair<std::string, Tensor>> values = microbatch.logged;
  if (microbatch.weight.defined()) values.emplace_back("", microbatch.weight);
  const auto num_values = static_cast<int64_t>(values.size());
  const bool is_first = names_.empty();
  if (is_first) {
    sums_ = Tensor({num_values}, DType::kFloat32, values.front().second.stream());
  }
  invariant(sums_.numel() == num_values, "every microbatch logs the same values");
  for (int64_t i = 0; i < num_values; ++i) {
    const auto& [name, value] = values[static_cast<size_t>(i)];
    Tensor sum = sums_.slice(i, 1);
    if (is_first) {
      if (!name.empty()) names_.push_back(name);
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

Tensor LossSums::weight() const {
  const auto count = static_cast<int64_t>(names_.size());
  return sums_.defined() && sums_.numel() > count ? sums_.slice(count, 1) : Tensor();
}

NamedValues LossSums::means(int64_t count) const {
  if (names_.empty()) return {};
  const Tensor here = sums_.to(Stream{});
  return means_of(names_, here.span<float>(), count);
}

NamedValues means_of(const std::vector<std::string>& names, std::span<const float> sums,
                     int64_t count) {
  auto divisor = static_cast<double>(count);
  if (sums.size() > names.size()) divisor = sums.back() > 0 ? sums.back() : 1.0;
  NamedValues values;
  for (size_t i = 0; i < names.size(); ++i) {
    values.emplace_back(names[i], static_cast<double>(sums[i]) / divisor);
  }
  return values;
}

WeighedTokens weighed_tokens(const Tensor& loss_mask) {
  const std::span<const float> mask = loss_mask.span<float>();
  const auto positions = static_cast<double>(std::max<size_t>(mask.size(), 1));
  const double sum = std::accumulate(mask.begin(), mask.end(), 0.0);
  return {.divisor = full({}, static_cast<float>(positions), DType::kFloat32, Stream{}),
          .weight = full({}, static_cast<float>(sum / positions), DType::kFloat32, Stream{})};
}

}  // namespace megatron
