#include "megatron/ops/tanh.h"

#include "megatron/device/trace.h"
#include "megatron/kernels/tanh.h"

namespace megatron {

Variable tanh(const Variable& x) {
  const TraceRange range("tanh", x.stream());
  Tensor y = empty_like(x.data());
  kernels::tanh_forward(y.view(), x.data().view(), y.stream());
  return record("tanh", y, {x}, [y](const Tensor& dy, const Wants&) -> Grads {
    Tensor dx = empty_like(dy);
    kernels::tanh_backward(dx.view(), dy.view(), y.view(), dx.stream());
    return {dx};
  });
}

Variable soft_cap(const Variable& x, float alpha, float cap) {
  const TraceRange range("soft_cap", x.stream());
  Tensor y = empty_like(x.data());
  kernels::soft_cap_forward(y.view(), x.data().view(), alpha, cap, y.stream());
  return record("soft_cap", y, {x}, [y, alpha, cap](const Tensor& dy, const Wants&) -> Grads {
    Tensor dx = empty_like(dy);
    kernels::soft_cap_backward(dx.view(), dy.view(), y.view(), alpha, cap, dx.stream());
    return {dx};
  });
}

}  // namespace megatron
