#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "megatron/device/stream.h"
#include "megatron/kernels/algorithm_choice.h"
#include "megatron/kernels/cuda/matmul_plans.h"
#include "megatron/kernels/cuda/matmul_search.h"
#include "megatron/kernels/random.h"
#include "megatron/tensor/tensor.h"

// The gain of a search over cuBLASLt's algorithms: for each product of a training step in bf16, the
// time of the first offered algorithm and of the fastest, and both sums over a micro-batch. Normal
// random factors. Neither reads nor writes the file of choices.
namespace megatron {
namespace {

using kernels::Transpose;
using kernels::cuda::Epilogue;
using kernels::cuda::MatmulKey;
using kernels::cuda::MatmulOperands;
using kernels::cuda::MatmulPlan;
using kernels::cuda::MatmulPlans;

// The micro-batches of docs/performance.md.
struct Workload {
  const char* name;
  int64_t num_layers, hidden_size, tokens;
};
constexpr Workload kWorkloads[] = {{"345m", 24, 1024, 32 * 1024},
                                   {"1.5b", 48, 1600, 16 * 1024},
                                   {"1.3b", 24, 2048, 8 * 2048},
                                   {"6.7b", 32, 4096, 4 * 2048}};
constexpr int64_t kVocabulary = 50304;
constexpr int kMaxOffers = 16;
constexpr int kRounds = 10;

struct Sum {
  double first_ms = 0;
  double best_ms = 0;
};

Tensor random(const Shape& shape, uint64_t key, Stream stream) {
  Tensor x(shape, DType::kBFloat16, stream);
  kernels::fill_normal(x.view(), {}, key, 1, stream);
  return x;
}

void measure(const std::string& name, const MatmulKey& key, int64_t count, Sum& sum,
             Stream stream) {
  const Tensor a = random({key.m, key.k}, 1, stream);
  const Tensor b = random({key.k, key.n}, 2, stream);
  const Tensor bias = random({1, key.n}, 3, stream);
  const Tensor c = zeros({key.m, key.n}, key.out, stream);
  Tensor d = empty_like(c);
  Tensor pre = key.epilogue == Epilogue::kNone ? Tensor() : random({key.m, key.n}, 4, stream);
  MatmulPlans& plans = MatmulPlans::of(stream.device);
  const MatmulOperands operands{.d = d.view().data,
                                .a = a.view().data,
                                .b = b.view().data,
                                .c = c.view().data,
                                .bias = key.has_bias ? bias.view().data : nullptr,
                                .beta = key.has_beta ? 1.0f : 0.0f,
                                .pre = pre.defined() ? pre.view().data : nullptr};
  const MatmulPlan plan = kernels::cuda::described(key, operands);
  const auto offers = kernels::cuda::offered_algorithms(plans.handle(), plan, key, kMaxOffers);
  if (offers.empty()) {
    std::printf("%-18s cuBLASLt has no such product\n", name.c_str());
    return;
  }
  const auto ms = kernels::cuda::measured_ms(plans.handle(), plan, offers, operands,
                                             plans.workspace(stream), kRounds, stream);
  const size_t best = kernels::fastest(ms);
  const double teraflop =
      2e-12 * static_cast<double>(key.m) * static_cast<double>(key.n) * static_cast<double>(key.k);
  std::printf("%-18s %6lld %6lld %6lld  %8.4f %5.0f  %8.4f %5.0f  %2zu of %2zu  %5.1f %%\n",
              name.c_str(), static_cast<long long>(key.m), static_cast<long long>(key.n),
              static_cast<long long>(key.k), ms.front(), teraflop / ms.front() * 1e3, ms[best],
              teraflop / ms[best] * 1e3, best, offers.size(), 100 * (ms.front() / ms[best] - 1));
  sum.first_ms += static_cast<double>(count) * ms.front();
  sum.best_ms += static_cast<double>(count) * ms[best];
}

// The three products of a linear layer: its output and the gradients of its input and weight.
void measure_linear(const std::string& name, int64_t tokens, int64_t in, int64_t out, bool has_bias,
                    int64_t count, Sum& sum, Stream stream) {
  constexpr DType kBf16 = DType::kBFloat16;
  measure(name + " output",
          {.m = tokens,
           .n = out,
           .k = in,
           .in = kBf16,
           .out = kBf16,
           .transpose_b = Transpose::kYes,
           .has_bias = has_bias},
          count, sum, stream);
  measure(name + " dx", {.m = tokens, .n = in, .k = out, .in = kBf16, .out = kBf16}, count, sum,
          stream);
  measure(name + " dw",
          {.m = out,
           .n = in,
           .k = tokens,
           .in = kBf16,
           .transpose_a = Transpose::kYes,
           .has_beta = true},
          count, sum, stream);
}

// The product behind GELU, "fc2 dx", with GELU's derivative, compared with the plain product and
// the memory traffic of a separate kernel.
void measure_gelu(const Workload& w, Stream stream) {
  const int64_t h = w.hidden_size;
  const double bytes = 3 * 2.0 * static_cast<double>(w.tokens * 4 * h * w.num_layers);
  MatmulKey key{.m = w.tokens, .n = 4 * h, .k = h, .in = DType::kBFloat16, .out = DType::kBFloat16};
  Sum plain, fused;
  measure("fc2 dx", key, w.num_layers, plain, stream);
  key.epilogue = Epilogue::kGeluGradient;
  measure("fc2 dx GELU", key, w.num_layers, fused, stream);
  std::printf("in the product: %.2f ms, beside it %.2f ms and about %.2f ms at 4 TB/s\n\n",
              fused.best_ms, plain.best_ms, bytes / 4e9);
}

void measure_workload(const Workload& w, Stream stream) {
  std::printf("%s, %lld tokens\n%-18s %6s %6s %6s  %8s %5s  %8s %5s\n", w.name,
              static_cast<long long>(w.tokens), "product", "m", "n", "k", "first ms", "TF/s",
              "best ms", "TF/s");
  const int64_t h = w.hidden_size;
  Sum sum;
  measure_linear("qkv", w.tokens, h, 3 * h, true, w.num_layers, sum, stream);
  measure_linear("proj", w.tokens, h, h, false, w.num_layers, sum, stream);
  measure_linear("fc1", w.tokens, h, 4 * h, false, w.num_layers, sum, stream);
  measure_linear("fc2", w.tokens, 4 * h, h, false, w.num_layers, sum, stream);
  measure_linear("head", w.tokens, h, kVocabulary, false, 1, sum, stream);
  std::printf(
      "a micro-batch: %.2f ms by the first offers, %.2f ms by the fastest, %.1f %% gained\n",
      sum.first_ms, sum.best_ms, 100 * (sum.first_ms / sum.best_ms - 1));
  measure_gelu(w, stream);
}

}  // namespace
}  // namespace megatron

int main() {
  using namespace megatron;
  ::setenv("MEGATRON_MATMUL_CACHE", "off", 1);
  const Device gpu{DeviceType::kCuda, 0};
  use_device(gpu);
  const OwnedStream queue(gpu);
  for (const Workload& workload : kWorkloads) measure_workload(workload, queue.get());
}
