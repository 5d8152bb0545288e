#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/device/stream.h"
#include "megatron/kernels/bias_activation.h"
#include "megatron/kernels/fp8.h"
#include "megatron/kernels/fp8_blocks.h"
#include "megatron/kernels/fp8_matmul.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/random.h"
#include "megatron/tensor/tensor.h"

// Speed-up and overhead of FP8, for each linear layer: each product of a training step in bf16 and
// in FP8, and the passes that quantise. Normal random factors; algorithms are searched as in
// training.
namespace megatron {
namespace {

using kernels::Transpose;

// The micro-batches of docs/performance.md.
struct Workload {
  const char* name;
  int64_t num_layers, hidden_size, tokens;
};
constexpr Workload kWorkloads[] = {{"345m", 24, 1024, 32 * 1024},
                                   {"1.5b", 48, 1600, 16 * 1024},
                                   {"1.3b", 24, 2048, 8 * 2048},
                                   {"6.7b", 32, 4096, 4 * 2048}};
constexpr DType kBf16 = DType::kBFloat16;
constexpr int kRounds = 8;

Tensor random(const Shape& shape, uint64_t key, Stream stream) {
  Tensor x(shape, kBf16, stream);
  kernels::fill_normal(x.view(), {}, key, 1, stream);
  return x;
}

Tensor number(float value, Stream stream) { return full({1}, value, DType::kFloat32, stream); }

// The least milliseconds of a few rounds, after one to warm up.
double least_ms(const std::function<void()>& run, Stream stream) {
  double least = 1e9;
  for (int round = 0; round <= kRounds; ++round) {
    Event begin(stream.device);
    Event end(stream.device);
    run();  // ahead, so that events measure the device's work alone
    begin.record(stream);
    run();
    end.record(stream);
    end.synchronize();
    if (round > 0) least = std::min(least, end.ms_since(begin));
  }
  return least;
}

// A random matrix in bf16, and in FP8 by rows and by columns.
struct Matrix {
  Matrix(int64_t rows, int64_t cols, uint64_t key, DType dtype, Stream stream)
      : wide(random({rows, cols}, key, stream)),
        by_rows({rows, cols}, dtype, stream),
        by_columns({cols, rows}, dtype, stream),
        scale(number(32, stream)),
        inverse(number(1.0f / 32, stream)) {
    kernels::fp8_quantize({.rows = by_rows.view(), .columns = by_columns.view()},
                          {.x = std::as_const(wide).view()}, std::as_const(scale).view(), stream);
  }
  kernels::Fp8Factor rows() const { return {by_rows.view(), inverse.view()}; }
  kernels::Fp8Factor columns() const { return {by_columns.view(), inverse.view()}; }

  Tensor wide, by_rows, by_columns, scale, inverse;
};

// The same with a scale for each block.
struct BlockedMatrix {
  BlockedMatrix(const Tensor& wide, kernels::Fp8Blocks with, DType dtype, Stream stream)
      : blocks(with),
        by_rows(wide.shape(), dtype, stream),
        by_columns({wide.size(1), wide.size(0)}, dtype, stream),
        row_inverses(
            zeros(kernels::fp8_scales_shape(with, by_rows.shape()), DType::kFloat32, stream)),
        column_inverses(
            zeros(kernels::fp8_scales_shape(with, by_columns.shape()), DType::kFloat32, stream)) {
    kernels::fp8_quantize_blocks({.blocks = blocks,
                                  .rows = {by_rows.view(), row_inverses.view()},
                                  .columns = {by_columns.view(), column_inverses.view()}},
                                 {.x = wide.view()}, stream);
  }
  kernels::Fp8Factor rows() const { return {by_rows.view(), row_inverses.view(), blocks}; }
  kernels::Fp8Factor columns() const { return {by_columns.view(), column_inverses.view(), blocks}; }

