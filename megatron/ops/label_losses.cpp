#include "megatron/ops/label_losses.h"

#include "megatron/core/error.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"

namespace megatron {
namespace {

float share_of(int64_t n) { return 1.0F / static_cast<float>(n); }

}  // namespace

Variable mean_squared_error(const Variable& x, const Tensor& target) {
  const int64_t n = x.data().numel();
  if (target.numel() != n) throw ShapeError("mean_squared_error: x and target differ in size");
  const Variable goal(target.reshape({1, n}));
  const Variable difference = add(reshape(cast(x, DType::kFloat32), {1, n}), scale(goal, -1.0F));
  const Variable sum = linear(difference, difference, {});  // its product with itself
  return reshape(scale(sum, share_of(n)), {});
}

// The two classes of a label have the logits 0 and x.
Variable binary_cross_entropy(const Variable& x, const Tensor& labels) {
  const int64_t n = x.data().numel();
  Tensor classes = zeros({2, 1}, DType::kFloat32, x.stream());
  Tensor second = classes.slice(1, 1);
  copy_into(second, full({1, 1}, 1.0F, DType::kFloat32, x.stream()));
  const Variable logits =
      linear(reshape(cast(x, DType::kFloat32), {n, 1}), Variable(classes), {});  // [n, 2]
  const Variable losses = cross_entropy(reshape(logits, {1, n, 2}), labels.reshape({n, 1}));
  return masked_mean(losses, full({n, 1}, 1.0F, DType::kFloat32, x.stream()));
}

}  // namespace megatron
