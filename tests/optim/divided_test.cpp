// ZeRO stages and instances of the optimizer: a small chain of layers with tied embeddings, trained
// by several ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "megatron/autograd/recompute.h"
#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "megatron/device/allocator.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/linear.h"
#include "megatron/optim/gradient_reduction.h"
#include "megatron/optim/optimizer.h"
#include "tests/comm/counting_group.h"
#include "tests/parallel/layouts.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 32;
constexpr int64_t kRows = 40;
constexpr int64_t kLayers = 6;
constexpr int64_t kMicrobatches = 8;  // of all ranks, in an iteration
constexpr int64_t kLayerSize = kHidden * kHidden + kHidden;

struct Chain {
  explicit Chain(Stream stream) {
    add("embedding", {kRows, kHidden}, stream);
    parameters.back().has_decoupled_lr = true;
    for (int64_t i = 0; i < kLayers; ++i) {
      add("weight" + std::to_string(i), {kHidden, kHidden}, stream);
      add("bias" + std::to_string(i), {kHidden}, stream);
    }
  }

  void add(const std::string& name, const Shape& shape, Stream stream) {
    OptimizedParameter& p = parameters.emplace_back();
    p.name = name;
    const Tensor first = random_normal(shape, {.seed = parameters.size(), .stddev = 0.2f});
    Tensor there(shape, DType::kFloat32, stream);
    copy_into(there, first);
    p.variable = Variable::leaf(there);
    p.has_weight_decay = shape.rank() > 1;
  }

  Variable logits(const Tensor& ids, RandomState& random, bool recomputes) const {
    Variable x = embedding(parameters[0].variable, {ids});
    for (size_t i = 0; i < kLayers; ++i) {
      const auto layer = [this, i](const Variable& in) {
        return linear(in, parameters[1 + 2 * i].variable, parameters[2 + 2 * i].variable);
      };
      x = recomputes ? recompute(layer, x, random) : layer(x);
    }
    return linear(x, parameters[0].variable, Variable());
  }

  std::vector<OptimizedParameter> parameters;
};

struct Course {
  int ranks = 1;
  int stage = 0;
  bool recomputes = false;
  bool offloads = false;
  int64_t bucket_size = kLayerSize;
  int instances = 1;
  bool overlaps = false;
};
void PrintTo(const Course& run, std::ostream* out) {
  *out << run.ranks << " ranks, stage " << run.stage << (run.recomputes ? ", recompute" : "")
       << (run.offloads ? ", offload" : "") << ", buckets of " << run.bucket_size << ", instances "
       << run.instances << (run.overlaps ? ", overlapped" : "");
}

int64_t at(const std::array<int64_t, kNumMemoryCategories>& bytes, MemoryCategory category) {
  return bytes[static_cast<size_t>(category)];
}

// The CPU as the device of one rank: with a pool of its own.
Stream stream_of(const comm::Group& world) {
  return Stream{Device{DeviceType::kCpu, world.rank() + 1}};
}

// A rank's part of a run.
class Training {
 public:
  Training(const Course& run, const comm::Group& world)
      : run_(run),
        rank_(world.rank()),
        chain_(stream_of(world)),
        parallel_(data_parallel(world, run.instances)),
        flat_(counted(chain_.parameters, parallel_), options(run), parallel_) {
    reduction_.emplace(flat_, comm::Group(),
                       GradientReductionOptions{.overlap_grad_reduce = run.overlaps,
                                                .overlap_param_gather = run.overlaps});
    OptimizerConfig config;
    config.optimizer_cpu_offload = run.offloads;
    const bool is_shared = run.stage > 0;
    optimizer_.emplace(flat_, config, [world, is_shared](TensorView numbers, Stream on) {
      if (is_shared) comm::all_reduce(numbers, comm::Reduce::kSum, world, on);
    });
  }

  void iterate(int64_t iteration) {
    flat_.zero_grads();
    const int64_t own = kMicrobatches / run_.ranks;
    reduction_->begin(own);
    for (int64_t m = 0; m < own; ++m) {
      const auto seed = static_cast<uint64_t>(100 * iteration + m * run_.ranks + rank_);
      const Tensor ids = random_ids({2, 8}, kRows, seed);
      const Variable y = chain_.logits(ids, random_, run_.recomputes);
      Tensor dy(y.shape(), DType::kFloat32, y.stream());
      copy_into(dy, random_normal(y.shape(), {.seed = seed}));
      backward(y, dy);
    }
    reduction_->finish();
    const StepResult result = optimizer_->step({.lr = 1e-2, .weight_decay = 0.1});
    norms.push_back(*result.grad_norm);
    reduction_->gather_parameters();
  }

  // Every rank calls it.
  std::vector<Tensor> weights() const {
    std::vector<Tensor> all;
    for (const OptimizedParameter& p : flat_.parameters()) {
      all.push_back(copied(p.variable.data()));
    }
    return all;
  }

