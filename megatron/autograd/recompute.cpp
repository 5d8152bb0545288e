#include "megatron/autograd/recompute.h"

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"

namespace megatron {
namespace {

// An input, stored for the backward pass.
struct StoredInput {
  Tensor data;  // packed if there is an unpack; undefined for an undefined input
  bool requires_grad = false;
  std::function<Tensor(const Tensor& packed)> unpack = {};

  Variable restored() const {
    if (!data.defined()) return {};
    Tensor whole = unpack ? unpack(data) : data;
    return requires_grad ? Variable::leaf(std::move(whole)) : Variable(std::move(whole));
  }
};

std::vector<StoredInput> stored(const std::vector<Variable>& xs, const StoredForm& first_form) {
  std::vector<StoredInput> all;
  for (const Variable& x : xs) {
    all.push_back({x.defined() ? x.data() : Tensor(), x.requires_grad()});
  }
  if (first_form.pack) all[0].data = first_form.pack(all[0].data);
  all[0].unpack = first_form.unpack;
  return all;
}

std::vector<Tensor> data_of(const std::vector<Variable>& ys) {
  std::vector<Tensor> all;
  for (const Variable& y : ys) all.push_back(y.data());
  return all;
}

// Runs the region again and returns the gradients of its inputs.
Grads replayed(const RecomputedFunction& fn, const std::vector<StoredInput>& inputs,
               const std::vector<Tensor>& dys) {
  std::vector<Variable> xs;
  for (const StoredInput& input : inputs) xs.push_back(input.restored());
  {
    const EnableGrad enable;
    const std::vector<Variable> ys = fn(xs);
    backward(ys, dys);
  }
  Grads grads;
  for (const Variable& x : xs) grads.push_back(x.requires_grad() ? x.grad() : Tensor());
  return grads;
}

}  // namespace

std::vector<Variable> recompute(RecomputedFunction fn, const std::vector<Variable>& xs,
                                RandomState& random, const StoredForm& first_form) {
  invariant(!xs.empty() && xs[0].defined(), "a recomputed region has a first input");
  const TraceRange range("recompute", xs[0].stream());
  if (!grad_enabled()) return fn(xs);

  std::vector<Tensor> ys;
  {
    const NoGrad no_grad;
    ys = data_of(fn(xs));
  }
  // Parameters inside fn need gradients even if no input does; then a leaf replaces the first
  // input.
  std::vector<Variable> anchors = xs;
  if (std::none_of(xs.begin(), xs.end(), [](const Variable& x) { return x.requires_grad(); })) {
    anchors[0] = Variable::leaf(xs[0].data());
  }
  return record_outputs("recompute", std::move(ys), anchors,
                        [fn = std::move(fn), inputs = stored(xs, first_form), random = &random,
                         at = random](const std::vector<Tensor>& dys, const Wants&) -> Grads {
                          const RandomState now = std::exchange(*random, at);
                          Grads grads = replayed(fn, inputs, dys);
                          *random = now;
                          return grads;
                        });
}

Variable recompute(std::function<Variable(const Variable&)> fn, const Variable& x,
                   RandomState& random, const StoredForm& form) {
  const auto of_list = [fn = std::move(fn)](std::span<const Variable> xs) {
    return std::vector<Variable>{fn(xs[0])};
  };
  return recompute(of_list, std::vector<Variable>{x}, random, form)[0];
}

}  // namespace megatron
