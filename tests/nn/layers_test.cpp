#include "megatron/nn/layers.h"

#include <gtest/gtest.h>

#include "tests/support/tensors.h"

namespace megatron {
namespace {

TEST(NormTest, BeginsAsThePlainNorm) {
  const Variable x(random_normal({3, 2, 8}, {.seed = 1}));
  const Variable one(full({8}, 1, DType::kFloat32, {}));
  const Variable zero(full({8}, 0, DType::kFloat32, {}));
  for (const bool one_plus_weight : {false, true}) {
    const NormOptions options{.one_plus_weight = one_plus_weight};
    const Norm layer_norm_module(8, Norm::Kind::kLayerNorm, options, {});
    const Norm rms_norm_module(8, Norm::Kind::kRmsNorm, options, {});
    initialize(layer_norm_module, 1);
    initialize(rms_norm_module, 1);
    EXPECT_EQ(num_parameters(layer_norm_module), 16);
    EXPECT_EQ(num_parameters(rms_norm_module), 8);
    expect_identical(layer_norm_module.forward(x).data(), layer_norm(x, one, zero, {}).data());
    expect_identical(rms_norm_module.forward(x).data(), rms_norm(x, one, {}).data());
  }
}

TEST(EmbeddingTest, HasATable) {
  const Embedding embedding(7, 4, Init::normal(0.02), {});
  EXPECT_EQ(embedding.weight().shape(), (Shape{7, 4}));
}

}  // namespace
}  // namespace megatron