  FlatParameters& flat() { return flat_; }
  GradientReduction& reduction() { return *reduction_; }
  const Chain& chain() const { return chain_; }
  std::vector<double> norms;

 private:
  // One instance counts in the norm.
  static std::vector<OptimizedParameter> counted(std::vector<OptimizedParameter> parameters,
                                                 const ParallelContext& parallel) {
    for (OptimizedParameter& parameter : parameters) {
      parameter.counts_in_norm = parallel.is_first_along(MeshAxis::kInstance);
    }
    return parameters;
  }
  static FlatParametersOptions options(const Course& run) {
    FlatParametersOptions options;
    options.layout.bucket_size = run.stage > 1 || run.overlaps ? run.bucket_size : 0;
    options.divides_state = run.stage > 0;
    options.divides_gradients = run.stage > 1;
    options.divides_parameters = run.stage > 2;
    return options;
  }

  const Course run_;
  const int rank_;
  Chain chain_;
  ParallelContext parallel_;
  FlatParameters flat_;
  std::optional<GradientReduction> reduction_;
  std::optional<Optimizer> optimizer_;
  RandomState random_{1};
};

struct Trained {
  std::vector<Tensor> weights;
  std::vector<double> norms;
};

Trained trained(const Course& run) {
  Trained result;
  comm::run_ranks(run.ranks, [&](const comm::Group& world) {
    Training training(run, world);
    for (int64_t i = 1; i <= 4; ++i) training.iterate(i);
    const std::vector<Tensor> weights = training.weights();
    if (world.rank() == 0) result = {weights, training.norms};
  });
  return result;
}

void expect_equal(const Trained& got, const Trained& want) {
  ASSERT_EQ(got.weights.size(), want.weights.size());
  for (size_t i = 0; i < want.weights.size(); ++i) {
    expect_close(got.weights[i], want.weights[i], {.relative = 1e-4, .absolute = 1e-5},
                 "parameter " + std::to_string(i));
  }
  for (size_t i = 0; i < want.norms.size(); ++i) {
    EXPECT_NEAR(got.norms[i], want.norms[i], 1e-5 * want.norms[i]);
  }
}

class DividedTest : public testing::TestWithParam<Course> {};

TEST_P(DividedTest, TrainsAsOneRank) { expect_equal(trained(GetParam()), trained({})); }