  kernels::Fp8Blocks blocks;
  Tensor by_rows, by_columns, row_inverses, column_inverses;
};

struct Sum {
  double bf16 = 0, fp8 = 0, blocks = 0, passes = 0, block_passes = 0;
};

void report(const std::string& name, double teraflop, double bf16, double fp8, double blocks) {
  std::printf("%-12s  bf16 %.4f ms %4.0f TF/s   FP8 %.4f %5.0f   blocks %.4f %5.0f\n", name.c_str(),
              bf16, teraflop / bf16 * 1e3, fp8, teraflop / fp8 * 1e3, blocks,
              teraflop / blocks * 1e3);
}

void measure_linear(const std::string& name, int64_t tokens, int64_t in, int64_t out, Sum& sum,
                    Stream stream) {
  const Matrix x(tokens, in, 1, DType::kFloat8E4M3, stream);
  const Matrix w(out, in, 2, DType::kFloat8E4M3, stream);
  const Matrix dy(tokens, out, 3, DType::kFloat8E5M2, stream);
  const BlockedMatrix x_blocks(x.wide, kernels::Fp8Blocks::kLine, DType::kFloat8E4M3, stream);
  const BlockedMatrix w_blocks(w.wide, kernels::Fp8Blocks::kSquare, DType::kFloat8E4M3, stream);
  const BlockedMatrix dy_blocks(dy.wide, kernels::Fp8Blocks::kLine, DType::kFloat8E5M2, stream);
  const double teraflop =
      2e-12 * static_cast<double>(tokens) * static_cast<double>(in) * static_cast<double>(out);
  const auto compare = [&](const char* product, Tensor c, const kernels::Fp8Factor& a,
                           const kernels::Fp8Factor& b, const kernels::Fp8Factor& a_blocks,
                           const kernels::Fp8Factor& b_blocks, float beta,
                           const std::function<void(Tensor&)>& in_bf16) {
    const double bf16 = least_ms([&] { in_bf16(c); }, stream);
    const double fp8 =
        least_ms([&] { kernels::fp8_matmul(c.view(), a, b, {}, beta, stream); }, stream);
    const double blocks = least_ms(
        [&] { kernels::fp8_matmul(c.view(), a_blocks, b_blocks, {}, beta, stream); }, stream);
    report(name + product, teraflop, bf16, fp8, blocks);
    sum.bf16 += bf16;
    sum.fp8 += fp8;
    sum.blocks += blocks;
  };
  const ConstView none;
  compare(" output", Tensor({tokens, out}, kBf16, stream), x.rows(), w.rows(), x_blocks.rows(),
          w_blocks.rows(), 0, [&](Tensor& c) {
            kernels::matmul(c.view(), x.wide.view(), Transpose::kNo, w.wide.view(), Transpose::kYes,
                            none, 0, stream);
          });
  compare(" dx", Tensor({tokens, in}, kBf16, stream), dy.rows(), w.columns(), dy_blocks.rows(),
          w_blocks.columns(), 0, [&](Tensor& c) {
            kernels::matmul(c.view(), dy.wide.view(), Transpose::kNo, w.wide.view(), Transpose::kNo,
                            none, 0, stream);
          });
  compare(" dw", zeros({out, in}, DType::kFloat32, stream), dy.columns(), x.columns(),
          dy_blocks.columns(), x_blocks.columns(), 1, [&](Tensor& c) {
            kernels::matmul(c.view(), dy.wide.view(), Transpose::kYes, x.wide.view(),
                            Transpose::kNo, none, 1, stream);
          });
}

// `bytes` are those that the pass reads and writes, for each element.
void measure_pass(const char* name, const kernels::Fp8Source& source, int64_t bytes, bool has_sums,
                  Sum& sum, Stream stream) {
  const int64_t rows = source.rows();
  const int64_t cols = source.cols();
  Tensor by_rows({rows, cols}, DType::kFloat8E4M3, stream);
  Tensor by_columns({cols, rows}, DType::kFloat8E4M3, stream);
  Tensor amax = number(0, stream);
  const Tensor scale = number(32, stream);
  Tensor sums({(rows + kernels::kFp8SumRows - 1) / kernels::kFp8SumRows, cols}, DType::kFloat32,
              stream);
  const double ms = least_ms(
      [&] {
        kernels::fp8_quantize({.rows = by_rows.view(),
                               .columns = by_columns.view(),
                               .amax = amax.view(),
                               .sums = has_sums ? sums.view() : TensorView{}},
                              source, scale.view(), stream);
      },
      stream);
  const auto scales = [&](const Tensor& matrix) {
    return zeros(kernels::fp8_scales_shape(kernels::Fp8Blocks::kLine, matrix.shape()),
                 DType::kFloat32, stream);
  };
  Tensor of_rows = scales(by_rows);
  Tensor of_columns = scales(by_columns);
  const double blocks = least_ms(
      [&] {
        kernels::fp8_quantize_blocks({.rows = {by_rows.view(), of_rows.view()},
                                      .columns = {by_columns.view(), of_columns.view()},
                                      .sums = has_sums ? sums.view() : TensorView{}},
                                     source, stream);
      },
      stream);
  const double terabytes = static_cast<double>(rows * cols * bytes) * 1e-9;
  std::printf("%-22s  %.4f ms  %.2f TB/s   blocks %.4f ms  %.2f TB/s\n", name, ms, terabytes / ms,
              blocks, terabytes / blocks);
  sum.passes += ms;
  sum.block_passes += blocks;
}

void measure_workload(const Workload& w, Stream stream) {
  std::printf("%s, %lld tokens\n", w.name, static_cast<long long>(w.tokens));
  const int64_t h = w.hidden_size;
  Sum sum;
  measure_linear("qkv", w.tokens, h, 3 * h, sum, stream);
  measure_linear("proj", w.tokens, h, h, sum, stream);
  measure_linear("fc1", w.tokens, h, 4 * h, sum, stream);
  measure_linear("fc2", w.tokens, 4 * h, h, sum, stream);
  const Tensor narrow = random({w.tokens, h}, 5, stream);
  const Tensor three = random({w.tokens, 3 * h}, 6, stream);
  const Tensor wide = random({w.tokens, 4 * h}, 7, stream);
  const Tensor dy = random({w.tokens, 4 * h}, 8, stream);
  Sum one;
  measure_pass("h", {.x = narrow.view()}, 4, false, one, stream);
  sum.passes += 5 * one.passes;  // inputs of qkv, proj and fc1, gradients of proj and fc2
  sum.block_passes += 5 * one.block_passes;
  measure_pass("3 h, sums", {.x = three.view()}, 4, true, sum, stream);
  measure_pass("GELU 4 h", {.x = wide.view(), .activation = Activation::kGeluTanh}, 4, false, sum,
               stream);
  measure_pass("GELU' 4 h, sums",
               {.x = wide.view(), .activation = Activation::kGeluTanh, .dy = dy.view()}, 6, true,
               sum, stream);
  const auto layers = static_cast<double>(w.num_layers);
  std::printf(
      "a micro-batch: products %.2f ms in bf16, %.2f in FP8, %.2f with blocks; passes %.2f ms, "
      "%.2f with blocks\n\n",
      layers * sum.bf16, layers * sum.fp8, layers * sum.blocks, layers * sum.passes,
      layers * sum.block_passes);
}

}  // namespace
}  // namespace megatron

// The names of workloads; all without one.
int main(int argc, char** argv) {
  using namespace megatron;  // NOLINT(google-build-using-namespace)
  const Device device{DeviceType::kCuda, 0};
  if (num_cuda_devices() == 0) {
    std::puts("no GPU");
    return 1;
  }
  use_device(device);
  const OwnedStream queue(device);
  Stream stream = queue.get();
  stream.options.searches_algorithms = true;
  const std::vector<std::string> names(argv + 1, argv + argc);
  for (const Workload& workload : kWorkloads) {
    const bool is_named = std::ranges::find(names, workload.name) != names.end();
    if (names.empty() || is_named) measure_workload(workload, stream);
  }
  return 0;
}
