// A GPT whose pipeline stages are listed in a word trains as one rank does.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/run/expert_training.h"
#include "tests/support/temporary_directory.h"

namespace megatron::expert_training {
namespace {

LayoutFlags stages_of(int ranks, const std::string& word) {
  LayoutFlags layout{ranks, {}};
  add_flag(layout.flags, "--pipeline-model-parallel-size", ranks);
  layout.flags.emplace_back("--pipeline-model-parallel-layout");
  layout.flags.push_back(word);
  return layout;
}

TEST(PipelineLayoutTest, AnyStagesTrainAsOneRank) {
  const std::vector<IterationResult> want = train(kDenseModel, {}, 3)[0];
  for (const LayoutFlags& layout :
       {stages_of(2, "Et|t*3L"), stages_of(3, "E|t*4|L"), stages_of(4, "Et*3||t|L"),
        stages_of(2, "E|tt|t|tL"), stages_of(2, "Et|(t|)*3|L"), stages_of(4, "E(t|)*4|||L")}) {
    SCOPED_TRACE(layout.text());
    expect_equal_results(train(kDenseModel, layout, 3), want);
  }
}

TEST(PipelineLayoutTest, StagesOfPartsOfLayersTrainAsOneRank) {
  const std::vector<IterationResult> want = train(kDenseModel, {}, 3)[0];
  for (const LayoutFlags& layout :
       {stages_of(2, "Eta|fttL"), stages_of(3, "Ea|fta|ftL"), stages_of(4, "Ea|fa|ft|tL"),
        stages_of(2, "Ea|fa|ft|tL"), stages_of(2, "E(a|f)*4|L")}) {
    SCOPED_TRACE(layout.text());
    expect_equal_results(train(kDenseModel, layout, 3), want);
  }
}

TEST(PipelineLayoutTest, LayersOfFurtherTokensAreBeforeTheLoss) {
  const FlagWords model =
      kDenseModel + FlagWords{"--position-embedding-type", "rope", "--mtp-num-layers", "2"};
  const std::vector<IterationResult> want = train(model, {}, 3)[0];
  for (const LayoutFlags& layout : {stages_of(2, "Et*3|tm*2L"), stages_of(2, "E|(tt|)*2mmL")}) {
    SCOPED_TRACE(layout.text());
    expect_equal_results(train(model, layout, 3), want);
  }
}

TEST(PipelineLayoutTest, BitsRepeat) {
  const LayoutFlags layout = stages_of(2, "E|tt|t|tL");
  const std::vector<IterationResult> once = train(kDenseModel, layout, 3).back();
  const std::vector<IterationResult> again = train(kDenseModel, layout, 3).back();
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(once[i].losses, again[i].losses);
    EXPECT_EQ(once[i].grad_norm, again[i].grad_norm);
  }
}

TEST(PipelineLayoutTest, ACheckpointGoesOnInAnotherLayout) {
  const TemporaryDirectory directory;
  const std::string save = (directory.path() / "save").string();
  const std::vector<IterationResult> want = train(kDenseModel, {}, 4)[0];
  train(kDenseModel, stages_of(2, "E|tt|t|tL"), 2, "", save);
  expect_equal_results(train(kDenseModel, stages_of(3, "Ett|t|tL"), 2, save), want, 2);
  expect_equal_results(train(kDenseModel, stages_of(2, "Eta|fttL"), 2, save), want, 2);
  expect_equal_results(train(kDenseModel, {}, 2, save), want, 2);
}

}  // namespace
}  // namespace megatron::expert_training
