#include "megatron/ops/expert_mlp.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "megatron/core/float8.h"
#include "megatron/kernels/fp8_matrices.h"
#include "megatron/kernels/fp8_rows.h"
#include "tests/ops/op_case.h"

namespace megatron {
namespace {

constexpr int64_t kExpertTokens = 5;
constexpr int64_t kExpertHidden = 6;
constexpr int64_t kExpertInner = 4;

Tensor expert_normal(const Shape& shape, uint64_t seed, float mean = 0) {
  return random_normal(shape, {.seed = seed, .mean = mean, .stddev = 0.5f});
}

// Two choices of each token; the group sizes are odd, and expert 2 has no token.
Tensor expert_choices() {
  return tensor_of(std::vector<int32_t>{0, 1, 3, 0, 0, 3, -1, 0, 0, 1}, {kExpertTokens, 2});
}

struct ExpertCase {
  const char* name;
  Activation activation = Activation::kSwiglu;
  bool has_bias = false;
  bool weighs_input = false;
  int64_t first_expert = 0;  // with the experts from 1 on, some tokens have none
  bool has_adapters = false;
};

OpCase op_case_of(const ExpertCase& c) {
  const int64_t experts = 4 - c.first_expert;
  const int64_t widths = is_gated(c.activation) ? 2 : 1;
  OpCase made;
  made.name = c.name;
  made.inputs = {expert_normal({kExpertTokens, kExpertHidden}, 1),
                 expert_normal({kExpertTokens, 2}, 2, 1),
                 expert_normal({experts, widths * kExpertInner, kExpertHidden}, 3),
                 expert_normal({experts, kExpertHidden, kExpertInner}, 4)};
  if (c.has_bias) {
    made.inputs.push_back(expert_normal({experts, widths * kExpertInner}, 5));
    made.inputs.push_back(expert_normal({experts, kExpertHidden}, 6));
  }
  const size_t adapters = made.inputs.size();
  if (c.has_adapters) {
    made.inputs.push_back(expert_normal({experts, 2, kExpertHidden}, 7));
    made.inputs.push_back(expert_normal({experts, widths * kExpertInner, 2}, 8));
    made.inputs.push_back(expert_normal({experts, 2, kExpertInner}, 9));
    made.inputs.push_back(expert_normal({experts, kExpertHidden, 2}, 10));
  }
  made.op = [c, adapters](const std::vector<Variable>& in) {
    const auto adapter = [&](size_t at) -> ExpertAdapter {
      if (!c.has_adapters) return {};
      return {.a = in[adapters + at], .b = in[adapters + at + 1], .scale = 0.5f};
    };
    return expert_mlp(in[0], expert_choices(), in[1],
                      {.fc1 = in[2],
                       .fc1_bias = c.has_bias ? in[4] : Variable(),
                       .fc2 = in[3],
                       .fc2_bias = c.has_bias ? in[5] : Variable(),
                       .fc1_adapter = adapter(0),
                       .fc2_adapter = adapter(2)},
                      {.activation = c.activation,
                       .num_experts = 4,
                       .first_expert = c.first_expert,
                       .weighs_input = c.weighs_input});
  };
  made.fp32_inputs = {1};
  made.terms = 4 * kExpertTokens * kExpertHidden;  // four tensors inside are rounded, too
  return made;
}

TEST(ExpertMlpTest, HasTheRightGradients) {
  for (const ExpertCase& c :
       {ExpertCase{"swiglu"}, ExpertCase{"gelu_bias", Activation::kGeluTanh, true},
        ExpertCase{"swiglu_bias", Activation::kSwiglu, true},
        ExpertCase{"weighed_input", Activation::kSwiglu, false, true},
        ExpertCase{"weighed_input_bias", Activation::kGeluErf, true, true},
        ExpertCase{"other_experts", Activation::kSwiglu, true, false, 1},
        ExpertCase{"one_expert", Activation::kSwiglu, false, false, 3},
        ExpertCase{"adapters", Activation::kSwiglu, false, false, 0, true},
        ExpertCase{"adapters_bias", Activation::kGeluTanh, true, true, 1, true}}) {
    check(op_case_of(c));
  }
}

// The formula, token by token.
TEST(ExpertMlpTest, AddsTheExpertsOfEachToken) {
  const Tensor x = expert_normal({kExpertTokens, kExpertHidden}, 1);
  const Tensor weights = expert_normal({kExpertTokens, 2}, 2);
  const Tensor fc1 = expert_normal({4, kExpertInner, kExpertHidden}, 3);
  const Tensor fc2 = expert_normal({4, kExpertHidden, kExpertInner}, 4);
  const Tensor ids = expert_choices();
  Tensor want = zeros(x.shape(), DType::kFloat32, Stream{});
  for (int64_t slot = 0; slot < ids.numel(); ++slot) {
    const int64_t e = ids.span<int32_t>()[static_cast<size_t>(slot)];
    const int64_t t = slot / 2;
    if (e < 0) continue;
    for (int64_t i = 0; i < kExpertInner; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < kExpertHidden; ++k) {
        sum += element(fc1, (e * kExpertInner + i) * kExpertHidden + k) *
               element(x, t * kExpertHidden + k);
      }
      const double inside = std::max(sum, 0.0) * element(weights, slot);
      for (int64_t k = 0; k < kExpertHidden; ++k) {
        want.span<float>()[static_cast<size_t>(t * kExpertHidden + k)] +=
            static_cast<float>(inside * element(fc2, (e * kExpertHidden + k) * kExpertInner + i));
      }
    }
  }
  const Variable y = expert_mlp(Variable(x), ids, Variable(weights),
                                {.fc1 = Variable(fc1),
                                 .fc1_bias = {},
                                 .fc2 = Variable(fc2),
                                 .fc2_bias = {},
                                 .fc1_adapter = {},
                                 .fc2_adapter = {}},
                                {.activation = Activation::kRelu, .num_experts = 4});
  expect_close(y.data(), want, Tolerance{.relative = 1e-5, .absolute = 1e-6});
}

// x [r, k] as rows in FP8 hold it.
Tensor rounded_rows(const Tensor& x, DType type) {
  Tensor numbers(x.shape(), type, Stream{});
  Tensor scales({x.size(0)}, DType::kFloat32, Stream{});
  kernels::fp8_quantize_rows(numbers.view(), scales.view(), x.view(), Stream{});
  Tensor y = copied(x);
  dispatch_float8(type, "test", [&]<class T>() {
    for (int64_t i = 0; i < x.numel(); ++i) {
      y.view().as<float>()[i] =
          static_cast<float>(numbers.view().as<T>()[i]) * scales.view().as<float>()[i / x.size(1)];
    }
  });
  return y;
}

Fp8Stack stack_of(const Tensor& w) {
  Fp8Stack stack{Tensor(w.shape(), DType::kFloat8E4M3, Stream{}),
                 Tensor({w.size(0), w.size(2), w.size(1)}, DType::kFloat8E4M3, Stream{}),
                 Tensor({w.size(0)}, DType::kFloat32, Stream{})};
  kernels::fp8_quantize_matrices(stack.rows.view(), stack.columns.view(), stack.scales.view(),
                                 w.view(), Stream{});
  return stack;
}

// w as the stack holds it.
Tensor rounded_matrices(const Fp8Stack& stack) {
  Tensor w(stack.rows.shape(), DType::kFloat32, Stream{});
  const int64_t of_matrix = w.numel() / w.size(0);
  for (int64_t i = 0; i < w.numel(); ++i) {
    w.view().as<float>()[i] = static_cast<float>(stack.rows.view().as<Float8E4M3>()[i]) *
                              stack.scales.view().as<float>()[i / of_matrix];
  }
  return w;
}

// The products of rows and their gradients are those of rounded factors, those of the matrices'
// gradients are not; token by token, with ReLU.
TEST(ExpertMlpTest, Fp8RoundsTheFactorsOfProductsWithMatrices) {
  const Variable x = Variable::leaf(expert_normal({kExpertTokens, kExpertHidden}, 1));
  const Variable weights = Variable::leaf(expert_normal({kExpertTokens, 2}, 2));
  const Variable fc1 = Variable::leaf(expert_normal({4, kExpertInner, kExpertHidden}, 3));
  const Variable fc2 = Variable::leaf(expert_normal({4, kExpertHidden, kExpertInner}, 4));
  const Tensor ids = expert_choices();
  const Fp8Stack fc1_fp8 = stack_of(fc1.data());
  const Fp8Stack fc2_fp8 = stack_of(fc2.data());
  const Variable y = expert_mlp(x, ids, weights,
                                {.fc1 = fc1,
                                 .fc1_bias = {},
                                 .fc2 = fc2,
                                 .fc2_bias = {},
                                 .fc1_adapter = {},
                                 .fc2_adapter = {},
                                 .fc1_fp8 = fc1_fp8,
                                 .fc2_fp8 = fc2_fp8},
                                {.activation = Activation::kRelu, .num_experts = 4});
  const Tensor dy = expert_normal({kExpertTokens, kExpertHidden}, 5);
  backward(y, dy);

  const Tensor x8 = rounded_rows(x.data(), DType::kFloat8E4M3);
  const Tensor dy8 = rounded_rows(dy, DType::kFloat8E5M2);
  const Tensor w1 = rounded_matrices(fc1_fp8);
  const Tensor w2 = rounded_matrices(fc2_fp8);
  const auto zeros_like = [](const Tensor& one) {
    return zeros(one.shape(), DType::kFloat32, Stream{});
  };
  Tensor want_y = zeros_like(dy), want_dx = zeros_like(dy), want_dweights = zeros_like(ids);
  Tensor want_dfc1 = zeros_like(w1), want_dfc2 = zeros_like(w2);
  const auto add_to = [](Tensor& one, int64_t i, double value) {
    one.view().as<float>()[i] += static_cast<float>(value);
  };
  for (int64_t slot = 0; slot < ids.numel(); ++slot) {
    const int64_t e = ids.span<int32_t>()[static_cast<size_t>(slot)];
    const int64_t t = slot / 2;
    if (e < 0) continue;
    Tensor inside({1, kExpertInner}, DType::kFloat32, Stream{});
    Tensor dwide = copied(inside);
    for (int64_t i = 0; i < kExpertInner; ++i) {
      double wide = 0;
      double dinside = 0;
      for (int64_t h = 0; h < kExpertHidden; ++h) {
        wide += element(w1, (e * kExpertInner + i) * kExpertHidden + h) *
                element(x8, t * kExpertHidden + h);
        dinside += element(w2, (e * kExpertHidden + h) * kExpertInner + i) *
                   element(dy8, t * kExpertHidden + h);
      }
      const double weight = element(weights.data(), slot);
      inside.view().as<float>()[i] = static_cast<float>(std::max(wide, 0.0) * weight);
      dwide.view().as<float>()[i] = static_cast<float>(wide > 0 ? dinside * weight : 0.0);
      add_to(want_dweights, slot, dinside * std::max(wide, 0.0));
    }
    const Tensor inside8 = rounded_rows(inside, DType::kFloat8E4M3);
    const Tensor dwide8 = rounded_rows(dwide, DType::kFloat8E5M2);
    for (int64_t i = 0; i < kExpertInner; ++i) {
      for (int64_t h = 0; h < kExpertHidden; ++h) {
        const int64_t token = t * kExpertHidden + h;
        const int64_t of_fc1 = (e * kExpertInner + i) * kExpertHidden + h;
        const int64_t of_fc2 = (e * kExpertHidden + h) * kExpertInner + i;
        add_to(want_y, token, element(inside8, i) * element(w2, of_fc2));
        add_to(want_dx, token, element(dwide8, i) * element(w1, of_fc1));
        add_to(want_dfc1, of_fc1, element(dwide, i) * element(x.data(), token));
        add_to(want_dfc2, of_fc2, element(inside, i) * element(dy, token));
      }
    }
  }
  const Tolerance tolerance{.relative = 1e-5, .absolute = 1e-5};
  expect_close(y.data(), want_y, tolerance, "y");
  expect_close(x.grad(), want_dx, tolerance, "dx");
  expect_close(weights.grad(), want_dweights, tolerance, "dweights");
  expect_close(fc1.grad(), want_dfc1, tolerance, "dfc1");
  expect_close(fc2.grad(), want_dfc2, tolerance, "dfc2");
}

// Low-rank adapters of experts give what their products added to the matrices give, in the output
// and in the gradients of the input and the weights.
TEST(ExpertMlpTest, AdaptersEqualTheirProductsFoldedIntoTheMatrices) {
  const OpCase c = op_case_of({"adapters", Activation::kSwiglu, false, false, 0, true});
  const auto leaves = [](const std::vector<Tensor>& inputs) {
    std::vector<Variable> all;
    for (const Tensor& one : inputs) all.push_back(Variable::leaf(copied(one)));
    return all;
  };
  const std::vector<Variable> adapted = leaves(c.inputs);
  std::vector<Tensor> folded;
  for (const Tensor& one : c.inputs) folded.push_back(copied(one));
  for (const size_t matrix : {2U, 3U}) {
    Tensor& w = folded[matrix];
    const Tensor& a = c.inputs[2 * matrix];  // [E, 2, in]
    Tensor& b = folded[2 * matrix + 1];      // [E, out, 2]
    for (int64_t i = 0; i < w.numel(); ++i) {
      const int64_t row = i / w.size(2);
      const int64_t expert = row / w.size(1);
      for (int64_t r = 0; r < 2; ++r) {
        w.span<float>()[static_cast<size_t>(i)] +=
            static_cast<float>(0.5 * element(b, row * 2 + r) *
                               element(a, (expert * 2 + r) * w.size(2) + i % w.size(2)));
      }
    }
    scale_inplace(b, 0);
  }
  const std::vector<Variable> merged = leaves(folded);
  const Variable y = c.op(adapted);
  const Variable want = c.op(merged);
  expect_close(y.data(), want.data(), Tolerance{.relative = 1e-5, .absolute = 1e-5});
  const Tensor dy = expert_normal(y.shape(), 12);
  backward(y, dy);
  backward(want, dy);
  for (const size_t i : {0U, 1U}) {
    expect_close(adapted[i].grad(), merged[i].grad(),
                 Tolerance{.relative = 1e-5, .absolute = 1e-4});
  }
}

// Nothing is read that was not written: a second pass, in memory that held other numbers, too.
TEST(ExpertMlpTest, AnExpertWithoutTokensHasZeroGradients) {
  for (int pass = 0; pass < 2; ++pass) {
    { full({1 << 16}, std::numeric_limits<float>::quiet_NaN(), DType::kFloat32, Stream{}); }
    std::vector<Variable> in;
    const OpCase c = op_case_of({"bias", Activation::kSwiglu, true});
    for (const Tensor& input : c.inputs) in.push_back(Variable::leaf(copied(input)));
    const Variable y = c.op(in);
    backward(y, expert_normal(y.shape(), 7));
    for (size_t i = 2; i < in.size(); ++i) {
      const Tensor& grad = in[i].grad();
      EXPECT_EQ(largest(copied(grad.slice(2, 1))), 0) << i;
      EXPECT_GT(largest(copied(grad.slice(1, 1))), 0) << i;
    }
  }
}

TEST(ExpertMlpTest, NoTokensAreFine) {
  const Variable x = Variable::leaf(Tensor({0, kExpertHidden}, DType::kFloat32, Stream{}));
  const Variable y =
      expert_mlp(x, Tensor({0, 2}, DType::kInt32, Stream{}), Variable(expert_normal({0, 2}, 2)),
                 {.fc1 = Variable(expert_normal({4, 2 * kExpertInner, kExpertHidden}, 3)),
                  .fc1_bias = {},
                  .fc2 = Variable(expert_normal({4, kExpertHidden, kExpertInner}, 4)),
                  .fc2_bias = {},
                  .fc1_adapter = {},
                  .fc2_adapter = {}},
                 {.activation = Activation::kSwiglu, .num_experts = 4});
  EXPECT_EQ(y.shape(), (Shape{0, kExpertHidden}));
  backward(y, y.data());
}

TEST(WeighedRowsTest, HasTheRightGradients) {
  check({.name = "weighed_rows",
         .inputs = {expert_normal({kExpertTokens, kExpertHidden}, 1),
                    expert_normal({kExpertTokens, 1}, 2)},
         .op = [](const auto& in) { return weighed_rows(in[0], in[1]); },
         .terms = kExpertHidden,
         .fp32_inputs = {1}});
}

}  // namespace
}  // namespace megatron
