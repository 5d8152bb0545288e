#include "megatron/autograd/recompute.h"

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"

namespace megatron {
namespace {

// An input, stored for the backward pass.
struct StoredInput {
  Restore restore;  // null for an undefined input
  bool requires_grad = false;

  Variable restored() const {
    if (!restore) return {};
    return requires_grad ? Variable::leaf(restore()) : Variable(restore());
  }
};

std::vector<StoredInput> stored(const std::vector<Variable>& xs, const StoredForm& first_form) {
  std::vector<StoredInput> all;
  all.reserve(xs.size());
  for (size_t i = 0; i < xs.size(); ++i) {
    if (!xs[i].defined()) {
      all.emplace_back();
    } else if (i == 0 && first_form) {
      all.push_back({first_form(xs[i].data()), xs[i].requires_grad()});
    } else {
      all.push_back({[x = xs[i].data()] { return x; }, xs[i].requires_grad()});
    }
  }
  return all;
}

std::vector<Tensor> data_of(const std::vector<Variable>& ys) {
  std::vector<Tensor> all;
  all.reserve(ys.size());
  for (const Variable& y : ys) all.push_back(y.data());
  return all;
}

// Runs the region again and returns the gradients of its inputs.
Grads replayed(const RecomputedFunction& fn, const std::vector<StoredInput>& inputs,
               const std::vector<Tensor>& dys) {
  std::vector<Variable> xs;
  xs.reserve(inputs.size());
  for (const StoredInput& input : inputs) xs.push_back(input.restored());
  {
    const EnableGrad enable;
    const std::vector<Variable> ys = fn(xs);
    backward(ys, dys);
  }
  Grads grads;
  grads.reserve(xs.size());
  for (const Variable& x : xs) grads.push_back(x.requires_grad() ? x.grad() : Tensor());
  return grads;
}

}  // namespace

std::vector<Variable> recompute(RecomputedFunction fn, const std::vector<Variable>& xs,
                                RandomState& random, const StoredForm& first_form) {
  invariant(!xs.empty() && xs[0].defined(), "a recomputed region has a first input");
  const TraceRange range("recompute", xs[0].stream());
  if (!grad_enabled()) return fn(xs);

  std::vector<StoredInput> inputs = stored(xs, first_form);
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
                        [fn = std::move(fn), inputs = std::move(inputs), random = &random,
                         at = random](const std::vector<Tensor>& dys, const Wants&) -> Grads {
                          const RandomState now = std::exchange(*random, at);
                          Grads grads = replayed(fn, inputs, dys);
                          *random = now;
                          return grads;
                        });
}

void drop_until_used(const Variable& y, std::function<Tensor()> make, RandomState& random) {
  if (!grad_enabled()) return;
  Tensor memory = y.data();
  memory.drop_until_access(
      [make = std::move(make), random = &random, at = random, stream = y.stream()] {
        const TraceRange range("recompute", stream);
        const NoGrad no_grad;
        const RandomState now = std::exchange(*random, at);
        Tensor again = make();
        *random = now;
        return again;
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
