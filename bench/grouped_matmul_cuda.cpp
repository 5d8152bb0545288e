#include <cstdio>

#include "megatron/device/stream.h"
#include "megatron/kernels/fp8_grouped_matmul.h"
#include "megatron/kernels/fp8_matrices.h"
#include "megatron/kernels/fp8_rows.h"
#include "megatron/kernels/grouped_matmul.h"
#include "megatron/kernels/random.h"
#include "megatron/tensor/tensor.h"

// The speed of the products of experts, for balanced groups and for skewed ones, beside one
// cuBLASLt product of the same size.
namespace megatron {
namespace {

using kernels::Transpose;

constexpr int kRounds = 20;

struct Experts {
  const char* name;
  int64_t count, rows, hidden, width;  // fc1 makes 2 * width columns (SwiGLU)
};
constexpr Experts kExperts[] = {{"64 of 1024, top 8, 16k tokens", 64, 131072, 2048, 1024},
                                {"64 of 1408, top 6, 16k tokens", 64, 98304, 2048, 1408},
                                {"32 local of 768, top 8 of 128", 32, 65536, 2048, 768},
                                {"128 of 768, top 8, 8k tokens", 128, 65536, 2048, 768}};

Tensor normal(const Shape& shape, uint64_t key, Stream stream) {
  Tensor x(shape, DType::kBFloat16, stream);
  kernels::fill_normal(x.view(), {}, key, 1, stream);
  return x;
}

// Sizes that sum to `rows`: equal, or in proportion to 1 / (e + 8).
Tensor offsets_of(int64_t groups, int64_t rows, bool is_skewed, Stream stream) {
  double sum = 0;
  const auto weight = [&](int64_t e) { return is_skewed ? 1.0 / static_cast<double>(e + 8) : 1.0; };
  for (int64_t e = 0; e < groups; ++e) sum += weight(e);
  Tensor offsets({groups + 1}, DType::kInt32, Stream{});
  double before = 0;
  for (int64_t e = 0; e <= groups; ++e) {
    offsets.view().as<int32_t>()[e] =
        e == groups ? static_cast<int32_t>(rows)
                    : static_cast<int32_t>(before / sum * static_cast<double>(rows));
    before += weight(e);
  }
  return offsets.to(stream);
}

template <class Run>
double seconds(const Run& run, Stream stream) {
  Event begin(stream.device);
  Event end(stream.device);
  for (int i = 0; i < 3; ++i) run();
  begin.record(stream);
  for (int i = 0; i < kRounds; ++i) run();
  end.record(stream);
  end.synchronize();
  return end.ms_since(begin) * 1e-3 / kRounds;
}

// The products of a linear layer of experts: n outputs of k inputs.
void measure(const char* name, const Experts& x, int64_t n, int64_t k, bool is_skewed,
             Stream stream) {
  const Tensor in = normal({x.rows, k}, 1, stream);
  const Tensor w = normal({x.count, n, k}, 2, stream);
  Tensor out = normal({x.rows, n}, 3, stream);
  Tensor din = empty_like(in);
  Tensor dw = zeros({x.count, n, k}, DType::kFloat32, stream);
  Tensor dw16 = empty_like(w);
  const Tensor offsets = offsets_of(x.count, x.rows, is_skewed, stream);
  const double tflop =
      2e-12 * static_cast<double>(x.rows) * static_cast<double>(n) * static_cast<double>(k);
  const auto rate = [&](const auto& run) { return tflop / seconds(run, stream); };
  const double forward = rate([&] {
    kernels::grouped_matmul(out.view(), in.view(), w.view(), Transpose::kYes, offsets.view(),
                            stream);
  });
  const double dgrad = rate([&] {
    kernels::grouped_matmul(din.view(), out.view(), w.view(), Transpose::kNo, offsets.view(),
                            stream);
  });
  const double wgrad = rate([&] {
    kernels::grouped_matmul_gradient(dw.view(), out.view(), in.view(), offsets.view(), 1.0f,
                                     stream);
  });
  const auto gradient16 = [&](float beta) {
    return rate([&] {
      kernels::grouped_matmul_gradient(dw16.view(), out.view(), in.view(), offsets.view(), beta,
                                       stream);
    });
  };
  const double wgrad16 = gradient16(0.0f);
  const double added16 = gradient16(1.0f);
  // In FP8: y and dx without quantisation, which has its own column, in GB/s of what it reads.
  Tensor in8(in.shape(), DType::kFloat8E4M3, stream);
  Tensor in_scales({x.rows}, DType::kFloat32, stream);
  const double quantize =
      2e-9 * static_cast<double>(in.numel()) /
      seconds([&] { kernels::fp8_quantize_rows(in8.view(), in_scales.view(), in.view(), stream); },
              stream);
  Tensor out8(out.shape(), DType::kFloat8E5M2, stream);
  Tensor out_scales({x.rows}, DType::kFloat32, stream);
  kernels::fp8_quantize_rows(out8.view(), out_scales.view(), out.view(), stream);
  Tensor w8(w.shape(), DType::kFloat8E4M3, stream);
  Tensor w8_columns({x.count, k, n}, DType::kFloat8E4M3, stream);
  Tensor w_scales({x.count}, DType::kFloat32, stream);
  kernels::fp8_quantize_matrices(w8.view(), w8_columns.view(), w_scales.view(), w.view(), stream);
  const double forward8 = rate([&] {
    kernels::fp8_grouped_matmul(out.view(), in8.view(), in_scales.view(), w8.view(),
                                w_scales.view(), offsets.view(), stream);
  });
  const double dgrad8 = rate([&] {
    kernels::fp8_grouped_matmul(din.view(), out8.view(), out_scales.view(), w8_columns.view(),
                                w_scales.view(), offsets.view(), stream);
  });
  const ConstView one{w.view().data, {n, k}, DType::kBFloat16};
  const double dense = rate([&] {
    kernels::matmul(out.view(), in.view(), Transpose::kNo, one, Transpose::kYes, ConstView{}, 0.0f,
                    stream);
  });
  std::printf("%-30s %-4s %-8s %6.0f %6.0f %6.0f %6.0f %6.0f %6.0f %6.0f %6.0f %6.0f\n", x.name,
              name, is_skewed ? "skewed" : "balanced", forward, dgrad, wgrad, wgrad16, added16,
              dense, forward8, dgrad8, quantize);
}

}  // namespace
}  // namespace megatron

int main() {
  using namespace megatron;
  const Device gpu{DeviceType::kCuda, 0};
  use_device(gpu);
  const OwnedStream queue(gpu);
  std::printf("%-30s %-4s %-8s %6s %6s %6s %6s %6s %6s %6s %6s TFLOP/s %6s GB/s\n", "experts", "",
              "groups", "y", "dx", "dw+=", "dw16", "dw16+=", "dense", "y fp8", "dx fp8", "round");
  for (const Experts& experts : kExperts) {
    for (const bool is_skewed : {false, true}) {
      measure("fc1", experts, 2 * experts.width, experts.hidden, is_skewed, queue.get());
      measure("fc2", experts, experts.hidden, experts.width, is_skewed, queue.get());
    }
  }
  return 0;
}
