#include "megatron/ops/elementwise.h"

#include "megatron/device/trace.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/multiply.h"
#include "megatron/ops/parameter_gradient.h"

namespace megatron {
namespace {

// The gradient in the dtype of its input; shares memory with dy if the dtypes are equal.
Tensor as_dtype(const Tensor& dy, DType dtype) {
  return dy.dtype() == dtype ? dy : cast(dy, dtype);
}

}  // namespace

Variable add(const Variable& x, const Variable& z) {
  const TraceRange range("add", x.stream());
  expect_shape(z.shape(), x.shape(), "add: z");
  const DType dtype = x.dtype() == z.dtype() ? x.dtype() : DType::kFloat32;
  Tensor y(x.shape(), dtype, x.stream());
  kernels::add(y.view(), x.data().view(), z.data().view(), 1.0f, y.stream());
  return record(
      "add", y, {x, z},
      [x_dtype = x.dtype(), z_dtype = z.dtype()](const Tensor& dy, const Wants& wants) -> Grads {
        return {wants[0] ? as_dtype(dy, x_dtype) : Tensor(),
                wants[1] ? as_dtype(dy, z_dtype) : Tensor()};
      });
}

Variable scale(const Variable& x, float alpha) {
  const TraceRange range("scale", x.stream());
  Tensor y = empty_like(x.data());
  kernels::scale(y.view(), x.data().view(), alpha, y.stream());
  return record("scale", y, {x}, [alpha](const Tensor& dy, const Wants&) -> Grads {
    Tensor dx = empty_like(dy);
    kernels::scale(dx.view(), dy.view(), alpha, dx.stream());
    return {dx};
  });
}

Variable scale_columns(const Variable& x, const Variable& weight) {
  const TraceRange range("scale_columns", x.stream());
  expect_shape(weight.shape(), {x.size(-1)}, "scale_columns: weight");
  Tensor y = empty_like(x.data());
  kernels::multiply(y.rows(), x.data().rows(), weight.data().view(), y.stream());
  return record("scale_columns", y, {x, weight},
                [x = x.data(), w = weight.data(), sink = weight.grad_sink()](
                    const Tensor& dy, const Wants& wants) -> Grads {
                  const Stream s = dy.stream();
                  Tensor dx = wants[0] ? empty_like(x) : Tensor();
                  if (wants[0]) kernels::multiply(dx.rows(), dy.rows(), w.view(), s);
                  ParameterGradient dweight(sink, w.shape(), w.dtype(), s, wants[1]);
                  if (wants[1]) {
                    Tensor products(x.rows().shape, DType::kFloat32, s);
                    kernels::multiply(products.view(), dy.rows(), x.rows(), s);
                    kernels::sum_rows(dweight.view(), products.view(), dweight.beta(), s);
                  }
                  return {dx, dweight.result()};
                });
}

Variable cast(const Variable& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return record(
      "cast", cast(x.data(), dtype), {x},
      [from = x.dtype()](const Tensor& dy, const Wants&) -> Grads { return {cast(dy, from)}; });
}

Variable reshape(const Variable& x, const Shape& shape) {
  return record(
      "reshape", x.data().reshape(shape), {x},
      [from = x.shape()](const Tensor& dy, const Wants&) -> Grads { return {dy.reshape(from)}; });
}

Variable row(const Variable& x, int64_t row) {
  const Shape rest(x.shape().dims().subspan(1));
  const Tensor y = x.data().slice(row, 1).reshape(rest);
  return record("row", y, {x}, [from = x.shape(), row](const Tensor& dy, const Wants&) -> Grads {
    Tensor dx = zeros(from, dy.dtype(), dy.stream());
    Tensor place = dx.slice(row, 1).reshape(dy.shape());
    copy_into(place, dy);
    return {dx};
  });
}

}  // namespace megatron