std::vector<Course> runs() {
  std::vector<Course> all;
  for (const int ranks : {1, 2, 4}) {
    for (const int stage : {1, 2, 3}) {
      for (const bool recomputes : {false, true}) {
        for (const int64_t bucket_size : {int64_t{100}, kLayerSize, 3 * kLayerSize, int64_t{0}}) {
          all.push_back({ranks, stage, recomputes, recomputes, bucket_size});
        }
      }
    }
  }
  for (const auto& [ranks, instances] : {std::pair{2, 2}, {4, 2}, {8, 2}, {8, 4}}) {
    for (const int stage : {1, 2, 3}) {
      for (const bool overlaps : {false, true}) {
        all.push_back({.ranks = ranks,
                       .stage = stage,
                       .offloads = overlaps,
                       .bucket_size = 3 * kLayerSize,
                       .instances = instances,
                       .overlaps = overlaps});
      }
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Stages, DividedTest, testing::ValuesIn(runs()));

// The update on the host is the same arithmetic.
TEST(DividedBuffersTest, OffloadChangesNoBit) {
  const Trained want = trained({.ranks = 2, .stage = 2});
  const Trained got = trained({.ranks = 2, .stage = 2, .offloads = true});
  for (size_t i = 0; i < want.weights.size(); ++i) {
    expect_identical(got.weights[i], want.weights[i], "parameter " + std::to_string(i));
  }
}

// Sums have a fixed order, within an instance and across them.
TEST(InstancesTest, EveryRunHasTheSameBits) {
  for (const int stage : {1, 2, 3}) {
    const Course run{.ranks = 4, .stage = stage, .instances = 2};
    const Trained want = trained(run);
    Course overlapped = run;
    overlapped.overlaps = true;
    for (const Course& again : {run, overlapped}) {
      const Trained got = trained(again);
      for (size_t i = 0; i < want.weights.size(); ++i) {
        expect_identical(got.weights[i], want.weights[i], "parameter " + std::to_string(i));
      }
    }
  }
}

// Every rank has the bits of the first one.
TEST(InstancesTest, InstancesStayEqual) {
  const Course run{.ranks = 8, .stage = 2, .instances = 4};
  std::array<std::vector<Tensor>, 8> weights;
  comm::run_ranks(run.ranks, [&](const comm::Group& world) {
    Training training(run, world);
    for (int64_t i = 1; i <= 3; ++i) training.iterate(i);
    weights[static_cast<size_t>(world.rank())] = training.weights();
  });
  for (const std::vector<Tensor>& of_rank : weights) {
    for (size_t i = 0; i < of_rank.size(); ++i) {
      expect_identical(of_rank[i], weights[0][i], "parameter " + std::to_string(i));
    }
  }
}

// Microbatches are summed and parameters gathered within an instance. Once in an iteration each
// rank sends its share of the gradients to the other instance.
TEST(InstancesTest, OnlySharesOfGradientsLeaveAnInstance) {
  for (const int stage : {1, 2, 3}) {
    comm::CountedBytes sent;
    const Course run{.ranks = 4, .stage = stage, .instances = 2};
    Training training(run, comm::counting_group(3, run.ranks, sent));
    sent.clear();
    training.iterate(1);
    const int64_t share = training.flat().buffers()[0].layout.numel * 4 / 2;
    const auto within = [&](comm::Operation operation) {
      return sent[{"data of an instance", operation}];
    };
    EXPECT_EQ((sent[{"instances", comm::Operation::kAllReduce}]), share);
    EXPECT_EQ(within(comm::Operation::kReduceScatter), stage == 1 ? share : 2 * share);
    if (stage < 3) {
      EXPECT_EQ(within(comm::Operation::kAllGather), share);
    } else {
      EXPECT_GE(within(comm::Operation::kAllGather), 2 * share);  // of two microbatches
    }
    for (const auto& [call, bytes] : sent) {
      if (call.first == "world") {
        EXPECT_LE(bytes, 64) << "norms";
      } else {
        EXPECT_TRUE(bytes == 0 || call.first == "instances" || call.first == "data of an instance")
            << call.first;
      }
    }
  }
}

// Besides the shares: gradients of the embedding, of the layer that goes backward and of the one
// that is summed; parameters of the layer in use, of the last one and of the next one.
TEST(DividedBuffersTest, LittleMoreThanTheSharesExists) {
  for (const int instances : {1, 2}) {
    const Course run{.ranks = 4, .stage = 3, .recomputes = instances == 2, .instances = instances};
    const int shares = run.ranks / instances;
    comm::run_ranks(run.ranks, [&](const comm::Group& world) {
      CachingAllocator& allocator = allocator_of(stream_of(world).device);
      allocator.empty_cache();  // a cached block that is a little too large would be taken
      Training training(run, world);
      const FlatLayout& layout = training.flat().buffers()[0].layout;
      ASSERT_EQ(layout.buckets.size(), kLayers + 1u);
      const int64_t all = layout.numel * 4;
      const int64_t layer = (layout.buckets.front().end - layout.buckets.front().begin) * 4;
      const int64_t table = (layout.buckets.back().end - layout.buckets.back().begin) * 4;
      const auto now = allocator.stats().by_category;
      EXPECT_EQ(at(now, MemoryCategory::kParameters), all / shares);
      EXPECT_EQ(at(now, MemoryCategory::kGradients), all / shares);
      const int64_t moments = at(now, MemoryCategory::kOptimizer);
      EXPECT_GE(moments, 2 * all / shares);
      EXPECT_LE(moments, 2 * all / shares + 8192);  // and tables

      training.iterate(1);
      allocator.reset_peaks();
      for (int64_t i = 2; i <= 4; ++i) training.iterate(i);
      const auto peak = allocator.stats().peak_by_category;
      EXPECT_EQ(at(peak, MemoryCategory::kGradients), all / shares + 2 * layer + table);
      EXPECT_LE(at(peak, MemoryCategory::kParameters), all / shares + 3 * layer + table);
      const auto after = allocator.stats().by_category;
      EXPECT_EQ(at(after, MemoryCategory::kParameters), all / shares);
      EXPECT_EQ(at(after, MemoryCategory::kGradients), all / shares);
    });
  }
}

// A pass that does not go backward, and one that fails, leave nothing that the next one counts.
TEST(DividedBuffersTest, PassesWithoutAnEndDoNoHarm) {
  const Course run{.ranks = 2, .stage = 3};
  const Trained want = trained(run);
  Trained got;
  comm::run_ranks(run.ranks, [&](const comm::Group& world) {
    Training training(run, world);
    RandomState random(1);
    const Tensor ids = random_ids({2, 8}, kRows, 1);
    for (int64_t i = 1; i <= 4; ++i) {
      (void)training.chain().logits(ids, random, false);  // its graph is dropped
      {
        const NoGrad no_grad;
        (void)training.chain().logits(ids, random, false);
      }
      training.reduction().begin(1);
      Variable half = embedding(training.flat().parameters()[0].variable, {ids});
      backward(half);  // gradients that no update uses
      training.iterate(i);
    }
    const std::vector<Tensor> weights = training.weights();
    if (world.rank() == 0) got = {weights, training.norms};
  });
  expect_equal(got, want);
}

}  // namespace
}  // namespace megatron
