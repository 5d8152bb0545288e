// GPT models with experts, trained as by Megatron Core 0.19 (../shared/golden/README-modern.md).
#include "megatron/training/replica_check.h"
#include "tests/run/core_run.h"

namespace megatron {
namespace {

constexpr const char* kExpertRuns = "moe";

void expect_number(double got, double want, double tolerance, const std::string& what) {
  EXPECT_NEAR(got, want, tolerance * std::max(1.0, std::abs(want))) << what;
}

std::vector<IterationResult> iterations_of(CoreTrainer& trainer, size_t count) {
  std::vector<IterationResult> results;
  for (size_t i = 0; i < count; ++i) results.push_back(trainer.iterate());
  return results;
}

// Compares losses, auxiliary losses and gradient norms of iterations `first`, first + 1, ..
void expect_iterations(const std::vector<IterationResult>& results, const CoreRun& golden,
                       double tolerance, size_t first = 1, bool has_losses = true) {
  for (size_t i = first; i < first + results.size(); ++i) {
    const IterationResult& result = results[i - first];
    const nlohmann::json& want = golden.iterations()[i - 1];
    const std::string at = " of iteration " + std::to_string(i);
    if (has_losses) {
      expect_number(loss_of(result, "lm loss"), want["losses"]["lm loss"], tolerance,
                    "lm loss" + at);
      for (const auto& [name, number] : want["aux"].items()) {
        if (number.get<double>() == 0) continue;
        expect_number(loss_of(result, name), number, tolerance, name + at);
      }
    }
    expect_number(result.grad_norm.value_or(-1), want["grad_norm"], tolerance, "grad norm" + at);
  }
}

struct GoldenCase {
  const char* name;
  double tolerance = 1e-6;
  size_t last = 20;
};
void PrintTo(const GoldenCase& c, std::ostream* out) { *out << c.name; }

class GoldenExpertsTest : public testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenExpertsTest, TrainsAsMegatronCore) {
  MG_NEEDS_SHARED("golden/moe/flags.sh");
  const CoreRun golden(kExpertRuns, GetParam().name);
  CoreTrainer trainer(golden, golden.config({}, 1), comm::Group());
  expect_iterations(iterations_of(trainer, GetParam().last), golden, GetParam().tolerance);
}

// The experts and weights of tokens, from the logits of the first two microbatches: the router's
// matrix is the identity.
TEST_P(GoldenExpertsTest, RoutesAsMegatronCore) {
  MG_NEEDS_SHARED("golden/moe/flags.sh");
  const std::string name = GetParam().name;
  if (name.starts_with("bf16"))
    GTEST_SKIP() << "bf16 logits are equal, and torch leaves open which of equal ones it takes";
  const CoreRun golden(kExpertRuns, name);
  const RunConfig run = golden.config({}, 1);
  LayerConfig config = run.transformer;
  config.hidden_size = config.num_experts;
  config.add_bias_linear = false;
  const Router router(config, "router", {}, Stream{});
  initialize(router, 1);
  Tensor identity = named_parameters(router)[0].variable.data();
  scale_inplace(identity, 0);
  for (int64_t e = 0; e < config.num_experts; ++e) {
    identity.span<float>()[static_cast<size_t>(e * config.num_experts + e)] = 1;
  }
  const SafetensorsFile stored(golden.file("routing.safetensors"));
  int64_t checked = 0;
  for (const auto& entry : stored.tensors()) {
    const std::string& key = entry.spec.name;
    if (!key.ends_with(".logits")) continue;
    const std::string base = key.substr(0, key.size() - 7);
    const Tensor logits = copy_of(stored.at(key));
    const Tensor probs = copy_of(stored.at(base + ".probs"));
    const Tensor map = copy_of(stored.at(base + ".map"));
    RandomState random(1);
    std::vector<Variable> losses;
    ForwardContext context;
    context.random = &random;
    context.auxiliary_losses = &losses;
    const int64_t batch = run.training.micro_batch_size;
    const RoutedTokens routed = router.forward(
        Variable(logits.reshape({logits.size(0) / batch, batch, logits.size(1)})), context);
    Tensor got = zeros(probs.shape(), DType::kFloat32, Stream{});
    Tensor chosen = zeros(probs.shape(), DType::kFloat32, Stream{});
    for (int64_t slot = 0; slot < routed.ids.numel(); ++slot) {
      const int32_t id = routed.ids.span<int32_t>()[static_cast<size_t>(slot)];
      if (id < 0) continue;
      const auto at = static_cast<size_t>(slot / routed.ids.size(1) * got.size(1) + id);
      got.span<float>()[at] = static_cast<float>(element(routed.weights.data(), slot));
      chosen.span<float>()[at] = 1;
    }
    expect_close(got, probs, Tolerance{.relative = 1e-6, .absolute = 1e-7}, key);
    if (!config.moe_pad_expert_input_to_capacity) {
      for (int64_t i = 0; i < map.numel(); ++i) {
        ASSERT_EQ(element(chosen, i), map.span<uint8_t>()[static_cast<size_t>(i)]) << key;
      }
    }
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

// The gradients of the first iteration, before they are clipped.
TEST_P(GoldenExpertsTest, HasTheGradientsOfMegatronCore) {
  MG_NEEDS_SHARED("golden/moe/flags.sh");
  const CoreRun golden(kExpertRuns, GetParam().name);
  if (!golden.has_gradients()) GTEST_SKIP() << "the recorded run has no gradients";
  CoreTrainer trainer(golden, golden.config({}, 1), comm::Group());
  trainer.iterate();
  trainer.expect_gradients(golden.gradients(), 1e-6);
}

// Routers that compute in fp64 differ by rounding.
TEST(GoldenDoubleRouterTest, TrainsAsMegatronCore) {
  MG_NEEDS_SHARED("golden/moe/flags.sh");
  for (const char* const name : {"top2_aux", "top2_presoftmax", "zloss", "sigmoid_bias",
                                 "gelu_bias", "sinkhorn_top2", "quantile", "dsv3"}) {
    const CoreRun golden(kExpertRuns, name);
    const RunConfig config = golden.config({"--moe-router-dtype", "fp64"}, 1);
    ASSERT_EQ(config.transformer.moe_router_dtype, DType::kFloat64);
    CoreTrainer trainer(golden, config, comm::Group());
    expect_iterations(iterations_of(trainer, 3), golden, 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, GoldenExpertsTest,
    testing::Values(
        GoldenCase{"top2_aux"}, GoldenCase{"top2_presoftmax"}, GoldenCase{"top1_presoftmax"},
        GoldenCase{"top4_none"}, GoldenCase{"seq_aux"}, GoldenCase{"global_aux"},
        GoldenCase{"three_aux"}, GoldenCase{"zloss"}, GoldenCase{"sinkhorn_top1"},
        GoldenCase{"sinkhorn_top2"}, GoldenCase{"sigmoid"}, GoldenCase{"sigmoid_bias"},
        GoldenCase{"sqrtsoftplus"}, GoldenCase{"groups_presoftmax"}, GoldenCase{"quantile"},
        GoldenCase{"dsv3"}, GoldenCase{"shared"},
        GoldenCase{"shared_gate"},  // Four equal tokens tie in iteration 10, for three places.
        GoldenCase{"cap_probs", 1e-6, 9}, GoldenCase{"cap_pad", 1e-6, 9}, GoldenCase{"freq_list"},
        GoldenCase{"freq2"}, GoldenCase{"gelu_bias"}, GoldenCase{"gelu_nobias"},
        GoldenCase{"qwen3"}, GoldenCase{"probs_on_input"}, GoldenCase{"mb1"}, GoldenCase{"mb4"},
        // Equal bf16 logits tie, and Megatron Core rounds elsewhere.
        GoldenCase{"bf16", 1e-2}, GoldenCase{"bf16_router_fp32", 1e-2}),
    [](const auto& info) { return std::string(info.param.name); });

class GoldenLayoutTest : public testing::TestWithParam<GoldenCase> {};

// Every rank has the norm of all gradients, the last one has the losses.
TEST_P(GoldenLayoutTest, TrainsAsMegatronCore) {
  MG_NEEDS_SHARED("golden/moe/flags.sh");
  const CoreRun golden(kExpertRuns, GetParam().name);
  const RunConfig config = golden.config({}, golden.num_ranks());
  comm::run_ranks(golden.num_ranks(), [&](const comm::Group& world) {
    CoreTrainer trainer(golden, config, world);
    expect_iterations(iterations_of(trainer, GetParam().last), golden, GetParam().tolerance, 1,
                      world.rank() + 1 == world.size());
    expect_equal_replicas(trainer.state());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Runs, GoldenLayoutTest,
    testing::Values(GoldenCase{"top2_aux.dp2"}, GoldenCase{"top2_aux.ep2"},
                    GoldenCase{"top2_aux.ep2-alltoall"}, GoldenCase{"top2_aux.ep2-distopt"},
                    GoldenCase{"top2_aux.ep2-edp2"}, GoldenCase{"top2_aux.ep2-edp2-distopt"},
                    GoldenCase{"top2_aux.ep4"}, GoldenCase{"top2_aux.pp2-ep2"},
                    GoldenCase{"top2_aux.tp2"}, GoldenCase{"top2_aux.tp2-ep2"},
                    GoldenCase{"top2_aux.tp2-etp1"}, GoldenCase{"top2_aux.tp2-etp1-ep2"},
                    GoldenCase{"top2_aux.tp2-etp1-ep4"}, GoldenCase{"dsv3.ep2"},
                    GoldenCase{"dsv3.pp2"}, GoldenCase{"dsv3.tp2-ep2"},
                    GoldenCase{"dsv3.tp2-etp1-ep2"},
                    // Not cap_probs.tp2, which differs from iteration 1 on (4.89111,
                    // there 4.89080): ties for the places of an expert are supposed, and not shown.
                    // Those of iteration 10 end otherwise on some processors.
                    GoldenCase{"cap_probs.ep2", 1e-6, 9}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::ranges::replace_if(
          name, [](char c) { return c == '.' || c == '-'; }, '_');
      return name;
    });

// The first layers of a backward pass are computed again: nothing is counted twice.
TEST(GoldenRecomputeTest, TrainsAsMegatronCore) {
  MG_NEEDS_SHARED("golden/moe/flags.sh");
  for (const char* name : {"three_aux", "dsv3", "quantile"}) {
    const CoreRun golden(kExpertRuns, name);
    CoreTrainer trainer(golden,
                        golden.config({"--recompute-granularity", "full", "--recompute-method",
                                       "uniform", "--recompute-num-layers", "1"},
                                      1),
                        comm::Group());
    expect_iterations(iterations_of(trainer, 20), golden, 1e-6);
  }
}

// Megatron Core's checkpoints of iteration 10, in its formats torch_dist and torch, continue to its
// iteration 20, on other ranks, too.
struct CheckpointCase {
  const char* folder;
  const char* run;
  int ranks = 1;
  std::vector<std::string> flags = {};
};
void PrintTo(const CheckpointCase& c, std::ostream* out) { *out << c.folder; }

class GoldenCheckpointTest : public testing::TestWithParam<CheckpointCase> {};

TEST_P(GoldenCheckpointTest, ContinuesAsMegatronCore) {
  MG_NEEDS_SHARED("golden/moe/flags.sh");
  const CheckpointCase& c = GetParam();
  const CoreRun golden(kExpertRuns, c.run);
  std::vector<std::string> flags = c.flags;
  flags.insert(flags.end(),
               {"--load", shared_data(std::string("golden/moe/ckpt/") + c.folder).string()});
  const RunConfig config = golden.config(flags, c.ranks);
  comm::run_ranks(c.ranks, [&](const comm::Group& world) {
    CoreTrainer trainer(golden, config, world);
    const std::vector<IterationResult> results = iterations_of(trainer, 10);
    if (world.rank() + 1 == world.size()) expect_iterations(results, golden, 1e-6, 11);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoints, GoldenCheckpointTest,
    testing::Values(
        CheckpointCase{"dsv3", "dsv3"}, CheckpointCase{"freq_list", "freq_list"},
        CheckpointCase{"top2_aux.ep2-edp2-distopt", "top2_aux"},
        CheckpointCase{"top2_aux.ep2-edp2-distopt",
                       "top2_aux",
                       4,
                       {"--expert-model-parallel-size", "4", "--zero-stage", "1"}},
        CheckpointCase{"dsv3",
                       "dsv3",
                       4,
                       {"--tensor-model-parallel-size", "2", "--sequence-parallel",
                        "--expert-model-parallel-size", "2"}},
        CheckpointCase{"top2_aux.ep2-distopt", "top2_aux"},
        CheckpointCase{"top2_aux.ep2-distopt",
                       "top2_aux",
                       4,
                       {"--tensor-model-parallel-size", "2", "--sequence-parallel",
                        "--expert-model-parallel-size", "4", "--expert-tensor-parallel-size", "1",
                        "--zero-stage", "1"}},
        CheckpointCase{"dsv3-torch", "dsv3"}, CheckpointCase{"top2_aux.ep2-torch", "top2_aux"},
        CheckpointCase{
            "top2_aux.ep2-torch", "top2_aux", 2, {"--expert-model-parallel-size", "2"}}));

}  // namespace
}  // namespace megatron
