// --fp8-param-gather: ranks that gather weights in FP8 have what ranks with whole weights round.
#include "megatron/optim/fp8_buckets.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/comm/transport.h"
#include "megatron/device/allocator.h"
#include "megatron/optim/gradient_reduction.h"
#include "megatron/optim/optimizer.h"
#include "megatron/parallel/fp8_scaling.h"
#include "megatron/parallel/tensor/linear.h"
#include "tests/parallel/layouts.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kIn = 144;  // a square and a part of one
constexpr int64_t kOut = 144;
constexpr int64_t kFp8BucketsLayers = 5;
constexpr int64_t kWeights = kFp8BucketsLayers * kIn * kOut;

// Layers in FP8, and one without, each with a bias.
class Layers final : public Module {
 public:
  Layers(const Fp8Config& fp8, Stream stream) {
    for (int64_t i = 0; i <= kFp8BucketsLayers; ++i) {
      LinearOptions options{.init = Init::normal(0.2)};
      if (i < kFp8BucketsLayers) options.fp8 = fp8;
      all.push_back(std::make_unique<ColumnParallelLinear>(
          kIn, kOut, TensorParallel{}, options,
          Placement{.dtype = DType::kBFloat16, .stream = stream}));
      add_child(std::to_string(i), *all.back());
    }
    initialize(*this, 7);
  }

  std::vector<std::unique_ptr<ColumnParallelLinear>> all;
};

struct Fp8BucketsCourse {
  Fp8Recipe recipe = Fp8Recipe::kDelayed;
  int ranks = 2;
  int stage = 1;
  bool overlaps = false;
  int64_t bucket_size = 0;
};
void PrintTo(const Fp8BucketsCourse& course, std::ostream* out) {
  const char* const names[] = {"delayed, ", "tensorwise, ", "blockwise, "};
  *out << names[static_cast<int>(course.recipe)] << course.ranks << " ranks, stage " << course.stage
       << (course.overlaps ? ", overlap" : "") << ", buckets of " << course.bucket_size;
}

// The CPU as the device of one rank: with a pool of its own.
Stream fp8_buckets_stream_of(const comm::Group& world) {
  return Stream{Device{DeviceType::kCpu, world.rank() + 1}};
}

// A rank's part of a run, whose gradients are random numbers.
class Fp8BucketsTraining {
 public:
  Fp8BucketsTraining(const Fp8BucketsCourse& course, bool gathers, const comm::Group& world)
      : fp8_{.format = Fp8Format::kHybrid, .recipe = course.recipe, .amax_history_len = 2},
        stream_(fp8_buckets_stream_of(world)),
        parallel_(data_parallel(world)),
        layers_(fp8_, stream_) {
    std::vector<OptimizedParameter> parameters = optimized_parameters(layers_);
    if (gathers) find_fp8_layers(parameters, {&layers_});
    FlatParametersOptions options{.accumulate_allreduce_grads_in_fp32 = true,
                                  .divides_state = true,
                                  .divides_gradients = course.stage == 2};
    options.layout.bucket_size = course.bucket_size;
    flat_.emplace(std::move(parameters), options, parallel_);
    std::vector<Fp8Bucket> buckets = fp8_buckets(*flat_);
    EXPECT_EQ(buckets.empty(), !gathers || world.size() == 1);
    scaling_.emplace(std::vector<const Module*>{&layers_}, fp8_, parallel_, stream_,
                     buckets.empty() ? nullptr
                                     : std::make_unique<Fp8Gather>(std::move(buckets),
                                                                   course.overlaps, stream_));
    reduction_.emplace(*flat_, comm::Group(),
                       GradientReductionOptions{.overlap_param_gather = course.overlaps});
    OptimizerConfig config;
    config.clip_grad = 0;
    optimizer_.emplace(*flat_, config, [world](TensorView numbers, Stream on) {
      comm::all_reduce(numbers, comm::Reduce::kSum, world, on);
    });
  }

  void iterate(int64_t iteration) {
    flat_->zero_grads();
    reduction_->begin(1);
    scaling_->quantize_weights();
    for (size_t i = 0; i < layers_.all.size(); ++i) {
      const uint64_t seed = 1000 * static_cast<uint64_t>(iteration) + i;
      const Tensor input = random_normal({16, 1, kIn}, {.seed = seed});
      const Tensor gradient = random_normal({16, 1, kOut}, {.seed = seed + 100});
      const Variable x(cast(input, DType::kBFloat16).to(stream_));
      const Variable y = layers_.all[i]->forward(x);
      backward(y, cast(gradient, DType::kBFloat16).to(stream_));
    }
    scaling_->finish_iteration(iteration);
    reduction_->finish();
    optimizer_->step({.lr = 1e-2, .weight_decay = 0.1});
    reduction_->gather_parameters();
  }

