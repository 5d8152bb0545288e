#include "megatron/optim/tied_parameters.h"

#include <gtest/gtest.h>

#include "megatron/comm/threads.h"
#include "megatron/optim/gradient_reduction.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

// Of a T5 on four stages: the words are on three, the positions on two of them, a table of the
// decoder on the last two; each stage has a parameter of its own.
std::vector<OptimizedParameter> parameters_of_stage(int stage) {
  std::vector<OptimizedParameter> all;
  const auto add = [&](const std::string& name, bool is_tied) {
    OptimizedParameter& p = all.emplace_back();
    p.name = name;
    p.variable = Variable::leaf(full({4}, 0.0f, DType::kFloat32, Stream{}));
    p.is_tied = is_tied;
  };
  if (stage != 1) add("words", true);
  if (stage == 0 || stage == 2) add("positions", true);
  add("layer", false);
  if (stage >= 2) add("distances", true);
  if (stage == 3) add("alone", true);
  return all;
}

TEST(TiedParametersTest, StagesThatNameAParameterShareIt) {
  comm::run_ranks(4, [](const comm::Group& pipeline) {
    const std::vector<OptimizedParameter> own = parameters_of_stage(pipeline.rank());
    const std::vector<TiedParameter> tied = tied_parameters(own, pipeline);
    std::vector<int> sizes;
    for (const TiedParameter& parameter : tied) sizes.push_back(parameter.stages.size());
    const std::vector<std::vector<int>> want = {{2, 3}, {}, {2, 2, 3}, {2, 3}};
    EXPECT_EQ(sizes, want[static_cast<size_t>(pipeline.rank())]);
  });
}

TEST(TiedParametersTest, WithoutAPipelineNoneIsTied) {
  EXPECT_TRUE(tied_parameters(parameters_of_stage(0), {}).empty());
}

TEST(TiedParametersTest, GradientsAreSummedOverTheStagesThatHaveThem) {
  comm::run_ranks(4, [](const comm::Group& pipeline) {
    FlatParameters flat(parameters_of_stage(pipeline.rank()), {});
    GradientReduction reduction(flat, pipeline, {});
    reduction.begin(1);
    for (const OptimizedParameter& p : flat.parameters()) {
      Tensor grad = p.variable.grad();
      for (float& g : grad.span<float>()) g = static_cast<float>(1 << pipeline.rank());
    }
    reduction.finish();
    for (const OptimizedParameter& p : flat.parameters()) {
      const double own = 1 << pipeline.rank();
      const double want = p.name == "words"       ? 1 + 4 + 8
                          : p.name == "positions" ? 1 + 4
                          : p.name == "distances" ? 4 + 8
                                                  : own;
      EXPECT_EQ(element(p.variable.grad(), 3), want) << p.name;
    }
  });
}

}  // namespace
}  // namespace megatron
