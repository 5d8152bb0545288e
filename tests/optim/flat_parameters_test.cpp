#include "megatron/optim/flat_parameters.h"

#include <gtest/gtest.h>

#include "megatron/device/allocator.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

OptimizedParameter parameter(const char* name, const Shape& shape, uint64_t seed,
                             DType dtype = DType::kFloat32) {
  OptimizedParameter p;
  p.name = name;
  p.variable = Variable::leaf(random_normal(shape, {.seed = seed, .dtype = dtype}));
  p.has_weight_decay = shape.rank() > 1;
  return p;
}

TEST(FlatParametersTest, ParametersKeepTheirValuesAndShareTheBuffer) {
  const std::vector<OptimizedParameter> given = {parameter("a.weight", {3, 5}, 1),
                                                 parameter("a.bias", {3}, 2)};
  const Tensor weight = copied(given[0].variable.data());
  FlatParameters flat(given, {});
  ASSERT_EQ(flat.buffers().size(), 1u);
  FlatBuffer& buffer = flat.buffers()[0];
  expect_identical(given[0].variable.data(), weight);
  EXPECT_EQ(flat.num_elements(), 18);
  EXPECT_EQ(buffer.params.numel(), 64 + 15);

  buffer.params.span<float>()[0] = 42;  // the bias comes first
  EXPECT_EQ(element(given[1].variable.data(), 0), 42);
}

TEST(FlatParametersTest, BackwardAddsIntoTheGradientBuffer) {
  const std::vector<OptimizedParameter> given = {parameter("a.weight", {2, 2}, 1)};
  FlatParameters flat(given, {});
  const Variable& w = given[0].variable;
  const Variable y = record("double", copied(w.data()), {w},
                            [](const Tensor& dy, const Wants&) -> Grads { return {copied(dy)}; });
  backward(y, full({2, 2}, 3.0f, DType::kFloat32, Stream{}));
  EXPECT_EQ(element(flat.buffers()[0].grads, 3), 3);
  EXPECT_EQ(element(w.grad(), 3), 3);
  flat.zero_grads();
  EXPECT_EQ(element(w.grad(), 3), 0);
}

TEST(FlatParametersTest, OneBufferForEachDtype) {
  FlatParameters flat({parameter("a", {4}, 1, DType::kBFloat16), parameter("b", {4}, 2),
                       parameter("c", {4}, 3, DType::kBFloat16)},
                      {});
  ASSERT_EQ(flat.buffers().size(), 2u);
  EXPECT_EQ(flat.buffers()[0].parameters, (std::vector<size_t>{0, 2}));
  EXPECT_EQ(flat.buffers()[0].grads.dtype(), DType::kBFloat16);
  EXPECT_EQ(flat.buffers()[1].grads.dtype(), DType::kFloat32);

  const FlatParameters in_fp32({parameter("a", {4}, 1, DType::kBFloat16)},
                               {.accumulate_allreduce_grads_in_fp32 = true});
  EXPECT_EQ(in_fp32.buffers()[0].grads.dtype(), DType::kFloat32);
}

TEST(FlatParametersTest, ConstantsStayOut) {
  OptimizedParameter frozen;
  frozen.name = "frozen";
  frozen.variable = Variable(random_normal({4}, {.seed = 1}));
  const FlatParameters flat({frozen, parameter("b", {4}, 2)}, {});
  EXPECT_EQ(flat.parameters().size(), 1u);
  EXPECT_EQ(flat.num_elements(), 4);
}

TEST(FlatParametersTest, MemoryIsCountedByCategory) {
  const auto in_use = [](MemoryCategory category) {
    return allocator_of(Device{}).stats().by_category[static_cast<size_t>(category)];
  };
  const int64_t params_before = in_use(MemoryCategory::kParameters);
  const int64_t grads_before = in_use(MemoryCategory::kGradients);
  const FlatParameters flat({parameter("a", {1024}, 1, DType::kBFloat16)},
                            {.accumulate_allreduce_grads_in_fp32 = true});
  EXPECT_EQ(in_use(MemoryCategory::kParameters) - params_before, 2048);
  EXPECT_EQ(in_use(MemoryCategory::kGradients) - grads_before, 4096);
}

class ThreeParameters final : public Module {
 public:
  ThreeParameters() {
    add_parameter("weight", {8, 4}, {.role = ParameterRole::kMatrix}, {});
    add_parameter("bias", {8}, {.role = ParameterRole::kBias}, {});
    add_parameter("table", {8, 4}, {.role = ParameterRole::kEmbedding, .is_tied = true},
                  {.stream = Stream{}, .is_embedding_or_output = true});
    add_buffer("history", {8}, DType::kFloat32, Init::zeros(), Stream{});
  }
};

TEST(FlatParametersTest, ModulesGiveTheirParameters) {
  const ThreeParameters module;
  const std::vector<OptimizedParameter> parameters = optimized_parameters(module);
  ASSERT_EQ(parameters.size(), 3u);  // not the buffer
  EXPECT_EQ(parameters[0].name, "weight");
  EXPECT_TRUE(parameters[0].has_weight_decay);
  EXPECT_FALSE(parameters[0].has_decoupled_lr);
  EXPECT_FALSE(parameters[0].is_tied);
  EXPECT_EQ(parameters[1].name, "bias");
  EXPECT_FALSE(parameters[1].has_weight_decay);
  EXPECT_EQ(parameters[2].name, "table");
  EXPECT_TRUE(parameters[2].has_weight_decay);
  EXPECT_TRUE(parameters[2].has_decoupled_lr);
  EXPECT_TRUE(parameters[2].is_tied);
}

TEST(FlatParametersTest, BiasesAndNormsAreNotDecayed) {
  EXPECT_TRUE(is_decayed(ParameterRole::kMatrix));
  EXPECT_TRUE(is_decayed(ParameterRole::kEmbedding));
  EXPECT_TRUE(is_decayed(ParameterRole::kOutputHead));
  EXPECT_FALSE(is_decayed(ParameterRole::kBias));
  EXPECT_FALSE(is_decayed(ParameterRole::kNorm));
}

}  // namespace
}  // namespace megatron
