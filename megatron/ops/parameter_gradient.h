#pragma once

#include "megatron/autograd/variable.h"

namespace megatron {

// The destination of a parameter's gradient in an op's backward pass: it is added to the main
// gradient if there is one; otherwise it is a new tensor, which the engine delivers.
//
//   ParameterGradient dweight(sink, shape, dtype, stream, wants[1]);
//   kernel(dweight.view(), ..., dweight.beta(), stream);  // y = beta * y + gradient
//   return {dx, dweight.result()};
class ParameterGradient {
 public:
  // Not wanted: view() is null and result() undefined.
  ParameterGradient(const GradSink& sink, const Shape& shape, DType dtype, Stream stream,
                    bool wanted)
      : adds_(wanted && sink),
        gradient_(!wanted ? Tensor()
                  : adds_ ? sink.main_grad()
                          : Tensor(shape, dtype, stream)) {}

  TensorView view() { return gradient_.defined() ? gradient_.view() : TensorView{}; }
  float beta() const { return adds_ ? 1.0f : 0.0f; }
  Tensor result() const { return adds_ ? Tensor() : gradient_; }

 private:
  bool adds_;
  Tensor gradient_;
};

}  // namespace megatron
