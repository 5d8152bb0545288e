#include "megatron/kernels/cuda/matmul_search.h"

#include <array>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "megatron/device/allocator.h"
#include "megatron/device/cuda.h"
#include "megatron/kernels/cuda/matmul_plans.h"
#include "tests/kernels/cuda/twin.h"
#include "tests/support/temporary_directory.h"

namespace megatron::kernels::cuda {
namespace {

TEST(MatmulSearchTest, AlgorithmsAsText) {
  const cublasLtMatmulAlgo_t algorithm{{1, 0, ~uint64_t{0}, 0xABCDEF, 5, 6, 7, 8}};
  const std::string text = encoded(algorithm);
  ASSERT_TRUE(decoded(text).has_value());
  EXPECT_EQ(encoded(*decoded(text)), text);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(decoded(text)->data[i], algorithm.data[i]);
  EXPECT_FALSE(decoded(text.substr(1)).has_value());
  EXPECT_FALSE(decoded("").has_value());
  EXPECT_FALSE(decoded('x' + text.substr(1)).has_value());
}

// A gradient of a weight: a long sum, which some algorithms split, added to what is there.
class MatmulSearchCudaTest : public CudaTest {
 protected:
  static constexpr int64_t kM = 256, kN = 512, kK = 8192;

  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    a_ = random_normal({kK, kM}, {.seed = 1, .dtype = DType::kBFloat16}).to(stream());
    b_ = random_normal({kK, kN}, {.seed = 2, .dtype = DType::kBFloat16}).to(stream());
    c_ = random_normal({kM, kN}, {.seed = 3}).to(stream());
    d_ = Tensor({kM, kN}, DType::kFloat32, stream());
    key_ = {.m = kM,
            .n = kN,
            .k = kK,
            .in = DType::kBFloat16,
            .transpose_a = Transpose::kYes,
            .has_beta = true};
  }

  Stream searching() const {
    Stream s = stream();
    s.options.searches_algorithms = true;
    return s;
  }
  MatmulOperands operands() {
    return {.d = d_.view().data,
            .a = std::as_const(a_).view().data,
            .b = std::as_const(b_).view().data,
            .c = std::as_const(c_).view().data,
            .beta = 1};
  }
  Tensor product(MatmulPlans& plans, const MatmulPlan& plan) {
    check_cublas(launch(plans.handle(), plan, operands(), plans.workspace(stream()), stream()),
                 "launch");
    return d_.to(Stream{});
  }

  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "matmul.txt";
  Tensor a_, b_, c_, d_;
  MatmulKey key_;
};

// The search takes no memory of the size of the result, which it restores.
TEST_F(MatmulSearchCudaTest, ALargeResultStaysWhereItIs) {
  constexpr int64_t kRows = 4'096, kColumns = 4'352, kTerms = 128;
  const Tensor a =
      random_normal({kTerms, kRows}, {.seed = 1, .dtype = DType::kBFloat16}).to(stream());
  const Tensor b =
      random_normal({kTerms, kColumns}, {.seed = 2, .dtype = DType::kBFloat16}).to(stream());
  const Tensor before = random_normal({kRows, kColumns}, {.seed = 3});
  Tensor d = before.to(stream());
  const MatmulKey key = {.m = kRows,
                         .n = kColumns,
                         .k = kTerms,
                         .in = DType::kBFloat16,
                         .transpose_a = Transpose::kYes,
                         .has_beta = true};
  ChoiceFile file(path_);
  MatmulPlans plans(gpu(), &file);
  plans.workspace(stream());
  CachingAllocator& memory = allocator_of(gpu());
  memory.reset_peaks();
  const int64_t in_use = memory.stats().allocated_bytes;
  plans.plan(
      key,
      {.d = d.view().data, .a = a.view().data, .b = b.view().data, .c = d.view().data, .beta = 1},
      searching());
  EXPECT_EQ(memory.stats().peak_allocated_bytes, in_use);
  expect_identical(d.to(Stream{}), before);
}

TEST_F(MatmulSearchCudaTest, TheChoiceIsKeptForLaterRuns) {
  const Tensor before = c_.to(Stream{});
  std::string choice;
  Tensor result;
  {
    ChoiceFile file(path_);
    MatmulPlans plans(gpu(), &file);
    const MatmulPlan plan = plans.plan(key_, operands(), searching());
    expect_identical(c_.to(Stream{}), before, "what the search must not add to");
    choice = encoded(plan.algorithm);
    result = product(plans, plan);
  }
  ChoiceFile file(path_);
  MatmulPlans plans(gpu(), &file);  // of a run that may not search, such as a deterministic one
  const MatmulPlan plan = plans.plan(key_, operands(), stream());
  EXPECT_EQ(encoded(plan.algorithm), choice);
  expect_identical(product(plans, plan), result, "the product by the stored algorithm");

  Tensor want = before;
  kernels::matmul(want.view(), a_.to(Stream{}).view(), Transpose::kYes, b_.to(Stream{}).view(),
                  Transpose::kNo, ConstView{}, 1, Stream{});
  expect_close(result, want, Tolerance{.relative = 1e-4, .absolute = 1e-2}, "the product");
}

TEST_F(MatmulSearchCudaTest, OtherStreamsAndSmallProductsAreNotSearched) {
  ChoiceFile file(path_);
  MatmulPlans plans(gpu(), &file);
  const MatmulPlan first = plans.plan(key_, operands(), stream());
  EXPECT_EQ(encoded(first.algorithm),
            encoded(offered_algorithms(plans.handle(), first, key_, 16).front()));
  MatmulKey small = key_;
  small.k = 64;
  plans.plan(small, operands(), searching());
  EXPECT_FALSE(std::filesystem::exists(path_));
  plans.plan(key_, operands(), searching());  // now it is
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(MatmulSearchCudaTest, EveryOfferGivesTheSameBitsEveryTime) {
  MatmulPlans plans(gpu(), nullptr);
  MatmulPlan plan = described(key_);
  const auto offers = offered_algorithms(plans.handle(), plan, key_, 16);
  EXPECT_GT(offers.size(), 1u);
  for (const cublasLtMatmulAlgo_t& offer : offers) {
    plan.algorithm = offer;
    EXPECT_TRUE(is_usable(plans.handle(), plan, offer));
    const Tensor first = product(plans, plan);
    for (int i = 0; i < 3; ++i) expect_identical(product(plans, plan), first, encoded(offer));
  }
}

TEST_F(MatmulSearchCudaTest, SmallerBlocksAreGivenBackUnlessAGraphHasThem) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const CachingAllocator& memory = allocator_of(gpu());
  const int64_t before = memory.stats().allocated_bytes;
  const auto more_mib = [&] { return (memory.stats().allocated_bytes - before) / kMiB; };
  MatmulPlans plans(gpu(), nullptr);
  plans.results(stream(), 2 * kMiB);
  EXPECT_EQ(more_mib(), 2);
  plans.results(stream(), 8 * kMiB);
  EXPECT_EQ(more_mib(), 8);
  megatron::cuda::begin_capture(stream().native);
  plans.results(stream(), 4 * kMiB);
  megatron::cuda::abandon_capture(stream().native);
  EXPECT_EQ(more_mib(), 8);
  plans.results(stream(), 10 * kMiB);  // twice the block that stays
  EXPECT_EQ(more_mib(), 8 + 16);
  plans.results(stream(), 20 * kMiB);
  EXPECT_EQ(more_mib(), 8 + 20);
}

}  // namespace
}  // namespace megatron::kernels::cuda
