// Experts of a model that reads texts are divided among its tensor-parallel ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "megatron/inference/generate.h"
#include "megatron/run/loaded_model.h"
#include "tests/run/expert_training.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::expert_training {
namespace {

const std::vector<int32_t> kText = {3, 17, 41, 5, 60, 22, 9, 13};

ModelChoice choice_of(const std::string& load, int64_t tp, int64_t ep, int64_t etp) {
  ModelChoice choice;
  choice.load = load;
  choice.device = DeviceChoice::kCpu;
  choice.parallel.tensor_model_parallel_size = tp;
  choice.parallel.expert_model_parallel_size = ep;
  choice.parallel.expert_tensor_parallel_size = etp;
  return choice;
}

TEST(LoadedExpertsTest, ScoreTextsOnEveryLayoutAsOnOneRank) {
  const TemporaryDirectory directory;
  const std::string saved = directory.path().string();
  train(kModel + FlagWords{"--swiglu", "--disable-bias-linear"}, {}, 2, "", saved);
  std::vector<double> want;
  {
    const CapturedStdout captured_out;
    const LoadedModel model = load_model(choice_of(saved, 1, 1, 0));
    want = score(model.inference(), kText).log_probabilities;
  }
  struct Sizes {
    int tp, ep, etp;
  };
  for (const Sizes& sizes : {Sizes{2, 1, 0}, {2, 2, 0}, {4, 2, 0}, {4, 4, 0}, {4, 2, 1}}) {
    const CapturedStdout captured_out;
    comm::run_ranks(sizes.tp, [&](const comm::Group& world) {
      const LoadedModel model = load_model(choice_of(saved, sizes.tp, sizes.ep, sizes.etp), world);
      const std::vector<double> got = score(model.inference(), kText).log_probabilities;
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_NEAR(got[i], want[i], 2e-6 * std::max(1.0, std::abs(want[i])))
            << sizes.tp << " " << sizes.ep << " " << sizes.etp;
      }
    });
  }
}

TEST(LoadedExpertsTest, LayoutsThatDoNotFitAreNamed) {
  const TemporaryDirectory directory;
  const std::string saved = directory.path().string();
  train(kModel, {}, 1, "", saved);
  const CapturedStdout captured_out;
  const auto message = [&](int64_t ep, int64_t etp) {
    return message_of<ConfigError>([&] { load_model(choice_of(saved, 1, ep, etp)); });
  };
  EXPECT_THAT(message(2, 0), testing::HasSubstr("--expert-model-parallel-size 2"));
  EXPECT_THAT(message(1, 2), testing::HasSubstr("--expert-tensor-parallel-size 2"));
}

}  // namespace
}  // namespace megatron::expert_training
