#include "megatron/api/task_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megatron/api/handles.h"
#include "megatron/core/error.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/parallel/tensor/vocabulary.h"

namespace megatron::api {
namespace {

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

MicrobatchOutput task_loss(const Task& changes, const megatron::Model& model,
                           const Variable& hidden, const TokenTargets& targets,
                           const RunningMicrobatch& running) {
  const TensorParallel& tp = model.tensor_parallel();
  const VocabularyProduct product = model.vocabulary_product(hidden);
  Variable values = logits_of(product, tp);
  if (changes.loss_inputs() == LossInputs::kTokenLosses) {
    values = cross_entropy(
        values, targets.labels, static_cast<float>(model.config().label_smoothing),
        vocabulary_shard(product.weight.size(0), tp, model.config().counted_vocab_size()));
  } else if (tp.size() > 1) {
    values = gather_from_tensor_region(values, tp);
  }

  const Stream stream = hidden.stream();
  const bool wants_gradient = grad_enabled() && values.requires_grad();
  LossResult result =
      changes.loss({.values = handle_of(values.data()),
                    .tokens = running.tokens.defined() ? handle_of(running.tokens) : Tensor{},
                    .labels = handle_of(targets.labels),
                    .loss_mask = handle_of(targets.loss_mask),
                    .split = running.split,
                    .wants_gradient = wants_gradient});
  const auto scalar = [&](double value) {
    return full({}, static_cast<float>(value), DType::kFloat32, stream);
  };
  const megatron::Tensor loss = scalar(result.loss);
  MicrobatchOutput output;
  output.logged = {{changes.loss_name(), loss}};
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

void change_parameter(const Task& changes, OptimizedParameter& parameter) {
  ParameterOptions options = {parameter.has_weight_decay, parameter.lr_mult};
  changes.adjust_parameter(parameter.name, parameter.variable.data().shape().dims(), options);
  parameter.has_weight_decay = options.has_weight_decay;
  parameter.lr_mult = options.lr_mult;
}

}  // namespace megatron::api
