// GPT models with the options of Megatron Core 0.19, trained as there.
#include "tests/run/core_run.h"

namespace megatron {
namespace {

struct CoreCase {
  const char* folder;
  const char* name;
  std::vector<std::string> flags = {};  // of settings that no flag of Megatron Core reaches
};
void PrintTo(const CoreCase& c, std::ostream* out) { *out << c.folder << "/" << c.name; }
std::string name_of_case(const testing::TestParamInfo<CoreCase>& info) {
  std::string name = info.param.name;
  std::ranges::replace(name, '-', '_');
  return name;
}

void expect_iteration(const IterationResult& got, const nlohmann::json& want) {
  const std::string at = "iteration " + std::to_string(want.at("iteration").get<int>());
  const double loss = want.at("losses").at("lm loss");
  EXPECT_NEAR(loss_of(got, "lm loss"), loss, 1e-6 * loss) << at;
  const double norm = want.at("grad_norm");
  EXPECT_NEAR(*got.grad_norm, norm, 2e-6 * norm) << at;
  for (size_t depth = 0; want.contains("mtp") && depth < want.at("mtp").size(); ++depth) {
    const double value = want.at("mtp")[depth];
    EXPECT_NEAR(loss_of(got, "mtp_" + std::to_string(depth + 1) + " loss"), value, 1e-6 * value)
        << at;
  }
}

class CoreRunTest : public testing::TestWithParam<CoreCase> {};

// Skips the test unless the run is there.
#define MG_NEEDS_RUN(run)                                                     \
  if (!CoreRun::is_there((run).folder, (run).name)) {                         \
    GTEST_SKIP() << "needs ../shared/golden/" << (run).folder << ": not run"; \
  }                                                                           \
  static_assert(true)

TEST_P(CoreRunTest, TrainsAsMegatronCore) {
  MG_NEEDS_RUN(GetParam());
  const CoreRun run(GetParam().folder, GetParam().name);
  CoreTrainer trainer(run, run.config(GetParam().flags, 1), comm::Group());
  for (const nlohmann::json& iteration : run.iterations()) {
    expect_iteration(trainer.iterate(), iteration);
    if (iteration.at("iteration") == 1) trainer.expect_gradients(run.gradients());
  }
}

INSTANTIATE_TEST_SUITE_P(LatentAttention, CoreRunTest,
                         testing::Values(CoreCase{"mla", "mla_qlora"}, CoreCase{"mla", "mla_noq"},
                                         CoreCase{"mla", "mla_nonorm"}, CoreCase{"mla", "mla_yarn"},
                                         CoreCase{"mla",
                                                  "mla_yarn_orig16",
                                                  {"--original-max-position-embeddings", "16"}},
                                         CoreCase{"mla", "mla_yarn_v2"}),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(MultiToken, CoreRunTest,
                         testing::Values(CoreCase{"mtp", "mtp1"}, CoreCase{"mtp", "mtp1_scale1"},
                                         CoreCase{"mtp", "mtp2"}, CoreCase{"mtp", "mtp2_tied"},
                                         CoreCase{"mtp", "mtp2_repeated"},
                                         CoreCase{"mtp", "mtp2_detach"},
                                         CoreCase{"mtp", "mtp2_per_token"}),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(AttentionOptions, CoreRunTest,
                         testing::Values(CoreCase{"attention", "sinks"},
                                         CoreCase{"attention", "sinks_window"},
                                         CoreCase{"attention", "offbyone"},
                                         CoreCase{"attention", "qknorm_gate"}),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(Experts, CoreRunTest,
                         testing::Values(CoreCase{"mtp", "mtp1_moe"},
                                         CoreCase{"mla", "deepseek_v3"}),
                         name_of_case);

// A run on several ranks follows that on one.
struct CoreLayout {
  CoreCase run;
  int64_t ranks;
  std::vector<std::string> flags;
  std::string name;
};
void PrintTo(const CoreLayout& c, std::ostream* out) { *out << c.run.name << " " << c.name; }

class CoreLayoutTest : public testing::TestWithParam<CoreLayout> {};

TEST_P(CoreLayoutTest, TrainsAsOneRank) {
  const CoreLayout& layout = GetParam();
  MG_NEEDS_RUN(layout.run);
  const CoreRun run(layout.run.folder, layout.run.name);
  const RunConfig config = run.config(layout.flags, layout.ranks);
  comm::run_ranks(static_cast<int>(layout.ranks), [&](const comm::Group& world) {
    CoreTrainer trainer(run, config, world);
    for (const nlohmann::json& iteration : run.iterations()) {
      const IterationResult got = trainer.iterate();
      if (world.rank() + 1 == layout.ranks) expect_iteration(got, iteration);
    }
  });
}

std::vector<CoreLayout> layouts_of(const CoreCase& run) {
  const std::string tp2 = "--tensor-model-parallel-size";
  return {{run, 2, {tp2, "2"}, "tp2"},
          {run, 2, {tp2, "2", "--sequence-parallel"}, "tp2_sp"},
          {run, 2, {"--pipeline-model-parallel-size", "2"}, "pp2"},
          {run, 2, {}, "dp2"},
          {run, 2, {"--context-parallel-size", "2"}, "cp2"},
          {run,
           1,
           {"--recompute-granularity", "full", "--recompute-method", "uniform",
            "--recompute-num-layers", "1"},
           "recomputed"},
          {run,
           4,
           {tp2, "2", "--sequence-parallel", "--pipeline-model-parallel-size", "2"},
           "tp2_sp_pp2"}};
}

INSTANTIATE_TEST_SUITE_P(LatentAttention, CoreLayoutTest,
                         testing::ValuesIn(layouts_of({"mla", "mla_qlora"})),
                         [](const auto& one) { return one.param.name; });

// Iterations 11 to 20 from Megatron Core's checkpoint of iteration 10, and from ours of iteration
// 15 in its formats.
struct CoreCheckpoint {
  CoreCase run;
  const char* checkpoint;
};
void PrintTo(const CoreCheckpoint& c, std::ostream* out) { *out << c.checkpoint; }

class CoreCheckpointTest : public testing::TestWithParam<CoreCheckpoint> {};

TEST_P(CoreCheckpointTest, ContinuesAsMegatronCore) {
  MG_NEEDS_SHARED("golden/mla");
  const CoreRun run(GetParam().run.folder, GetParam().run.name);
  for (const char* format : {"torch_dist", "megatron-core", "native"}) {
    const TemporaryDirectory directory;
    const std::string saved = directory.path().string();
    RunConfig config = run.config(
        {"--load",
         (shared_data("golden") / GetParam().run.folder / "ckpt" / GetParam().checkpoint).string(),
         "--save", saved, "--save-interval", "5", "--save-format", format},
        1);
    CoreTrainer first(run, config, comm::Group());
    ASSERT_EQ(first.iteration(), 10);
    for (size_t i = 10; i < 15; ++i) expect_iteration(first.iterate(), run.iterations()[i]);
    first.save();
    config.checkpoint.load = saved;
    config.checkpoint.save.clear();
    CoreTrainer second(run, config, comm::Group());
    ASSERT_EQ(second.iteration(), 15);
    for (size_t i = 15; i < 20; ++i) expect_iteration(second.iterate(), run.iterations()[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CoreCheckpointTest,
                         testing::Values(CoreCheckpoint{{"mla", "mla_qlora"}, "mla_qlora"},
                                         CoreCheckpoint{{"mtp", "mtp2"}, "mtp2"},
                                         CoreCheckpoint{{"mtp", "mtp2"}, "mtp2-torch"}),
                         [](const auto& one) {
                           std::string name = one.param.checkpoint;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

INSTANTIATE_TEST_SUITE_P(MultiToken, CoreLayoutTest, testing::ValuesIn(layouts_of({"mtp", "mtp2"})),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(DetachedMultiToken, CoreLayoutTest,
                         testing::ValuesIn(layouts_of({"mtp", "mtp2_detach"})),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(TiedMultiToken, CoreLayoutTest,
                         testing::ValuesIn(layouts_of({"mtp", "mtp2_tied"})),
                         [](const auto& one) { return one.param.name; });

INSTANTIATE_TEST_SUITE_P(Window, CoreLayoutTest,
                         testing::ValuesIn(layouts_of({"attention", "sinks_window"})),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(OutputGate, CoreLayoutTest,
                         testing::ValuesIn(layouts_of({"attention", "qknorm_gate"})),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace megatron
