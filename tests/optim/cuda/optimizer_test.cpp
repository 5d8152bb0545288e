#include "megatron/optim/optimizer.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/stream.h"
#include "tests/support/device_under_test.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr UpdateRates kRates{.lr = 1e-2, .decoupled_lr = 1e-2, .weight_decay = 0.1};

// Parameters of two dtypes on one device, with their optimizer.
struct Training {
  FlatParameters parameters;
  Optimizer optimizer;

  Training(const OptimizerConfig& config, Stream stream)
      : parameters(model(config.params_dtype, stream),
                   {.separates_matrices = config.optimizer == OptimizerKind::kMuon}),
        optimizer(parameters, config) {}

  static std::vector<OptimizedParameter> model(DType dtype, Stream stream) {
    std::vector<OptimizedParameter> all;
    const auto add = [&](const char* name, const Shape& shape, DType its_dtype) {
      OptimizedParameter& p = all.emplace_back();
      p.name = name;
      const RandomOptions options{.seed = all.size(), .dtype = its_dtype};
      p.variable = Variable::leaf(random_normal(shape, options).to(stream));
      p.has_weight_decay = p.is_layer_matrix = shape.rank() > 1;
      if (p.is_layer_matrix) p.row_parts = {40, 10, 10};
    };
    add("linear.weight", {300, 500}, dtype);
    add("linear.bias", {301}, dtype);
    add("norm.weight", {500}, DType::kFloat32);
    return all;
  }

  void set_grads(uint64_t seed) {
    for (const OptimizedParameter& p : parameters.parameters()) {
      Tensor grad = p.variable.grad();
      copy_into(grad, random_normal(grad.shape(), {.seed = ++seed}));
    }
  }
};

class CudaOptimizerTest : public testing::TestWithParam<OptimizerKind> {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  }
  static Stream stream() { return stream_under_test(); }
};

TEST_P(CudaOptimizerTest, FollowsTheCpu) {
  struct Case {
    DType dtype;
    bool is_offloaded;
    DType moments = DType::kFloat32;
    bool is_precision_aware = false;
  };
  for (const auto& [dtype, is_offloaded, moments, is_precision_aware] :
       {Case{DType::kFloat32, false}, Case{DType::kBFloat16, false}, Case{DType::kFloat32, true},
        Case{DType::kBFloat16, true}, Case{DType::kBFloat16, false, DType::kFloat32, true},
        Case{DType::kBFloat16, false, DType::kBFloat16, true},
        Case{DType::kBFloat16, true, DType::kBFloat16, true},
        Case{DType::kBFloat16, false, DType::kFloat16, true}}) {
    OptimizerConfig config;
    config.use_precision_aware_optimizer = is_precision_aware;
    config.exp_avg_dtype = config.exp_avg_sq_dtype = moments;
    config.optimizer = GetParam();
    config.params_dtype = dtype;
    config.log_num_zeros_in_grad = true;
    Training want(config, Stream{});
    config.optimizer_cpu_offload = is_offloaded;
    Training got(config, stream());
    for (uint64_t step = 1; step <= 3; ++step) {
      want.set_grads(10 * step);
      got.set_grads(10 * step);
      const StepResult want_result = want.optimizer.step(kRates);
      const StepResult got_result = got.optimizer.step(kRates);
      EXPECT_NEAR(*got_result.grad_norm, *want_result.grad_norm, 1e-9 * *want_result.grad_norm);
      EXPECT_EQ(got_result.num_zeros, want_result.num_zeros);
    }
    EXPECT_NEAR(got.optimizer.parameter_norm(), want.optimizer.parameter_norm(), 1e-2);
    for (size_t i = 0; i < want.parameters.parameters().size(); ++i) {
      const OptimizedParameter& parameter = want.parameters.parameters()[i];
      const Tensor& want_data = parameter.variable.data();
      const Tolerance tolerance = want_data.dtype() == DType::kFloat32
                                      ? Tolerance{.relative = 1e-5, .absolute = 1e-6}
                                      : tolerance_of(want_data.dtype());
      expect_close(got.parameters.parameters()[i].variable.data().to(Stream{}), want_data,
                   tolerance, parameter.name);
    }
  }
}

class CudaMuonTest : public CudaOptimizerTest {};

// Steps of the iteration multiply small differences of products; a step of the test is 1e-2.
TEST_P(CudaMuonTest, FollowsTheCpu) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    OptimizerConfig config;
    config.optimizer = GetParam();
    config.params_dtype = dtype;
    config.muon_fp32_matmul_prec = MuonPrecision::kHigh;
    Training want(config, Stream{});
    Training got(config, stream());
    for (uint64_t step = 1; step <= 3; ++step) {
      want.set_grads(10 * step);
      got.set_grads(10 * step);
      want.optimizer.step(kRates);
      got.optimizer.step(kRates);
    }
    const Tensor& want_data = want.parameters.parameters()[0].variable.data();
    const Tolerance tolerance =
        dtype == DType::kFloat32 ? Tolerance{.relative = 0, .absolute = 1e-4} : tolerance_of(dtype);
    expect_close(got.parameters.parameters()[0].variable.data().to(Stream{}), want_data, tolerance,
                 "linear.weight");
  }
}

INSTANTIATE_TEST_SUITE_P(Muon, CudaMuonTest, testing::Values(OptimizerKind::kMuon));

TEST_P(CudaOptimizerTest, NamesTheFirstGradientThatIsNotFinite) {
  OptimizerConfig config;
  config.optimizer = GetParam();
  Training training(config, stream());
  training.set_grads(1);
  for (const size_t at : {1, 2}) {
    Tensor grad = training.parameters.parameters()[at].variable.grad();
    const float infinity = std::numeric_limits<float>::infinity();
    copy_into(grad, full(grad.shape(), infinity, DType::kFloat32, Stream{}));
  }
  const std::string text = message_of<Error>([&] { training.optimizer.step(kRates); });
  EXPECT_NE(text.find("first in linear.bias"), std::string::npos) << text;
}

TEST_P(CudaOptimizerTest, ZerosGradients) {
  OptimizerConfig config;
  config.optimizer = GetParam();
  Training training(config, stream());
  training.set_grads(1);
  training.parameters.zero_grads();
  for (const OptimizedParameter& p : training.parameters.parameters()) {
    expect_identical(p.variable.grad().to(Stream{}),
                     zeros(p.variable.shape(), DType::kFloat32, Stream{}), p.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaOptimizerTest,
                         testing::Values(OptimizerKind::kAdam, OptimizerKind::kSgd));

}  // namespace
}  // namespace megatron
