#include "megatron/optim/muon.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/optim/optimizer.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

// A matrix in double precision, and the reference of Muon.
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<double> elements;

  Matrix(int64_t r, int64_t c) : rows(r), cols(c), elements(static_cast<size_t>(r * c)) {}
  explicit Matrix(const Tensor& x) : Matrix(x.size(0), x.size(1)) {
    for (int64_t i = 0; i < x.numel(); ++i) elements[static_cast<size_t>(i)] = element(x, i);
  }
  double& at(int64_t i, int64_t j) { return elements[static_cast<size_t>(i * cols + j)]; }
  double at(int64_t i, int64_t j) const { return elements[static_cast<size_t>(i * cols + j)]; }
};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.cols);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.cols; ++k) {
      for (int64_t j = 0; j < b.cols; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t(a.cols, a.rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.cols; ++j) t.at(j, i) = a.at(i, j);
  }
  return t;
}

// The definition: always x x^T, whatever the shape.
Matrix orthogonal_reference(Matrix x, int64_t steps) {
  constexpr double kNumbers[5][3] = {{4.0848, -6.8946, 2.9270},
                                     {3.9505, -6.3029, 2.6377},
                                     {3.7418, -5.5913, 2.3037},
                                     {2.8769, -3.1427, 1.2046},
                                     {2.8366, -3.0525, 1.2012}};
  double squares = 0;
  for (const double e : x.elements) squares += e * e;
  for (double& e : x.elements) e /= std::max(std::sqrt(squares), 1e-7);
  for (int64_t step = 0; step < steps; ++step) {
    const auto& [a, b, c] = kNumbers[step % 5];
    const Matrix gram = product(x, transposed(x));
    const Matrix third = product(gram, x);
    const Matrix fifth = product(gram, third);
    for (size_t i = 0; i < x.elements.size(); ++i) {
      x.elements[i] = a * x.elements[i] + b * third.elements[i] + c * fifth.elements[i];
    }
  }
  return x;
}

Tensor normal(const Shape& shape, uint64_t seed) { return random_normal(shape, {.seed = seed}); }

Tensor of_norm_one(const Tensor& x) {
  double squares = 0;
  for (const float e : x.span<float>()) squares += static_cast<double>(e) * e;
  Tensor y = copied(x);
  scale_inplace(y, static_cast<float>(1.0 / std::sqrt(squares)));
  return y;
}

TEST(NewtonSchulzTest, IsTheIterationOfTheDefinitionForEveryShape) {
  for (const Shape& shape :
       {Shape{1, 1}, Shape{1, 7}, Shape{9, 1}, Shape{6, 6}, Shape{5, 17}, Shape{33, 8}}) {
    for (const int64_t steps : {1, 5, 7}) {
      const Tensor x = normal(shape, 3);
      const Tensor got = newton_schulz(of_norm_one(x), steps);
      const Matrix want = orthogonal_reference(Matrix(x), steps);
      for (int64_t i = 0; i < got.numel(); ++i) {
        ASSERT_NEAR(element(got, i), want.elements[static_cast<size_t>(i)], 1e-4)
            << shape.str() << " " << steps;
      }
    }
  }
}

// Five steps bring singular values near 1: x^T x is near the identity. bf16 comes as near.
TEST(NewtonSchulzTest, RowsOrColumnsBecomeOrthogonal) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Shape& shape : {Shape{12, 48}, Shape{48, 12}}) {
      const Tensor x = newton_schulz(cast(of_norm_one(normal(shape, 5)), dtype), 5);
      const Matrix m(x);
      const Matrix gram = m.rows < m.cols ? product(m, transposed(m)) : product(transposed(m), m);
      for (int64_t i = 0; i < gram.rows; ++i) {
        for (int64_t j = 0; j < gram.cols; ++j) {
          EXPECT_NEAR(gram.at(i, j), i == j ? 1 : 0, 0.3) << name_of(dtype) << shape.str();
        }
      }
    }
  }
}

TEST(MuonTest, ScalesAreThoseOfMegatronCore) {
  EXPECT_DOUBLE_EQ(muon_scale(MuonScaleMode::kSpectral, 4, 16), 4);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScaleMode::kUnitRmsNorm, 4, 16), 0.5);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScaleMode::kShapeScaling, 4, 16), 1);
  EXPECT_DOUBLE_EQ(muon_scale(MuonScaleMode::kShapeScaling, 16, 4), 2);
}

