#include "megatron/models/plan/update_work.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

constexpr int64_t kHidden = 1024;
constexpr int64_t kLayers = 16;

class UpdateWorkTest : public testing::Test {
 protected:
  UpdateWorkTest() {
    model_.num_layers = kLayers;
    model_.hidden_size = kHidden;
    model_.num_attention_heads = 16;
    model_.seq_length = model_.max_position_embeddings = 1024;
    model_.padded_vocab_size = 50304;
    model_.params_dtype = DType::kBFloat16;
    model_ = resolved(model_);
    parallel_.accumulate_allreduce_grads_in_fp32 = true;
  }
  PlannedTraining training() const {
    return {.transformer = model_,
            .parallel = parallel_,
            .optimizer = optimizer_,
            .device = DeviceType::kCuda};
  }
  UpdateWork work() const { return update_work(training(), dry_iteration(training(), 0)); }
  double parameters() const {
    return static_cast<double>(dry_iteration(training(), 0).num_trained);
  }
  double bytes_of_parameter() const { return work().device_bytes / parameters(); }

  TransformerConfig model_;
  ParallelConfig parallel_;
  OptimizerConfig optimizer_;
};

// Gradients are read twice; main parameters and state are read and written, the model, too, as
// main parameters are what it lacks.
TEST_F(UpdateWorkTest, FollowsTheTypes) {
  EXPECT_DOUBLE_EQ(bytes_of_parameter(), 2 * 4 + 2 * (2 + 8) + 2 * 2);
  parallel_.accumulate_allreduce_grads_in_fp32 = false;
  EXPECT_DOUBLE_EQ(bytes_of_parameter(), 2 * 2 + 2 * (2 + 8) + 2 * 2);
  optimizer_.optimizer = OptimizerKind::kSgd;
  EXPECT_DOUBLE_EQ(bytes_of_parameter(), 2 * 2 + 2 * (2 + 4) + 2 * 2);
  optimizer_.optimizer = OptimizerKind::kAdam;
  model_.params_dtype = DType::kFloat16;  // main parameters in fp32; the model is written
  EXPECT_DOUBLE_EQ(bytes_of_parameter(), 2 * 2 + 2 * 12 + 2);
  model_.params_dtype = DType::kFloat32;  // main parameters are the model's
  EXPECT_DOUBLE_EQ(bytes_of_parameter(), 2 * 4 + 2 * 12);
}

TEST_F(UpdateWorkTest, FollowsThePrecisionAwareTypes) {
  optimizer_.use_precision_aware_optimizer = true;
  EXPECT_DOUBLE_EQ(bytes_of_parameter(), 2 * 4 + 2 * (2 + 8) + 2 * 2);
  optimizer_.exp_avg_dtype = DType::kBFloat16;
  EXPECT_DOUBLE_EQ(bytes_of_parameter(), 2 * 4 + 2 * (2 + 2 + 4) + 2 * 2);
  optimizer_.exp_avg_sq_dtype = DType::kFloat16;
  EXPECT_DOUBLE_EQ(bytes_of_parameter(), 2 * 4 + 2 * (2 + 2 + 2) + 2 * 2);
  optimizer_.exp_avg_sq_dtype = DType::kFloat8E4M3;  // an exponent for 64 elements
  EXPECT_DOUBLE_EQ(bytes_of_parameter(), 2 * 4 + 2 * (2 + 2 + 65.0 / 64) + 2 * 2);
}

TEST_F(UpdateWorkTest, RanksDivideIt) {
  const UpdateWork whole = work();
  parallel_.data_parallel_size = 8;
  EXPECT_EQ(work().device_bytes, whole.device_bytes);
  parallel_.use_distributed_optimizer = true;
  EXPECT_DOUBLE_EQ(work().device_bytes, whole.device_bytes / 8);
  parallel_.tensor_model_parallel_size = 2;
  EXPECT_NEAR(work().device_bytes, whole.device_bytes / 16, 0.01 * whole.device_bytes);
}

TEST_F(UpdateWorkTest, OffloadLeavesTheDeviceGradientsAndParameters) {
  optimizer_.optimizer_cpu_offload = true;
  EXPECT_DOUBLE_EQ(bytes_of_parameter(), 2 * 4 + 2);
  EXPECT_DOUBLE_EQ(work().bus_bytes / parameters(), 4 + 2);
  EXPECT_DOUBLE_EQ(work().host_bytes / parameters(), 4 + 2 * 12 + 2);
}

// In h^3 of a layer and step: four square matrices of 6, and fc1 and fc2 of 18.
TEST_F(UpdateWorkTest, MuonHasProducts) {
  const double cube = static_cast<double>(kHidden) * kHidden * kHidden;
  const auto products = [&](double flops) { return flops / (cube * kLayers * 5); };
  EXPECT_EQ(work().bf16_flops, 0);
  optimizer_.optimizer = OptimizerKind::kMuon;
  EXPECT_DOUBLE_EQ(products(work().bf16_flops), 4 * 6 + 2 * 18);
  EXPECT_EQ(work().fp32_flops, 0);
  optimizer_.muon_split_qkv = false;  // one matrix of 3 h x h
  EXPECT_DOUBLE_EQ(products(work().bf16_flops), 6 + 14 + 2 * 18);
  optimizer_.muon_fp32_matmul_prec = MuonPrecision::kHigh;
  EXPECT_EQ(work().bf16_flops, 0);
  EXPECT_DOUBLE_EQ(products(work().fp32_flops), 6 + 14 + 2 * 18);

  // Tensor-parallel ranks make their parts orthogonal: the projection's is [h, h / 2], fc2's
  // [h, 2 h].
  parallel_.tensor_model_parallel_size = 2;
  optimizer_.muon_num_ns_steps = 1;
  const auto of = [](double less, double more) {
    return 4 * less * less * more + 2 * less * less * less;
  };
  EXPECT_DOUBLE_EQ(work().fp32_flops / (cube * kLayers), of(1, 1.5) + of(0.5, 1) + 2 * of(1, 2));
}

// The matrices take a pass for each elementwise part, and the others have Adam.
TEST_F(UpdateWorkTest, MuonReadsMatricesOften) {
  const double with_adam = work().device_bytes;
  optimizer_.optimizer = OptimizerKind::kMuon;
  const double matrices = kLayers * 12.0 * kHidden * kHidden;
  const double qkv = kLayers * 3.0 * kHidden * kHidden;
  // Measured 4; momentum 16; normalized 10; 4 a step; scaled 14; updated 14; rows of queries 16.
  EXPECT_DOUBLE_EQ(work().device_bytes - with_adam,
                   matrices * (4 + 16 + 10 + 5 * 4 + 14 + 14 - 32) + qkv * 16);
}

// Ranks share the matrices, each of which is one rank's.
TEST_F(UpdateWorkTest, RanksShareMuonsMatrices) {
  optimizer_.optimizer = OptimizerKind::kMuon;
  const UpdateWork whole = work();
  parallel_.data_parallel_size = 8;
  parallel_.use_distributed_optimizer = true;
  EXPECT_DOUBLE_EQ(work().bf16_flops, whole.bf16_flops / 8);
  EXPECT_DOUBLE_EQ(work().device_bytes, whole.device_bytes / 8);
  parallel_.data_parallel_size = 1024;
  const double cube = static_cast<double>(kHidden) * kHidden * kHidden;
  EXPECT_DOUBLE_EQ(work().bf16_flops, 5 * 18 * cube);  // fc1
}

}  // namespace
}  // namespace megatron