  // What products read of the weights, as of now.
  std::vector<Tensor> weights() {
    const NoGrad no_grad;
    scaling_->quantize_weights();
    std::vector<Tensor> all;
    for (size_t i = 0; i < kFp8BucketsLayers; ++i) {
      const Fp8Matrix& weight = layers_.all[i]->fp8()->weight();
      for (const Tensor& part :
           {weight.rows, weight.columns, weight.row_inverses, weight.column_inverses}) {
        all.push_back(copied(part));
      }
    }
    return all;
  }

 private:
  const Fp8Config fp8_;
  const Stream stream_;
  const ParallelContext parallel_;
  Layers layers_;
  std::optional<FlatParameters> flat_;
  std::optional<Fp8Scaling> scaling_;
  std::optional<GradientReduction> reduction_;
  std::optional<Optimizer> optimizer_;
};

struct Fp8BucketsTrained {
  std::vector<Tensor> weights;
  std::map<DType, int64_t> gathered;  // elements that a rank gave, of four iterations
  int64_t parameter_bytes = 0;
};

Fp8BucketsTrained fp8_buckets_trained(const Fp8BucketsCourse& course, bool gathers) {
  Fp8BucketsTrained result;
  comm::run_ranks(course.ranks, [&](const comm::Group& world) {
    allocator_of(fp8_buckets_stream_of(world).device).empty_cache();
    Fp8BucketsTraining training(course, gathers, world);
    for (int64_t i = 0; i < 4; ++i) training.iterate(i);
    Fp8BucketsTrained own;
    for (const auto& entry : world.transport().context().recorder.entries()) {
      const bool is_gather = entry.call.operation == comm::Operation::kAllGather;
      if (is_gather) own.gathered[entry.call.dtype] += entry.call.count;
    }
    const MemoryStats stats = allocator_of(fp8_buckets_stream_of(world).device).stats();
    own.parameter_bytes = stats.by_category[static_cast<size_t>(MemoryCategory::kParameters)];
    own.weights = training.weights();
    if (world.rank() == course.ranks - 1) result = std::move(own);
  });
  return result;
}

class Fp8BucketsTest : public testing::TestWithParam<Fp8BucketsCourse> {};

// The other ranks' parts, too: what is compared is all that the last rank has.
TEST_P(Fp8BucketsTest, GatheringInFp8ChangesNoBit) {
  const Fp8BucketsTrained want = fp8_buckets_trained(GetParam(), false);
  const Fp8BucketsTrained got = fp8_buckets_trained(GetParam(), true);
  ASSERT_EQ(got.weights.size(), want.weights.size());
  for (size_t i = 0; i < want.weights.size(); ++i) {
    expect_identical(got.weights[i], want.weights[i], "tensor " + std::to_string(i));
  }
}

std::vector<Fp8BucketsCourse> courses() {
  std::vector<Fp8BucketsCourse> all;
  for (const Fp8Recipe recipe :
       {Fp8Recipe::kDelayed, Fp8Recipe::kTensorwise, Fp8Recipe::kBlockwise}) {
    for (const int ranks : {1, 2, 3}) {
      for (const bool overlaps : {false, true}) {
        all.push_back({recipe, ranks, 1, overlaps});
        all.push_back({recipe, ranks, 1, overlaps, kIn * kOut});
        all.push_back({recipe, ranks, 2, overlaps, 3 * kIn * kOut});
      }
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Courses, Fp8BucketsTest, testing::ValuesIn(courses()));

// A rank gives its share in one byte an element instead of two, and keeps no more than that share
// in 16 bits.
TEST(Fp8ParamGatherTest, AWeightTakesAByteInPlaceOfTwo) {
  for (const int ranks : {2, 4}) {
    const Fp8BucketsCourse course{.ranks = ranks};
    const Fp8BucketsTrained wide = fp8_buckets_trained(course, false);
    const Fp8BucketsTrained narrow = fp8_buckets_trained(course, true);
    const int64_t unit = kFp8ShareUnit * ranks;
    const int64_t share = (kWeights + unit - 1) / unit * unit / ranks;
    EXPECT_EQ(narrow.gathered.at(DType::kFloat8E4M3), 4 * share);
    const auto less = static_cast<double>(wide.gathered.at(DType::kBFloat16) -
                                          narrow.gathered.at(DType::kBFloat16));
    EXPECT_NEAR(less, 4.0 * kWeights / ranks, 4 * 64) << "but for padding";
    const auto saved = static_cast<double>(wide.parameter_bytes - narrow.parameter_bytes);
    const double padding = (2.0 + ranks) * static_cast<double>(share - kWeights / ranks);
    EXPECT_NEAR(saved, 2.0 * kWeights * (1 - 1.0 / ranks), padding + 512 * kFp8BucketsLayers);
  }
}

}  // namespace
}  // namespace megatron
