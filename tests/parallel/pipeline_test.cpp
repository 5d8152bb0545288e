// A small encoder and decoder in every pipeline: chunks hand each other different lists of tensors,
// and every layout has the bits of one stage.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/pipeline/executor.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kPieces = 4;
constexpr int64_t kMicrobatches = 4;
const Shape kHidden = {3, 2, 4};  // [s, b, h]

// sum(x^2) / 2, fp32 [].
Variable half_squares(const Variable& x) {
  float sum = 0;
  for (const float value : x.data().span<float>()) sum += value * value / 2;
  return record("half_squares", tensor_of<float>({sum}, {}), {x},
                [x = x.data()](const Tensor& dy, const Wants&) -> Grads {
                  Tensor dx = copied(x);
                  scale_inplace(dx, static_cast<float>(dy.item()));
                  return {dx};
                });
}

// x times the mask [s b] of its positions, int64.
Variable masked(const Variable& x, const Tensor& mask) {
  const auto apply = [mask](const Tensor& values) {
    Tensor y = copied(values);
    const int64_t size = y.size(-1);
    for (int64_t i = 0; i < y.numel(); ++i) {
      const auto at = static_cast<size_t>(i);
      y.span<float>()[at] *=
          static_cast<float>(mask.span<int64_t>()[static_cast<size_t>(i / size)]);
    }
    return y;
  };
  return record("masked", apply(x.data()), {x},
                [apply](const Tensor& dy, const Wants&) -> Grads { return {apply(dy)}; });
}

// Pieces 0 and 1 encode, 2 and 3 decode:
//
//   piece   receives                      sends                         loss
//   0       -                             hidden
//   1       hidden                        encoder output                auxiliary
//   2       encoder output                hidden, encoder output, mask
//   3       hidden, encoder output, mask  -                             of the model
class ToyModel {
 public:
  ToyModel() {
    for (uint64_t piece = 0; piece < kPieces; ++piece) {
      weights.push_back(Variable::leaf(random_normal({4, 4}, {.seed = piece + 1})));
      weights.back().set_main_grad(zeros({4, 4}, DType::kFloat32, Stream{}));
    }
  }

  ChunkOutput run(int64_t piece, int64_t microbatch, const Activations& in) const {
    const Variable& weight = weights[static_cast<size_t>(piece)];
    const auto input = [&](uint64_t seed) {
      return Variable(random_normal(kHidden, {.seed = seed + static_cast<uint64_t>(microbatch)}));
    };
    const auto through = [&](const Variable& x) { return linear(x, weight, Variable()); };
    switch (piece) {
      case 0:
        return {{through(input(100))}};
      case 1: {
        const Variable encoded = through(in[0]);
        return {{encoded}, {scale(half_squares(encoded), 0.25f)}};
      }
      case 2:
        return {{add(through(input(200)), in[0]), in[0], Variable(mask())}};
      default: {
        const Variable y = masked(add(through(in[0]), in[1]), in[2].data());
        return {{}, {half_squares(y)}};
      }
    }
  }

  static Tensor mask() { return tensor_of<int64_t>({1, 0, 1, 1, 1, 0}, {6}); }

  // What travels between a piece and the one after.
  static Boundary after(int64_t piece) {
    const TensorSpec hidden{.name = "hidden", .shape = kHidden};
    if (piece < 0 || piece == kPieces - 1) return {};
    if (piece < 2) return {hidden};
    return {hidden, hidden, {"mask", DType::kInt64, {6}}};
  }

  std::vector<Variable> weights;
};

// One stage of a pipeline: pieces of the model in its chunks.
struct ToyStage {
  PipelineShape shape;
  ToyModel model;
  std::vector<ChunkBoundary> boundaries;
  std::map<int64_t, float> losses;  // by microbatch, of all pieces here
  int64_t num_weight_passes = 0;

  ToyStage(int64_t stage, int64_t stages, int64_t chunks, bool zero_bubble = false)
      : shape{stage, stages, chunks, kMicrobatches, zero_bubble} {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      boundaries.push_back({ToyModel::after(first_piece(chunk) - 1),
                            ToyModel::after(first_piece(chunk) + pieces_a_chunk() - 1)});
    }
  }

  int64_t pieces_a_chunk() const { return kPieces / (shape.stages * shape.chunks); }
  int64_t first_piece(int64_t chunk) const {
    return (chunk * shape.stages + shape.stage) * pieces_a_chunk();
  }
  double sum_of_gradients() const {
    double sum = 0;
    for (const Variable& weight : model.weights) sum += element(weight.grad(), 0);
    return sum;
  }
  bool has(int64_t piece) const { return piece / pieces_a_chunk() % shape.stages == shape.stage; }

  ChunkOutput forward(const PipelineStep& step, const Activations& in) {
    ChunkOutput output{in};
    std::vector<Variable> all_losses;
    for (int64_t i = 0; i < pieces_a_chunk(); ++i) {
      output = model.run(first_piece(step.chunk) + i, step.microbatch, output.activations);
      for (const Variable& loss : output.losses) all_losses.push_back(loss);
    }
    output.losses = all_losses;
    for (const Variable& loss : all_losses) {
      losses[step.microbatch] += static_cast<float>(loss.data().item());
    }
    return output;
  }

  void train(const PipelineLinks& links) {
    const Tensor seed = full({}, 0.5f, DType::kFloat32, Stream{});
    StageWork work;
    work.forward = [this](const PipelineStep& step, const Activations& in) {
      return forward(step, in);
    };
    work.backward = [&](const ChunkOutput& output, const Grads& gradients) {
      run_backward(output, gradients, seed);
    };
    work.weight = [&](DelayedGradients& gradients) {
      ++num_weight_passes;
      const double before = sum_of_gradients();
      gradients.run();
      EXPECT_NE(sum_of_gradients(), before);
    };
    run_pipeline(training_steps(shape), shape, links, boundaries, Stream{}, work);
  }

  void evaluate(const PipelineLinks& links) {
    const NoGrad no_grad;
    StageWork work;
    work.forward = [this](const PipelineStep& step, const Activations& in) {
      return forward(step, in);
    };
    run_pipeline(evaluation_steps(shape), shape, links, boundaries, Stream{}, work);
  }
};

