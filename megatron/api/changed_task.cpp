#include "megatron/api/changed_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "megatron/api/handles.h"
#include "megatron/core/error.h"
#include "megatron/device/stream.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/parallel/tensor/vocabulary.h"

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

// The gradient in the dtype and on the device of the values. Throws unless it fits them.
megatron::Tensor gradient_of(const LossResult& result, const megatron::Tensor& values) {
  const Tensor& given = result.gradient;
  const auto dims = values.shape().dims();
  if (!std::ranges::equal(given.shape, dims)) {
    throw ShapeError(
        fmt::format("the gradient of the task's loss has {} elements in {} axes, and "
                    "what it is the gradient of has {}",
                    given.numel(), given.shape.size(), values.numel()));
  }
  if (given.dtype != DType::kFloat32 && given.dtype != values.dtype()) {
    throw DtypeError(fmt::format("the gradient of the task's loss is {}: make it float32 or {}",
                                 name_of(given.dtype), name_of(values.dtype())));
  }
  const int device = values.stream().is_cpu() ? -1 : values.stream().device.index;
  if (given.device != device) {
    throw DeviceError("the gradient of the task's loss is on another device than the loss");
  }
  megatron::Tensor gradient = megatron::empty_like(values);
  kernels::cast(gradient.view(), {given.data, values.shape(), given.dtype}, gradient.stream());
  return gradient;
}

}  // namespace

void ChangedGptTask::take(const Batch& batch, int64_t rows) {
  const int64_t length = config().transformer.seq_length;
  if (std::ssize(batch.tokens) != rows * (length + 1)) {
    throw ShapeError(fmt::format("the batch has {} tokens; it must have {} rows of {} + 1 tokens",
                                 batch.tokens.size(), rows, length));
  }
  if (!batch.loss_mask.empty() && std::ssize(batch.loss_mask) != rows * length) {
    throw ShapeError(fmt::format("the loss mask has {} elements; it must have {} rows of {}",
                                 batch.loss_mask.size(), rows, length));
  }
  if (!batch.labels.empty() && std::ssize(batch.labels) != rows * length) {
    throw ShapeError(fmt::format("the batch has {} labels; it must have {} rows of {}",
                                 batch.labels.size(), rows, length));
  }
  given_labels_ = batch.labels;
  given_ = std::make_unique<GivenRows>(batch.tokens, length + 1);
  given_mask_ = batch.loss_mask;
  next_row_.clear();
}

void ChangedGptTask::release() {
  given_.reset();
  given_mask_ = {};
  given_labels_ = {};
}

void ChangedGptTask::adjust_parameter(OptimizedParameter& parameter) const {
  GptTask::adjust_parameter(parameter);
  ParameterOptions options = {parameter.has_weight_decay, parameter.lr_mult};
  changes_.adjust_parameter(parameter.name, parameter.variable.data().shape().dims(), options);
  parameter.has_weight_decay = options.has_weight_decay;
  parameter.lr_mult = options.lr_mult;
}

Microbatch ChangedGptTask::get_batch(Split split, int64_t chunk) {
  if (given_ == nullptr) return GptTask::get_batch(split, chunk);
  if (!reads_data(chunk)) return {};
  next_row_.resize(std::max(next_row_.size(), static_cast<size_t>(chunk) + 1), 0);
  int64_t& next = next_row_[static_cast<size_t>(chunk)];
  SampleGroup group;
  group.indices.resize(static_cast<size_t>(config().training.micro_batch_size));
  std::iota(group.indices.begin(), group.indices.end(), next);
  group.first_sample = next;
  next += config().training.micro_batch_size;
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
  const LossInputs inputs = changes_.loss_inputs();
  if (inputs == LossInputs::kNone) return GptTask::loss(model, hidden, targets);
  const TensorParallel& tp = model.tensor_parallel();
  const VocabularyProduct product = model.vocabulary_product(hidden);
  Variable values = logits_of(product, tp);
  if (inputs == LossInputs::kTokenLosses) {
    values = cross_entropy(
        values, targets.labels, static_cast<float>(model.config().label_smoothing),
        vocabulary_shard(product.weight.size(0), tp, model.config().counted_vocab_size()));
  } else if (tp.size() > 1) {
    values = gather_from_tensor_region(values, tp);
  }

  const Stream stream = hidden.stream();
  synchronize(stream);
  const bool wants_gradient = grad_enabled() && values.requires_grad();
  LossResult result =
      changes_.loss({.values = handle_of(values.data()),
                     .tokens = running_.tokens.defined() ? handle_of(running_.tokens) : Tensor{},
                     .labels = handle_of(targets.labels),
                     .loss_mask = handle_of(targets.loss_mask),
                     .split = running_.split,
                     .wants_gradient = wants_gradient});
  const auto scalar = [&](double value) {
    return full({}, static_cast<float>(value), DType::kFloat32, stream);
  };
  const megatron::Tensor loss = scalar(result.loss);
  MicrobatchOutput output;
  output.logged = {{changes_.loss_name(), loss}};
  for (auto& [name, value] : result.logged) output.logged.emplace_back(name, scalar(value));
  if (!wants_gradient) {
    output.losses = {Variable(loss)};
    return output;
  }
  output.losses = {record("task_loss", loss, {values},
                          [gradient = gradient_of(result, values.data())](
                              const megatron::Tensor& dy, const Wants&) mutable -> Grads {
                            scale_inplace(gradient, static_cast<float>(dy.item()));
                            return {std::move(gradient)};
                          })};
  return output;
}

}  // namespace megatron::api