// Queries, keys and values of two groups, a projection, a bias and an embedding.
std::vector<OptimizedParameter> small_model(DType dtype) {
  std::vector<OptimizedParameter> model;
  const auto add = [&](const char* name, const Shape& shape, bool is_layer_matrix) {
    OptimizedParameter& p = model.emplace_back();
    p.name = name;
    p.variable = Variable::leaf(cast(normal(shape, model.size()), dtype));
    p.has_weight_decay = shape.rank() > 1;
    p.is_layer_matrix = is_layer_matrix;
  };
  add("embedding", {11, 8}, false);
  add("qkv", {16, 8}, true);
  model.back().row_parts = {4, 2, 2};
  add("bias", {16}, false);
  add("proj", {8, 12}, true);
  return model;
}

struct Case {
  bool splits_qkv = true;
  bool is_nesterov = false;
  MuonScaleMode mode = MuonScaleMode::kSpectral;
  double extra = 1.0;
};

OptimizerConfig config_of(const Case& c) {
  OptimizerConfig config;
  config.optimizer = OptimizerKind::kMuon;
  config.clip_grad = 0;
  config.muon_momentum = 0.8;
  config.muon_split_qkv = c.splits_qkv;
  config.muon_use_nesterov = c.is_nesterov;
  config.muon_scale_mode = c.mode;
  config.muon_fp32_matmul_prec = MuonPrecision::kHigh;
  config.muon_extra_scale_factor = c.extra;
  return config;
}

Matrix scaled_orthogonal(const Matrix& x, const Case& c) {
  Matrix y = orthogonal_reference(x, 5);
  for (double& e : y.elements) e *= c.extra * muon_scale(c.mode, x.rows, x.cols);
  return y;
}

// Rows [begin, begin + count) of each group of 8.
Matrix direction_of(const Matrix& u, bool is_split, const Case& c) {
  if (!is_split) return scaled_orthogonal(u, c);
  Matrix all(u.rows, u.cols);
  for (const auto& [begin, count] : {std::pair{0, 4}, {4, 2}, {6, 2}}) {
    const auto row_of = [&, b = begin, n = count](int64_t i) { return i / n * 8 + b + i % n; };
    Matrix part(u.rows / 8 * count, u.cols);
    for (int64_t i = 0; i < part.rows; ++i) {
      for (int64_t j = 0; j < u.cols; ++j) part.at(i, j) = u.at(row_of(i), j);
    }
    const Matrix made = scaled_orthogonal(part, c);
    for (int64_t i = 0; i < part.rows; ++i) {
      for (int64_t j = 0; j < u.cols; ++j) all.at(row_of(i), j) = made.at(i, j);
    }
  }
  return all;
}

TEST(MuonTest, FollowsTheDefinition) {
  for (const Case& c : {Case{}, Case{.splits_qkv = false}, Case{.is_nesterov = true},
                        Case{.mode = MuonScaleMode::kUnitRmsNorm, .extra = 0.2}}) {
    const auto model = small_model(DType::kFloat32);
    FlatParameters flat(model, {.separates_matrices = true});
    Optimizer optimizer(flat, config_of(c));
    std::map<size_t, Matrix> weights, momenta;
    for (const size_t i : {size_t{1}, size_t{3}}) {
      weights.emplace(i, Matrix(model[i].variable.data()));
      momenta.emplace(i, Matrix(model[i].variable.size(0), model[i].variable.size(1)));
    }
    for (uint64_t step = 1; step <= 3; ++step) {
      for (size_t i = 0; i < model.size(); ++i) {
        Tensor grad = model[i].variable.grad();
        copy_into(grad, normal(grad.shape(), 100 * step + i));
      }
      for (auto& [i, w] : weights) {
        const Matrix g(model[i].variable.grad());
        Matrix& buf = momenta.at(i);
        Matrix u = buf;
        for (size_t e = 0; e < g.elements.size(); ++e) {
          buf.elements[e] = 0.8 * buf.elements[e] + 0.2 * g.elements[e];
          u.elements[e] =
              c.is_nesterov ? 0.8 * buf.elements[e] + 0.2 * g.elements[e] : buf.elements[e];
        }
        const Matrix direction = direction_of(u, i == 1 && c.splits_qkv, c);
        for (size_t e = 0; e < g.elements.size(); ++e) {
          w.elements[e] -= 0.01 * (direction.elements[e] + 0.1 * w.elements[e]);
        }
      }
      optimizer.step({.lr = 0.01, .decoupled_lr = 0.01, .weight_decay = 0.1});
    }
    for (const auto& [i, want] : weights) {
      for (int64_t e = 0; e < model[i].variable.data().numel(); ++e) {
        ASSERT_NEAR(element(model[i].variable.data(), e), want.elements[static_cast<size_t>(e)],
                    2e-5)
            << model[i].name << " " << e;
      }
    }
  }
}