struct Layout {
  int stages;
  int chunks;
  bool zero_bubble = false;
};
class PipelineTest : public testing::TestWithParam<Layout> {
 protected:
  // Runs f(stage, links) for every stage of the layout, each on a thread of its own.
  template <class F>
  static void for_stages(const F& f) {
    const auto [stages, chunks, zero_bubble] = GetParam();
    comm::run_ranks(stages, [&, stages = stages, chunks = chunks,
                             zero_bubble = zero_bubble](const comm::Group& world) {
      ParallelConfig config;
      config.world_size = stages;
      config.pipeline_model_parallel_size = stages;
      const ParallelContext context = make_parallel_context(world, resolved(config));
      open_links(context.links, world.rank(), stages, chunks > 1, Stream{});
      ToyStage stage(world.rank(), stages, chunks, zero_bubble);
      f(stage, context.links);
    });
  }
};

TEST_P(PipelineTest, TrainsAsOneStage) {
  ToyStage want(0, 1, 1);
  want.train({});
  for_stages([&](ToyStage& stage, const PipelineLinks& links) {
    stage.train(links);
    EXPECT_EQ(stage.num_weight_passes,
              GetParam().zero_bubble ? kMicrobatches * GetParam().chunks : 0);
    for (int64_t piece = 0; piece < kPieces; ++piece) {
      if (!stage.has(piece)) continue;
      const auto i = static_cast<size_t>(piece);
      expect_identical(stage.model.weights[i].grad(), want.model.weights[i].grad(),
                       "piece " + std::to_string(piece));
    }
  });
}

TEST_P(PipelineTest, EvaluatesAsOneStage) {
  ToyStage want(0, 1, 1);
  want.evaluate({});
  std::vector<std::map<int64_t, float>> losses(static_cast<size_t>(GetParam().stages));
  for_stages([&](ToyStage& stage, const PipelineLinks& links) {
    stage.evaluate(links);
    losses[static_cast<size_t>(stage.shape.stage)] = stage.losses;
  });
  for (int64_t i = 0; i < kMicrobatches; ++i) {
    float sum = 0;
    for (auto& of_stage : losses) sum += of_stage[i];
    EXPECT_FLOAT_EQ(sum, want.losses[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, PipelineTest,
                         testing::Values(Layout{1, 1}, Layout{2, 1}, Layout{4, 1}, Layout{2, 2},
                                         Layout{2, 1, true}, Layout{4, 1, true},
                                         Layout{2, 2, true}),
                         [](const testing::TestParamInfo<Layout>& layout) {
                           return std::to_string(layout.param.stages) + "x" +
                                  std::to_string(layout.param.chunks) +
                                  (layout.param.zero_bubble ? "zero_bubble" : "");
                         });

// Runs two stages: the first sends two tensors, of which the second uses `used`.
void run_two_stages(size_t used, const Variable& weight, const Variable& other) {
  const Boundary both(2, {.name = "hidden", .shape = kHidden});
  comm::run_ranks(2, [&](const comm::Group& world) {
    ParallelConfig config;
    config.world_size = 2;
    config.pipeline_model_parallel_size = 2;
    const ParallelContext context = make_parallel_context(world, resolved(config));
    open_links(context.links, world.rank(), 2, false, Stream{});
    const PipelineShape shape{world.rank(), 2, 1, 1};
    const ChunkBoundary boundary =
        world.rank() == 0 ? ChunkBoundary{{}, both} : ChunkBoundary{both, {}};
    StageWork work;
    work.forward = [&](const PipelineStep&, const Activations& in) -> ChunkOutput {
      if (world.rank() == 1) return {{}, {half_squares(in[used])}};
      const Variable x(random_normal(kHidden, {.seed = 1}));
      return {{linear(x, weight, Variable()), linear(x, other, Variable())}};
    };
    work.backward = [](const ChunkOutput& output, const Grads& gradients) {
      run_backward(output, gradients, full({}, 1, DType::kFloat32, Stream{}));
    };
    run_pipeline(training_steps(shape), shape, context.links, {&boundary, 1}, Stream{}, work);
  });
}

TEST(PipelineBoundaryTest, ATensorThatNobodyUsesHasAGradientOfZeros) {
  for (const size_t used : {0u, 1u}) {
    const Variable weights[] = {Variable::leaf(random_normal({4, 4}, {.seed = 2})),
                                Variable::leaf(random_normal({4, 4}, {.seed = 3}))};
    run_two_stages(used, weights[0], weights[1]);
    EXPECT_NE(element(weights[used].grad(), 0), 0);
    expect_identical(weights[1 - used].grad(), zeros({4, 4}, DType::kFloat32, Stream{}));
  }
}

TEST(PipelineBoundaryTest, RefusesAnotherShapeThanDeclared) {
  const Variable weight = Variable::leaf(random_normal({5, 4}, {.seed = 2}));
  EXPECT_THROW(run_two_stages(0, weight, weight), ShapeError);
}

}  // namespace
}  // namespace megatron
