#include "megatron/api/changed_task.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "megatron/api/task_loss.h"

namespace megatron::api {
namespace {

// The rows of a batch as samples.
class GivenRows final : public SampleDataset {
 public:
  GivenRows(std::span<const int64_t> tokens, int64_t size) : tokens_(tokens), size_(size) {}
  int64_t num_samples() const override { return std::ssize(tokens_) / size_; }
  int64_t sample_size() const override { return size_; }
  void read(int64_t sample, std::span<int64_t> out) const override {
    const auto size = static_cast<size_t>(size_);
    std::ranges::copy(tokens_.subspan(static_cast<size_t>(sample) * size, size), out.begin());
  }

 private:
  const std::span<const int64_t> tokens_;
  const int64_t size_;
};

}  // namespace

void ChangedGptTask::take(const Batch& batch, int64_t rows) {
  const int64_t length = config().transformer.seq_length;
  expect_rows("tokens", batch.tokens.size(), rows, length + 1);
  expect_optional_rows("loss mask", batch.loss_mask.size(), rows, length);
  expect_optional_rows("labels", batch.labels.size(), rows, length);
  given_labels_ = batch.labels;
  given_ = std::make_unique<GivenRows>(batch.tokens, length + 1);
  given_mask_ = batch.loss_mask;
  next_rows_ = {};
}

void ChangedGptTask::release() {
  given_.reset();
  given_mask_ = {};
  given_labels_ = {};
}

void ChangedGptTask::adjust_parameter(OptimizedParameter& parameter) const {
  GptTask::adjust_parameter(parameter);
  change_parameter(changes_, parameter);
}

Microbatch ChangedGptTask::get_batch(Split split, int64_t chunk) {
  if (given_ == nullptr) return GptTask::get_batch(split, chunk);
  if (!reads_data(chunk)) return {};
  const int64_t b = config().training.micro_batch_size;
  SampleGroup group;
  group.first_sample = next_rows_.take(chunk, b);
  group.indices.resize(static_cast<size_t>(b));
  std::iota(group.indices.begin(), group.indices.end(), group.first_sample);
  return make_batch(*given_, group, split, chunk);
}

MicrobatchOutput ChangedGptTask::forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                              std::span<const Variable> activations) {
  auto text = batch.as<TextMicrobatch>();
  running_.split = split;
  if (model(chunk).ends().has_head && changes_.loss_inputs() != LossInputs::kNone) {
    running_.tokens = std::move(text.future_targets.back().labels);
    text.future_targets.pop_back();
  }
  MicrobatchOutput output = GptTask::forward_step(split, chunk, std::move(text), activations);
  if (!output.logged.empty()) output.logged.front().first = changes_.loss_name();
  running_ = {};
  return output;
}

bool ChangedGptTask::weighs_tokens() const {
  return changes_.loss_inputs() == LossInputs::kNone && GptTask::weighs_tokens();
}

SplitDatasets ChangedGptTask::open_datasets(const SampleCounts& sizes) const {
  const auto samples = [&](Split split) {
    return changes_.samples(split, sizes.of(split), tokens_per_sample() + 1);
  };
  SplitDatasets datasets = {samples(Split::kTrain), samples(Split::kValid), samples(Split::kTest)};
  return datasets.train != nullptr ? datasets : GptTask::open_datasets(sizes);
}

TextMicrobatch ChangedGptTask::make_batch(const SampleDataset& dataset, const SampleGroup& group,
                                          Split split, int64_t chunk) const {
  TextMicrobatch made = GptTask::make_batch(dataset, group, split, chunk);
  if (changes_.loss_inputs() == LossInputs::kNone || !model(chunk).ends().has_head) return made;
  // The tokens travel with the targets to the stage that computes the loss: the last ones of
  // future_targets, which forward_step() takes away.
  const int64_t length = dataset.sample_size();
  const int64_t s = config().transformer.seq_length;
  const auto b = std::ssize(group.indices);
  std::vector<int64_t> tokens;
  std::vector<int64_t> sample(static_cast<size_t>(length));
  for (const int64_t index : group.indices) {
    dataset.read(index, sample);
    tokens.insert(tokens.end(), sample.begin(), sample.begin() + s);
  }
  made.future_targets.push_back({.labels = tensor_of(tokens, {b, s}), .loss_mask = {}});
  return made;
}

void ChangedGptTask::adjust_batch(GptBatch& batch, Split split) const {
  GptTask::adjust_batch(batch, split);
  const auto first = static_cast<size_t>(batch.first_sample * batch.seq_length);
  if (!given_labels_.empty()) {
    std::ranges::copy(given_labels_.subspan(first, batch.labels.size()), batch.labels.begin());
  }
  if (!given_mask_.empty()) {
    for (size_t i = 0; i < batch.loss_mask.size(); ++i) {
      batch.loss_mask[i] *= given_mask_[first + i];
    }
  }
  changes_.adjust_batch(batch, split);
}

MicrobatchOutput ChangedGptTask::loss(const megatron::Model& model, const Variable& hidden,
                                      const TokenTargets& targets) const {
  if (changes_.loss_inputs() == LossInputs::kNone) return GptTask::loss(model, hidden, targets);
  return task_loss(changes_, model, hidden, targets, running_);
}

}  // namespace megatron::api
