#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "megatron/device/stream.h"
#include "megatron/kernels/bias_activation.h"
#include "megatron/kernels/cross_entropy.h"
#include "megatron/kernels/dropout.h"
#include "megatron/kernels/norm.h"
#include "megatron/tensor/tensor.h"

// TB/s of the kernels that the memory of a GPU bounds, bf16: the bytes that must be read and
// written, over the time of one call. Random input, 16384 tokens. Where all tensors of a row fit
// the 60 MB L2 cache, the result may exceed the memory's.
namespace megatron {
namespace {

void measure(const char* what, int64_t cols, int64_t bytes, Stream stream,
             const std::function<void()>& call) {
  constexpr int kCalls = 50;
  for (int i = 0; i < 5; ++i) call();
  Event begin(stream.device);
  Event end(stream.device);
  begin.record(stream);
  for (int i = 0; i < kCalls; ++i) call();
  end.record(stream);
  end.synchronize();
  const double us = end.ms_since(begin) * 1000 / kCalls;
  std::printf("%-28s %6lld  %8.1f us  %5.2f TB/s\n", what, static_cast<long long>(cols), us,
              static_cast<double>(bytes) / us / 1e6);
}

Tensor some(const Shape& shape, float value, Stream stream) {
  Tensor x = full(shape, 0, DType::kBFloat16, stream);
  // y = 0 + dropout(x + bias): ones and zeros in a random pattern, times `value`.
  const Tensor bias = full({shape[-1]}, value, DType::kBFloat16, stream);
  const Shape rows{x.rows().size(0), 1, shape[-1]};
  Tensor y = x.reshape(rows);
  kernels::bias_dropout_add_forward(y.view(), y.view(), bias.view(), ConstView{},
                                    {.key = 1, .probability = 0.5f}, stream);
  return x;
}

void norms(int64_t rows, int64_t cols, Stream s) {
  const Tensor x = some({rows, cols}, 1, s);
  const Tensor dy = some({rows, cols}, -1, s);
  const Tensor w = some({cols}, 1, s);
  Tensor y = empty_like(x);
  Tensor mean({rows}, DType::kFloat32, s);
  Tensor rstd({rows}, DType::kFloat32, s);
  Tensor dw({cols}, DType::kFloat32, s);
  Tensor db({cols}, DType::kFloat32, s);
  Tensor workspace({kernels::norm_backward_workspace_bytes(x.shape(), s)}, DType::kUInt8, s);
  const int64_t n = x.bytes();
  measure("layer_norm forward", cols, 2 * n, s, [&] {
    kernels::layer_norm_forward(y.view(), mean.view(), rstd.view(), x.view(), w.view(), w.view(), 0,
                                1e-5f, s);
  });
  measure("rms_norm forward", cols, 2 * n, s, [&] {
    kernels::rms_norm_forward(y.view(), rstd.view(), x.view(), w.view(), 0, 1e-5f, s);
  });
  measure("layer_norm backward", cols, 3 * n, s, [&] {
    kernels::layer_norm_backward(y.view(), dw.view(), db.view(), dy.view(), x.view(), mean.view(),
                                 rstd.view(), w.view(), 0, 1, workspace.view(), s);
  });
}

void elementwise(int64_t rows, int64_t cols, Stream s) {
  const Tensor x = some({rows, 1, cols}, 1, s);
  const Tensor dy = some({rows, 1, cols}, -1, s);
  const Tensor bias = some({cols}, 1, s);
  Tensor y = empty_like(x);
  const int64_t n = x.bytes();
  for (const auto& [name, activation] : {std::pair("gelu tanh", Activation::kGeluTanh),
                                         std::pair("gelu erf", Activation::kGeluErf)}) {
    measure((std::string(name) + " forward").c_str(), cols, 2 * n, s, [&] {
      kernels::bias_activation_forward(y.rows(), x.rows(), bias.view(), activation, s);
    });
    measure((std::string(name) + " backward").c_str(), cols, 3 * n, s, [&] {
      kernels::bias_activation_backward(y.rows(), dy.rows(), x.rows(), bias.view(), activation, s);
    });
  }
  measure("bias_dropout_add", cols, 3 * n, s, [&] {
    kernels::bias_dropout_add_forward(y.view(), x.view(), bias.view(), dy.view(),
                                      {.key = 1, .probability = 0.1f}, s);
  });
}

void losses(int64_t rows, int64_t cols, Stream s) {
  Tensor logits = some({rows, 1, cols}, 1, s);
  const Tensor labels = zeros({1, rows}, DType::kInt64, s);
  Tensor statistics({rows, 1, kernels::kNumCrossEntropyStatistics}, DType::kFloat32, s);
  Tensor lse = full({rows, 1}, 11, DType::kFloat32, s);
  measure("cross_entropy statistics", cols, logits.bytes(), s, [&] {
    kernels::cross_entropy_statistics(statistics.view(), logits.view(), labels.view(), 0, s);
  });
  measure("cross_entropy backward", cols, 2 * logits.bytes(), s, [&] {
    kernels::cross_entropy_backward(logits.view(), lse.view(), logits.view(), lse.view(),
                                    labels.view(), 0, 0, cols, s);
  });
}

}  // namespace
}  // namespace megatron

int main() {
  using namespace megatron;
  const Device gpu{DeviceType::kCuda, 0};
  use_device(gpu);
  const OwnedStream queue(gpu);
  constexpr int64_t kTokens = 16384;
  for (const int64_t cols : {1024, 2048, 4096, 8192}) {
    norms(kTokens, cols, queue.get());
    elementwise(kTokens, cols, queue.get());
  }
  losses(kTokens, 50304, queue.get());
}
