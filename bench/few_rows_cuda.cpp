#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "megatron/device/stream.h"
#include "megatron/device/work_graph.h"
#include "megatron/kernels/cuda/few_rows_matmul.h"
#include "megatron/kernels/cuda/matmul_plans.h"
#include "megatron/kernels/random.h"
#include "megatron/tensor/tensor.h"

// Products of 1 to 64 rows in bf16, as in the generation of a token: the own kernel with several
// plans and cuBLASLt with its first offer and the fastest, in TB/s of the weight. Every product has
// one of many weights, so that none comes from the cache, and all are replayed as a CUDA graph.
namespace megatron {
namespace {

using kernels::Transpose;
using kernels::cuda::FewRowsPlan;
using kernels::cuda::MatmulKey;
using kernels::cuda::MatmulOperands;
using kernels::cuda::MatmulPlans;

struct Weight {
  const char* name;
  int64_t n, k;
};
constexpr Weight kWeights[] = {
    {"1.5b qkv", 4800, 1600}, {"1.5b proj", 1600, 1600},  {"1.5b fc1", 6400, 1600},
    {"1.5b fc2", 1600, 6400}, {"1.5b head", 50304, 1600}, {"8b qkv", 6144, 4096},
    {"8b proj", 4096, 4096},  {"8b fc1", 28672, 4096},    {"8b fc2", 4096, 14336},
};
constexpr int64_t kBytes = int64_t{400} << 20;  // of all weights
constexpr int kMaxOffers = 12;
constexpr int kReplays = 5;

Tensor random(const Shape& shape, uint64_t key, Stream stream) {
  Tensor x(shape, DType::kBFloat16, stream);
  kernels::fill_normal(x.view(), {}, key, 0.02f, stream);
  return x;
}

// Microseconds of a product; negative if it cannot run.
template <class F>
double microseconds(int64_t count, const F& product, Stream stream) {
  for (int64_t i = 0; i < 2; ++i) {
    if (!product(i)) return -1;
  }
  WorkGraph graph(stream, [&] {
    for (int64_t i = 0; i < count; ++i) product(i);
  });
  graph.launch();
  Event begin(stream.device), end(stream.device);
  begin.record(stream);
  for (int i = 0; i < kReplays; ++i) graph.launch();
  end.record(stream);
  end.synchronize();
  return 1e3 * end.ms_since(begin) / static_cast<double>(count * kReplays);
}

void measure(const Weight& w, int64_t m, Stream stream) {
  const int64_t bytes = w.n * w.k * 2;
  const int64_t count = std::max<int64_t>(2, (kBytes + bytes - 1) / bytes);
  const Tensor weights = random({count * w.n, w.k}, 1, stream);
  const Tensor x = random({m, w.k}, 2, stream);
  Tensor y({m, w.n}, DType::kBFloat16, stream);
  const auto weight = [&](int64_t i) { return weights.slice(i % count * w.n, w.n); };
  const auto print = [&](const char* how, double us) {
    std::printf("%s %.2f us %.2f TB/s; ", how, us, static_cast<double>(bytes) / us * 1e-6);
  };
  std::printf("%-10s m %2d: ", w.name, static_cast<int>(m));

  MatmulPlans& plans = MatmulPlans::of(stream.device);
  const MatmulKey key{.m = m,
                      .n = w.n,
                      .k = w.k,
                      .in = DType::kBFloat16,
                      .out = DType::kBFloat16,
                      .transpose_b = Transpose::kYes};
  MatmulOperands operands{.d = y.view().data, .a = x.view().data, .b = weight(0).view().data};
  auto plan = kernels::cuda::described(key, operands);
  const auto offers = kernels::cuda::offered_algorithms(plans.handle(), plan, key, kMaxOffers);
  double best = -1;
  size_t best_at = 0;
  for (size_t offer = 0; offer < offers.size(); ++offer) {
    plan.algorithm = offers[offer];
    const double us = microseconds(
        count,
        [&](int64_t i) {
          operands.b = std::as_const(weights).slice(i % count * w.n, w.n).view().data;
          return kernels::cuda::launch(plans.handle(), plan, operands, plans.workspace(stream),
                                       stream) == CUBLAS_STATUS_SUCCESS;
        },
        stream);
    if (offer == 0) print("cuBLASLt", us);
    if (us > 0 && (best < 0 || us < best)) {
      best = us;
      best_at = offer;
    }
  }
  print(("best (" + std::to_string(best_at) + ")").c_str(), best);
  const auto own = [&](const FewRowsPlan& how) {
    return microseconds(
        count,
        [&](int64_t i) {
          return kernels::cuda::few_rows_matmul(
              y.view(), x.view(), std::as_const(weights).slice(i % count * w.n, w.n).view(), {},
              false, how, stream);
        },
        stream);
  };
  if (m <= kernels::cuda::kMostFewRows) {
    const FewRowsPlan chosen = kernels::cuda::few_rows_plan(w.n, w.k, stream.device);
    std::printf("\n    own %d,%d,%d ", chosen.weight_tiles, chosen.slices, chosen.warps);
    print("", own(chosen));
    std::printf("all:");
    for (const int tiles : {1, 2, 4}) {
      for (const int slices : {1, 2, 4, 8}) {
        for (const int warps : {4, 8}) {
          const double us = own({tiles, slices, warps});
          std::printf(" %d,%d,%d %.2f", tiles, slices, warps,
                      static_cast<double>(bytes) / us * 1e-6);
        }
      }
    }
  }
  std::printf("\n");
}

}  // namespace
}  // namespace megatron

int main() {
  using namespace megatron;
  ::setenv("MEGATRON_MATMUL_CACHE", "off", 1);
  const Device gpu{DeviceType::kCuda, 0};
  use_device(gpu);
  const OwnedStream queue(gpu);
  for (const int64_t m : {1, 8, 16, 32, 64}) {
    for (const auto& weight : kWeights) measure(weight, m, queue.get());
  }
}