// A layer's experts are one tensor, and move as if each were a parameter of its own.
TEST(MuonTest, ExpertsAreMatricesOfTheirOwn) {
  const auto parameter_of = [](const Tensor& value) {
    OptimizedParameter parameter;
    parameter.name = "experts";
    parameter.variable = Variable::leaf(copied(value));
    parameter.is_layer_matrix = true;
    return parameter;
  };
  const Tensor whole = normal({3, 6, 8}, 1);
  const Tensor grads = normal({3, 6, 8}, 2);
  const auto moved = [&](const std::vector<std::pair<Tensor, Tensor>>& values) {
    std::vector<OptimizedParameter> model;
    for (const auto& [value, grad] : values) model.push_back(parameter_of(value));
    FlatParameters flat(model, {.separates_matrices = true});
    Optimizer optimizer(flat, config_of({}));
    for (size_t i = 0; i < model.size(); ++i) {
      Tensor grad = model[i].variable.grad();
      copy_into(grad, values[i].second);
    }
    optimizer.step({.lr = 0.01, .decoupled_lr = 0.01, .weight_decay = 0.1});
    return model;
  };
  const auto together = moved({{whole, grads}});
  std::vector<std::pair<Tensor, Tensor>> each;
  for (int64_t e = 0; e < 3; ++e) {
    each.emplace_back(whole.slice(e, 1).reshape({6, 8}), grads.slice(e, 1).reshape({6, 8}));
  }
  const auto apart = moved(each);
  for (int64_t e = 0; e < 3; ++e) {
    expect_close(copied(together[0].variable.data().slice(e, 1).reshape({6, 8})),
                 apart[static_cast<size_t>(e)].variable.data(),
                 Tolerance{.relative = 1e-6, .absolute = 1e-7});
  }
}

// Matrices of layers have momentum, all others the state and the bits of Adam.
TEST(MuonTest, OtherParametersHaveAdam) {
  std::vector<std::vector<Tensor>> results;
  for (const OptimizerKind kind : {OptimizerKind::kAdam, OptimizerKind::kMuon}) {
    const auto model = small_model(DType::kBFloat16);
    FlatParameters flat(model, {.separates_matrices = kind == OptimizerKind::kMuon});
    OptimizerConfig config = config_of({});
    config.optimizer = kind;
    Optimizer optimizer(flat, config);
    for (uint64_t step = 1; step <= 3; ++step) {
      for (size_t i = 0; i < model.size(); ++i) {
        Tensor grad = model[i].variable.grad();
        copy_into(grad, normal(grad.shape(), 100 * step + i));
      }
      optimizer.step({.lr = 0.01, .decoupled_lr = 0.01, .weight_decay = 0.1});
    }
    auto& weights = results.emplace_back();
    for (const OptimizedParameter& p : model) weights.push_back(copied(p.variable.data()));
    if (kind == OptimizerKind::kAdam) continue;
    std::map<std::string, std::vector<std::string>> states;
    optimizer.visit_state([&](const OptimizedParameter& p, std::string_view state, const FlatSpan&,
                              const Tensor&) { states[p.name].emplace_back(state); });
    const std::vector<std::string> momentum = {"main_param", "momentum_buffer"};
    const std::vector<std::string> moments = {"main_param", "exp_avg", "exp_avg_sq"};
    EXPECT_EQ(states.at("qkv"), momentum);
    EXPECT_EQ(states.at("proj"), momentum);
    EXPECT_EQ(states.at("bias"), moments);
    EXPECT_EQ(states.at("embedding"), moments);
  }
  expect_identical(results[1][0], results[0][0], "embedding");
  expect_identical(results[1][2], results[0][2], "bias");
  for (const size_t i : {1u, 3u}) {
    EXPECT_NE(element(results[1][i], 0), element(results[0][i], 0));
  }
}

TEST(MuonTest, ASkippedStepLeavesAllAsItWas) {
  const auto model = small_model(DType::kFloat16);
  FlatParameters flat(model, {.separates_matrices = true});
  OptimizerConfig config = config_of({});
  config.fp16 = true;
  config.params_dtype = DType::kFloat16;
  Optimizer optimizer(flat, config);
  const Tensor before = copied(model[3].variable.data());
  Tensor grad = model[3].variable.grad();
  copy_into(grad, full(grad.shape(), INFINITY, DType::kFloat32, Stream{}));
  EXPECT_FALSE(optimizer.step({.lr = 0.01}).ok);
  expect_identical(model[3].variable.data(), before);
  optimizer.visit_state([](const OptimizedParameter& p, std::string_view state, const FlatSpan&,
                           const Tensor& tensor) {
    if (state != "momentum_buffer") return;
    expect_identical(tensor, zeros(tensor.shape(), DType::kFloat32, Stream{}), p.name);
  });
}

}  // namespace
}  // namespace megatron
