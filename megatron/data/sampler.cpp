#include "megatron/data/sampler.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/data/numpy_random.h"

namespace megatron {
namespace {

class SingleSampler final : public Sampler {
 public:
  explicit SingleSampler(const SamplerOptions& options)
      : options_(options), consumed_(options.consumed_samples) {
    if (consumed_ >= options_.num_samples) {
      throw ConfigError(
          fmt::format("no samples left to consume: {} of {} are consumed; load an "
                      "earlier checkpoint, add data or raise --train-iters",
                      consumed_, options_.num_samples));
    }
  }

  std::optional<SampleGroup> next() override {
    const int64_t lot = options_.micro_batch_size * options_.data_parallel_size;
    if (consumed_ + lot > options_.num_samples) return std::nullopt;
    SampleGroup group;
    group.first_sample = consumed_ + options_.data_parallel_rank * options_.micro_batch_size;
    group.indices.resize(static_cast<size_t>(options_.micro_batch_size));
    std::iota(group.indices.begin(), group.indices.end(), group.first_sample);
    consumed_ += lot;
    return group;
  }

 private:
  SamplerOptions options_;
  int64_t consumed_;
};

class CyclicSampler final : public Sampler {
 public:
  explicit CyclicSampler(const SamplerOptions& options)
      : options_(options),
        lot_(options.micro_batch_size * options.data_parallel_size),
        epoch_samples_(options.num_samples / lot_ * lot_),
        consumed_(options.consumed_samples) {
    if (epoch_samples_ == 0) {
      throw ConfigError(fmt::format(
          "{} samples do not fill one lot of --micro-batch-size {} on {} data-parallel ranks; add "
          "data or lower one of them",
          options.num_samples, options.micro_batch_size, options.data_parallel_size));
    }
    if (consumed_ % epoch_samples_ % lot_ != 0) {
      throw ConfigError(fmt::format(
          "{} consumed samples are not whole lots of {} (--micro-batch-size {} on {} data-parallel "
          "ranks) in epochs of {}; continue with the checkpoint's sizes",
          consumed_, lot_, options.micro_batch_size, options.data_parallel_size, epoch_samples_));
    }
  }

  std::optional<SampleGroup> next() override {
    const int64_t epoch = consumed_ / epoch_samples_;
    if (epoch != order_epoch_) {
      order_ = torch_randperm(order_size(), static_cast<uint64_t>(epoch));
      order_epoch_ = epoch;
    }
    const int64_t done = consumed_ % epoch_samples_;
    const int64_t dp = options_.data_parallel_size;
    const int64_t rank = options_.data_parallel_rank;
    SampleGroup group;
    group.first_sample = consumed_ + rank * options_.micro_batch_size;
    for (int64_t i = 0; i < options_.micro_batch_size; ++i) {
      // Compat: if the last incomplete lot would give some ranks of Megatron one more microbatch
      // without sharding, all ranks start the next epoch together here.
      const int64_t at = options_.data_sharding ? done / dp + i : done + i * dp + rank;
      const int64_t base = options_.data_sharding ? rank * order_size() : 0;
      group.indices.push_back(base + order_[static_cast<size_t>(at)]);
    }
    consumed_ += lot_;
    return group;
  }

 private:
  // Samples of one permutation: a rank's own part, or all except an incomplete microbatch.
  int64_t order_size() const {
    if (options_.data_sharding) return epoch_samples_ / options_.data_parallel_size;
    return options_.num_samples / options_.micro_batch_size * options_.micro_batch_size;
  }

  SamplerOptions options_;
  int64_t lot_;
  int64_t epoch_samples_;
  int64_t consumed_;
  int64_t order_epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace

std::unique_ptr<Sampler> make_sampler(const SamplerOptions& options) {
  invariant(options.micro_batch_size > 0 && options.data_parallel_rank >= 0 &&
                options.data_parallel_rank < options.data_parallel_size &&
                options.consumed_samples >= 0,
            "the sampler's sizes are valid");
  if (options.num_samples <= 0) {
    throw ConfigError("no sample to consume: the dataset is empty; check --data-path and --split");
  }
  switch (options.type) {
    case DataloaderType::kSingle:
      return std::make_unique<SingleSampler>(options);
    case DataloaderType::kCyclic:
      return std::make_unique<CyclicSampler>(options);
  }
  throw InternalError("DataloaderType out of range");
}

}  // namespace megatron
