#include "annex/retro/data/mock_retro_dataset.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace megatron {

MockRetroDataset::MockRetroDataset(std::shared_ptr<const SampleDataset> texts,
                                   int64_t neighbor_tokens)
    : texts_(std::move(texts)), neighbor_tokens_(neighbor_tokens) {}

void MockRetroDataset::read(int64_t sample, std::span<int64_t> out) const {
  const auto size = static_cast<size_t>(texts_->sample_size());
  texts_->read(sample, out.first(size));
  std::vector<int64_t> text(size);
  for (std::span<int64_t> rest = out.subspan(size); !rest.empty();) {
    sample = (sample + 1) % texts_->num_samples();
    texts_->read(sample, text);
    const size_t count = std::min(rest.size(), size);
    std::copy_n(text.begin(), count, rest.begin());
    rest = rest.subspan(count);
  }
}

}  // namespace megatron
