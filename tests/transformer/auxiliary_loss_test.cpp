#include <cmath>

#include "tests/transformer/layer_with_loss.h"
#include "tests/transformer/tiny_stack.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8;
constexpr StackSlice kBothLayers = {.num_layers = 2};

struct Recomputation {
  const char* name;
  RecomputeMethod method;
  int64_t num_layers;
};
void PrintTo(const Recomputation& one, std::ostream* out) { *out << one.name; }

TransformerConfig recomputed_config(const Recomputation& recomputation) {
  TransformerConfig c = tiny_config();
  c.hidden_size = kHidden;
  c.num_attention_heads = c.num_query_groups = 2;
  c.kv_channels = 4;
  c.ffn_hidden_size = kHidden;
  c.hidden_dropout = 0.2;
  if (recomputation.method == RecomputeMethod::kNone) return c;
  c.recompute_granularity = RecomputeGranularity::kFull;
  c.recompute_method = recomputation.method;
  c.recompute_num_layers = recomputation.num_layers;
  return c;
}

// One forward pass, and the sum that training minimises: sum(w y), and every auxiliary loss.
struct LossPass {
  RandomState random{7};  // read again by recomputation
  Variable y;
  std::vector<Variable> losses;

  LossPass(const TransformerBlock& block, const Variable& x, bool wants_losses = true) {
    ForwardContext context;
    context.random = &random;
    if (wants_losses) context.auxiliary_losses = &losses;
    y = block.forward(x, context);
  }
  double sum(const Tensor& w) const {
    double sum = 0;
    for (int64_t i = 0; i < w.numel(); ++i) sum += element(y.data(), i) * element(w, i);
    for (const Variable& loss : losses) sum += element(loss.data(), 0);
    return sum;
  }
  void run_backward(const Tensor& w) const {
    std::vector<Variable> roots = {y};
    std::vector<Tensor> seeds = {w};
    for (const Variable& loss : losses) {
      roots.push_back(loss);
      seeds.push_back(full({}, 1, DType::kFloat32, Stream{}));
    }
    backward(roots, seeds);
  }
};

class AuxiliaryLossTest : public testing::TestWithParam<Recomputation> {};

// A step along the gradient of each parameter, and of x, changes the sum as the gradient says.
TEST_P(AuxiliaryLossTest, HasTheRightGradients) {
  const TransformerBlock block(recomputed_config(GetParam()), kDecoder, kBothLayers, {}, Stream{},
                               make_layer_with_loss);
  initialize(block, 3);
  Variable x = Variable::leaf(random_hidden(5, kHidden, 1));
  const Tensor w = random_hidden(5, kHidden, 2);
  const LossPass pass(block, x);
  ASSERT_EQ(pass.losses.size(), 2U) << "one of each layer";
  EXPECT_NE(element(pass.losses[0].data(), 0), element(pass.losses[1].data(), 0));
  pass.run_backward(w);

  std::vector<Parameter> leaves = named_parameters(block);
  leaves.push_back({"x", x.shape(), x.data().dtype(), {}, x});
  for (Parameter& leaf : leaves) {
    ASSERT_TRUE(leaf.variable.grad().defined()) << leaf.name;
    const Tensor direction = random_normal(leaf.variable.shape(), {.seed = 9});
    double want = 0;
    for (int64_t i = 0; i < direction.numel(); ++i) {
      want += element(leaf.variable.grad(), i) * element(direction, i);
    }
    constexpr float kStep = 0x1p-8f;
    const auto sum_at = [&](float step) {
      add_inplace(leaf.variable.mutable_data(), direction, step);
      const NoGrad no_grad;
      return LossPass(block, x).sum(w);
    };
    const double above = sum_at(kStep);
    const double below = sum_at(-2 * kStep);
    add_inplace(leaf.variable.mutable_data(), direction, kStep);
    EXPECT_NEAR((above - below) / (2 * kStep), want, 1e-2 * std::abs(want) + 5e-3) << leaf.name;
  }
}

TEST_P(AuxiliaryLossTest, RecomputationChangesNoBit) {
  const TransformerBlock plain(recomputed_config({}), kDecoder, kBothLayers, {}, Stream{},
                               make_layer_with_loss);
  const TransformerBlock block(recomputed_config(GetParam()), kDecoder, kBothLayers, {}, Stream{},
                               make_layer_with_loss);
  const Tensor w = random_hidden(5, kHidden, 2);
  for (const TransformerBlock* const one : {&plain, &block}) initialize(*one, 3);
  const Variable x(random_hidden(5, kHidden, 1));
  const LossPass want(plain, x);
  const LossPass got(block, x);
  want.run_backward(w);
  got.run_backward(w);
  expect_identical(got.y.data(), want.y.data());
  for (size_t i = 0; i < 2; ++i) expect_identical(got.losses[i].data(), want.losses[i].data());
  const std::vector<Parameter> wanted = named_parameters(plain);
  const std::vector<Parameter> parameters = named_parameters(block);
  for (size_t i = 0; i < parameters.size(); ++i) {
    expect_identical(parameters[i].variable.grad(), wanted[i].variable.grad(), parameters[i].name);
  }
}

TEST_P(AuxiliaryLossTest, IsNotComputedWhereNobodyWantsIt) {
  const TransformerBlock block(recomputed_config(GetParam()), kDecoder, kBothLayers, {}, Stream{},
                               make_layer_with_loss);
  initialize(block, 3);
  const Variable x(random_hidden(5, kHidden, 1));
  const LossPass pass(block, x, false);
  EXPECT_TRUE(pass.losses.empty());
  expect_identical(pass.y.data(), LossPass(block, x).y.data());
}

INSTANTIATE_TEST_SUITE_P(Recomputations, AuxiliaryLossTest,
                         testing::Values(Recomputation{"none", RecomputeMethod::kNone, 0},
                                         Recomputation{"each", RecomputeMethod::kUniform, 1},
                                         Recomputation{"both", RecomputeMethod::kUniform, 2},
                                         Recomputation{"first", RecomputeMethod::kBlock, 1}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace megatron
