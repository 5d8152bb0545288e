#include <functional>
#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/ops/bias_activation.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/norm.h"
#include "tests/support/tensors.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace megatron {
namespace {

using Run = std::function<Variable(const std::vector<Variable>&)>;

// The output and the gradients of every input, with so many threads.
std::vector<Tensor> results(const std::vector<Tensor>& inputs, const Run& run, int threads) {
#if defined(_OPENMP)
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
#endif
  std::vector<Variable> leaves;
  for (const Tensor& input : inputs) leaves.push_back(Variable::leaf(copied(input)));
  const Variable y = run(leaves);
  std::vector<Tensor> all = {copied(y.data())};
  backward(y, random_normal(y.shape(), {.seed = 99, .dtype = y.dtype()}));
  for (const Variable& leaf : leaves) all.push_back(leaf.grad());
#if defined(_OPENMP)
  omp_set_num_threads(before);
#else
  (void)threads;
#endif
  return all;
}

void expect_same_bits(const std::vector<Tensor>& inputs, const Run& run) {
  const std::vector<Tensor> want = results(inputs, run, 1);
  for (const int threads : {2, 3}) {
    const std::vector<Tensor> got = results(inputs, run, threads);
    for (size_t i = 0; i < want.size(); ++i) {
      expect_identical(
          got[i], want[i],
          "tensor " + std::to_string(i) + " with " + std::to_string(threads) + " threads");
    }
  }
}

// Large enough for several threads: [s, b, h] = [64, 3, 700].
constexpr int64_t kLength = 64;
constexpr int64_t kDeterminismBatch = 3;
constexpr int64_t kHidden = 700;

Tensor sequence(uint64_t seed, int64_t width = kHidden) {
  return random_normal({kLength, kDeterminismBatch, width}, {.seed = seed});
}
Tensor vector(uint64_t seed, int64_t width = kHidden) {
  return random_normal({width}, {.seed = seed});
}

TEST(DeterminismTest, NormsDoNotDependOnThreads) {
  expect_same_bits({sequence(1), vector(2), vector(3)},
                   [](const auto& in) { return layer_norm(in[0], in[1], in[2], {}); });
  expect_same_bits({sequence(1), vector(2)},
                   [](const auto& in) { return rms_norm(in[0], in[1], {}); });
}

TEST(DeterminismTest, BiasActivationDoesNotDependOnThreads) {
  expect_same_bits({sequence(1, 2 * kHidden), vector(2, 2 * kHidden)}, [](const auto& in) {
    return bias_activation(in[0], in[1], Activation::kSwiglu);
  });
}

TEST(DeterminismTest, DropoutDoesNotDependOnThreads) {
  const DropoutKey key{.key = 1, .first_sample = 2, .probability = 0.1f};
  expect_same_bits({sequence(1), vector(2), sequence(3)},
                   [key](const auto& in) { return bias_dropout_add(in[0], in[1], in[2], key); });
}

TEST(DeterminismTest, EmbeddingDoesNotDependOnThreads) {
  const Tensor ids = random_ids({kDeterminismBatch, kLength}, 50, 4);
  const Tensor positions = default_position_ids(kDeterminismBatch, kLength);
  expect_same_bits(
      {random_normal({50, kHidden}, {.seed = 1}), random_normal({kLength, kHidden}, {.seed = 2})},
      [&](const auto& in) { return embedding(in[0], ids, in[1], positions); });
}

TEST(DeterminismTest, CrossEntropyDoesNotDependOnThreads) {
  const Tensor labels = random_ids({kDeterminismBatch, kLength}, kHidden, 5);
  expect_same_bits({sequence(1)},
                   [&](const auto& in) { return cross_entropy(in[0], labels, 0.1f); });
}

}  // namespace
}  // namespace megatron
