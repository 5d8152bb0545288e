#include "megatron/kernels/optimizer.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

constexpr int64_t kOptimizerSize = 200'003;

using OptimizerCudaTest = CudaDtypeTest;
class MainParamCudaTest : public CudaTest {};

// Ranges that begin inside vectors, span chunks, and hold one element; three groups. Both tables.
std::vector<Tensor> tables() {
  const std::vector<int64_t> ends = {5, 6, 1'024, 70'001, 131'072, kOptimizerSize};
  const std::vector<int32_t> groups = {0, 2, 1, 0, 2, 1};
  return {tensor_of(ends, {6}), tensor_of(groups, {6})};
}

kernels::GroupRanges ranges_in(const std::vector<Tensor>& t) { return {t[0].view(), t[1].view()}; }

Tensor squares(const Shape& shape, uint64_t seed) {
  Tensor x = random_normal(shape, {.seed = seed});
  for (float& value : x.span<float>()) value *= value;
  return x;
}

// The decision of a step that updates.
Tensor optimizer_decision(double grad_scale) {
  Tensor state({kernels::kStepStateBytes}, DType::kUInt8, Stream{});
  const kernels::StepState numbers{.grad_scale = grad_scale};
  std::memcpy(state.view().data, &numbers, sizeof numbers);
  return state;
}

// Both devices round a few operations; products may be fused with sums on one of them only.
constexpr Tolerance kOptimizerUpdateTolerance{.relative = 1e-5, .absolute = 1e-6};

TEST_P(OptimizerCudaTest, Adam) {
  const std::vector<kernels::AdamNumbers> numbers = {
      {.lr = 1e-2, .weight_decay = 0.1, .bias_correction1 = 0.1, .bias_correction2 = 0.001},
      {.lr = 3e-2, .beta1 = 0.8, .eps = 1e-6, .bias_correction1 = 0.2, .bias_correction2 = 0.3},
      {.lr = 0.0}};
  for (const bool has_copy : {true, false}) {
    for (const int64_t misaligned_by : {0, 1}) {
      std::vector<Tensor> t = tables();
      t.push_back(has_copy ? zeros({kOptimizerSize}, GetParam(), Stream{}) : Tensor());
      t.push_back(random_normal({kOptimizerSize}, {.seed = 1}));
      t.push_back(random_normal({kOptimizerSize}, {.seed = 2}));
      t.push_back(squares({kOptimizerSize}, 3));
      t.push_back(random_normal({kOptimizerSize}, {.seed = 4, .dtype = GetParam()}));
      const Tolerance tolerance = has_copy && GetParam() != DType::kFloat32
                                      ? tolerance_of(GetParam())
                                      : kOptimizerUpdateTolerance;
      expect_twins(t,
                   [&](std::vector<Tensor>& x, Stream stream) {
                     kernels::adam(x[2].defined() ? x[2].view() : TensorView{}, x[3].view(),
                                   x[4].view(), x[5].view(), x[6].view(), ranges_in(x), numbers,
                                   optimizer_decision(0.37).to(stream).view(), stream);
                   },
                   {.tolerance = tolerance, .misaligned_by = misaligned_by});
    }
  }
}

// Both devices agree about moments, but may differ by an ulp, which a rounding to 16 bits can
// widen.
TEST_P(OptimizerCudaTest, AdamWithMomentsOfAllTypes) {
  const std::vector<kernels::AdamNumbers> numbers = {
      {.lr = 1e-2, .weight_decay = 0.1, .bias_correction1 = 0.1, .bias_correction2 = 0.001},
      {.lr = 3e-2, .beta1 = 0.8, .eps = 1e-6, .bias_correction1 = 0.2, .bias_correction2 = 0.3},
      {.lr = 0.0}};
  for (const int64_t misaligned_by : {0, 1}) {
    std::vector<Tensor> t = tables();
    t.push_back(random_normal({kOptimizerSize}, {.seed = 1}));
    t.push_back(random_normal({kOptimizerSize}, {.seed = 2, .dtype = GetParam()}));
    t.push_back(cast(squares({kOptimizerSize}, 3), GetParam()));
    t.push_back(random_normal({kOptimizerSize}, {.seed = 4, .dtype = DType::kBFloat16}));
    const Tolerance tolerance =
        GetParam() == DType::kFloat32 ? kOptimizerUpdateTolerance : tolerance_of(GetParam());
    expect_twins(t,
                 [&](std::vector<Tensor>& x, Stream stream) {
                   kernels::adam({}, x[2].view(), x[3].view(), x[4].view(), x[5].view(),
                                 ranges_in(x), numbers, optimizer_decision(0.37).to(stream).view(),
                                 stream);
                 },
                 {.tolerance = tolerance, .misaligned_by = misaligned_by});
  }
}

// A step with a rate of 0 and one that changes the weights exactly: fp32 arithmetic that no device
// rounds otherwise, so that parameters and remainders agree bit for bit.
TEST_F(MainParamCudaTest, RemaindersFollowTheCpu) {
  const std::vector<kernels::SgdNumbers> numbers = {{.lr = 1.0}, {.lr = 0.0}, {.lr = 0.5}};
  Tensor bits({kOptimizerSize}, DType::kInt16, Stream{});
  for (int64_t i = 0; i < kOptimizerSize; ++i) {
    bits.span<int16_t>()[static_cast<size_t>(i)] = static_cast<int16_t>(i * 7 - 32768);
  }
  for (const int64_t misaligned_by : {0, 1}) {
    std::vector<Tensor> t = tables();
    t.push_back(random_normal({kOptimizerSize}, {.seed = 1, .dtype = DType::kBFloat16}));
    t.push_back(bits);
    t.push_back(zeros({kOptimizerSize}, DType::kFloat32, Stream{}));
    t.push_back(random_normal({kOptimizerSize}, {.seed = 4, .stddev = 1e-3f}));
    t.push_back(zeros({kOptimizerSize}, DType::kFloat32, Stream{}));
    t.push_back(zeros({kOptimizerSize}, DType::kInt16, Stream{}));
    expect_twins(
        t,
        [&](std::vector<Tensor>& x, Stream stream) {
          kernels::sgd_momentum(x[2].view(), x[3].view(), x[4].view(), x[5].view(), ranges_in(x),
                                numbers, optimizer_decision(1.0).to(stream).view(), stream);
          kernels::join_main_params(x[6].view(), x[2].view(), x[3].view(), stream);
          kernels::split_main_params(x[7].view(), x[6].view(), x[2].view(), stream);
        },
        {.tolerance = Tolerance{.relative = 0, .absolute = 0}, .misaligned_by = misaligned_by});
  }
}

// A moment in fp8 on the stream's device.
struct Fp8Moment {
  Tensor codes;
  Tensor exponents;

  Fp8Moment(const Tensor& x, bool is_root, Stream stream)
      : codes(x.shape(), DType::kFloat8E4M3, stream),
        exponents({(x.numel() + kernels::kMomentBlock - 1) / kernels::kMomentBlock}, DType::kUInt8,
                  stream) {
    kernels::encode_moment(moment(), x.view(), {.is_root = is_root}, stream);
  }
  kernels::Moment moment() { return {codes.view(), exponents.view()}; }
};

// bf16 main parameters, rounded at random, of which some are columns of a matrix: the same exact
// arithmetic, so that every bit agrees. With and without a copy in the model.
TEST_F(MainParamCudaTest, RandomRoundingFollowsTheCpu) {
  const std::vector<kernels::SgdNumbers> numbers = {{.lr = 1.0}, {.lr = 0.0}, {.lr = 0.5}};
  const std::vector<int64_t> ends = {3, 64, 70'002, kOptimizerSize};
  const std::vector<int64_t> places = {11,
                                       -7,
                                       0,
                                       1'000,
                                       1'000,  //
                                       12,
                                       3,
                                       5,
                                       61,
                                       61,  //
                                       13,
                                       64,
                                       21,
                                       7,
                                       1'001,  //
                                       14,
                                       70'002,
                                       int64_t{1} << 33,
                                       kOptimizerSize,
                                       kOptimizerSize};
  for (const bool has_copy : {true, false}) {
    for (const int64_t misaligned_by : {0, 1}) {
      std::vector<Tensor> t = tables();
      t.push_back(has_copy ? zeros({kOptimizerSize}, DType::kBFloat16, Stream{}) : Tensor());
      t.push_back(random_normal({kOptimizerSize}, {.seed = 1, .dtype = DType::kBFloat16}));
      t.push_back(zeros({kOptimizerSize}, DType::kFloat32, Stream{}));
      t.push_back(random_normal({kOptimizerSize}, {.seed = 4, .stddev = 1e-3f}));
      t.push_back(tensor_of(ends, {4}));
      t.push_back(tensor_of(places, {4, kernels::kPlaceNumbers}));
      expect_twins(
          t,
          [&](std::vector<Tensor>& x, Stream stream) {
            kernels::GroupRanges ranges = ranges_in(x);
            ranges.rounding = {x[6].view(), x[7].view(), 3};
            kernels::sgd_momentum(x[2].defined() ? x[2].view() : TensorView{}, x[3].view(),
                                  x[4].view(), x[5].view(), ranges, numbers,
                                  optimizer_decision(1.0).to(stream).view(), stream);
          },
          {.tolerance = Tolerance{.relative = 0, .absolute = 0}, .misaligned_by = misaligned_by});
    }
  }
}

// Adam in floats that may differ by an ulp: a number may become the other neighbour.
TEST_F(MainParamCudaTest, AdamWithRandomRoundingFollowsTheCpu) {
  const std::vector<kernels::AdamNumbers> numbers = {
      {.lr = 1e-2, .weight_decay = 0.1}, {.lr = 3e-2, .beta1 = 0.8, .eps = 1e-6}, {.lr = 0.0}};
  for (const bool has_fp8 : {false, true}) {
    std::vector<Tensor> t = tables();
    if (has_fp8) {
      t[0] = tensor_of<int64_t>({64 * 9, kOptimizerSize}, {2});
      t[1] = tensor_of<int32_t>({1, 0}, {2});
    }
    t.push_back(random_normal({kOptimizerSize}, {.seed = 1, .dtype = DType::kBFloat16}));
    t.push_back(random_normal({kOptimizerSize}, {.seed = 2}));
    t.push_back(squares({kOptimizerSize}, 3));
    t.push_back(random_normal({kOptimizerSize}, {.seed = 4, .dtype = DType::kBFloat16}));
    t.push_back(tensor_of<int64_t>({kOptimizerSize}, {1}));
    t.push_back(
        tensor_of<int64_t>({9, 0, 0, kOptimizerSize, kOptimizerSize}, {1, kernels::kPlaceNumbers}));
    expect_twins(t,
                 [&](std::vector<Tensor>& x, Stream stream) {
                   kernels::GroupRanges ranges = ranges_in(x);
                   ranges.rounding = {x[6].view(), x[7].view(), 1};
                   const Tensor keys = tensor_of<int32_t>({11, -3}, {2}).to(stream);
                   if (has_fp8) ranges.keys = keys.view();
                   Fp8Moment m(x[3], false, stream);
                   kernels::adam({}, x[2].view(), has_fp8 ? m.moment() : x[3].view(), x[4].view(),
                                 x[5].view(), ranges, numbers,
                                 optimizer_decision(0.37).to(stream).view(), stream);
                 },
                 {.tolerance = tolerance_of(DType::kBFloat16)});
  }
}

TEST_F(MainParamCudaTest, CodesOfMomentsFollowTheCpu) {
  for (const bool is_second : {false, true}) {
    const kernels::MomentCode code = {.scale = 0x1p15f, .is_root = is_second};
    for (const int64_t misaligned_by : {0, 1}) {
      std::vector<Tensor> t = {squares({kOptimizerSize}, 1),
                               zeros({kOptimizerSize}, DType::kFloat16, Stream{}),
                               zeros({kOptimizerSize}, DType::kFloat32, Stream{})};
      expect_twins(
          t,
          [&](std::vector<Tensor>& x, Stream stream) {
            kernels::encode_moment(x[1].view(), x[0].view(), code, stream);
            kernels::decode_moment(x[2].view(), x[1].view(), code, stream);
          },
          {.tolerance = Tolerance{.relative = 0, .absolute = 0}, .misaligned_by = misaligned_by});
    }
  }
}

TEST_F(MainParamCudaTest, CodesOfMomentsInFp8FollowTheCpu) {
  for (const bool is_second : {false, true}) {
    std::vector<Tensor> t = {
        is_second ? squares({kOptimizerSize}, 1) : random_normal({kOptimizerSize}, {.seed = 1}),
        zeros({kOptimizerSize}, DType::kFloat32, Stream{})};
    expect_twins(t,
                 [&](std::vector<Tensor>& x, Stream stream) {
                   Fp8Moment codes(x[0], is_second, stream);
                   kernels::decode_moment(x[1].view(), codes.moment(), {.is_root = is_second},
                                          stream);
                 },
                 {.tolerance = Tolerance{.relative = 0, .absolute = 0}});
  }
}

// Devices that differ by an ulp may choose another neighbour: an eighth of m or of sqrt(v).
TEST_F(MainParamCudaTest, AdamWithMomentsInFp8FollowsTheCpu) {
  const std::vector<kernels::AdamNumbers> numbers = {
      {.lr = 1e-2, .weight_decay = 0.1, .fp16_scale = 4.0, .rounding_seed = 5},
      {.lr = 3e-2, .beta1 = 0.8, .eps = 1e-6, .fp16_scale = 4.0, .rounding_seed = 5}};
  for (const DType other : {DType::kFloat8E4M3, DType::kFloat16, DType::kFloat32}) {
    std::vector<Tensor> t = {
        tensor_of<int64_t>({64 * 9, kOptimizerSize}, {2}),
        tensor_of<int32_t>({1, 0}, {2}),
        random_normal({kOptimizerSize}, {.seed = 1}),
        random_normal({kOptimizerSize}, {.seed = 2}),
        squares({kOptimizerSize}, 3),
        random_normal({kOptimizerSize}, {.seed = 4, .dtype = DType::kBFloat16})};
    // Moments are of the size 1: the last code below 2^-6 of a block's largest is 2^-9 / 224 of it.
    expect_twins(t,
                 [&](std::vector<Tensor>& x, Stream stream) {
                   Fp8Moment v(x[4], true, stream);
                   Fp8Moment m(x[3], false, stream);
                   const kernels::MomentCode code = {.scale = 4.0f};
                   Tensor wide_m = other == DType::kFloat8E4M3 ? Tensor() : cast(x[3], other);
                   if (other == DType::kFloat16) {
                     kernels::encode_moment(wide_m.view(), x[3].view(), code, stream);
                   }
                   const kernels::Moment first = wide_m.defined() ? wide_m.view() : m.moment();
                   kernels::GroupRanges ranges = ranges_in(x);
                   const Tensor keys = tensor_of<int32_t>({11, -3}, {2}).to(stream);
                   ranges.keys = keys.view();
                   kernels::adam({}, x[2].view(), first, v.moment(), x[5].view(), ranges, numbers,
                                 optimizer_decision(0.37).to(stream).view(), stream);
                   if (other == DType::kFloat32) {
                     copy_into(x[3], wide_m);
                   } else {
                     kernels::decode_moment(x[3].view(), first, code, stream);
                   }
                   kernels::decode_moment(x[4].view(), v.moment(), {.is_root = true}, stream);
                 },
                 {.tolerance = Tolerance{.relative = 0.27, .absolute = 1e-3}});
  }
}

TEST_P(OptimizerCudaTest, SgdWithMomentum) {
  const std::vector<kernels::SgdNumbers> numbers = {
      {.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1}, {.lr = 0.1}, {.momentum = 0.5}};
  std::vector<Tensor> t = tables();
  t.push_back(GetParam() == DType::kFloat32 ? Tensor()
                                            : zeros({kOptimizerSize}, GetParam(), Stream{}));
  t.push_back(random_normal({kOptimizerSize}, {.seed = 1}));
  t.push_back(random_normal({kOptimizerSize}, {.seed = 2}));
  t.push_back(random_normal({kOptimizerSize}, {.seed = 3, .dtype = GetParam()}));
  const Tolerance tolerance =
      GetParam() == DType::kFloat32 ? kOptimizerUpdateTolerance : tolerance_of(GetParam());
  expect_twins(t,
               [&](std::vector<Tensor>& x, Stream stream) {
                 kernels::sgd_momentum(x[2].defined() ? x[2].view() : TensorView{}, x[3].view(),
                                       x[4].view(), x[5].view(), ranges_in(x), numbers,
                                       optimizer_decision(0.37).to(stream).view(), stream);
               },
               {.tolerance = tolerance});
}

// All moments and gradients have one sign, so that no rounding
// turns a sign.
TEST_P(OptimizerCudaTest, Lion) {
  const std::vector<kernels::LionNumbers> numbers = {
      {.lr = 1e-2, .weight_decay = 0.1}, {.lr = 0.1, .beta1 = 0.5}, {.beta2 = 0.5}};
  for (const float sign : {1.0f, -1.0f}) {
    for (const DType moments : {DType::kFloat32, DType::kBFloat16}) {
      Tensor m = squares({kOptimizerSize}, 2);
      Tensor g = squares({kOptimizerSize}, 3);
      for (float& x : m.span<float>()) x *= sign;
      for (float& x : g.span<float>()) x *= sign;
      std::vector<Tensor> t = tables();
      t.push_back(GetParam() == DType::kFloat32 ? Tensor()
                                                : zeros({kOptimizerSize}, GetParam(), Stream{}));
      t.push_back(random_normal({kOptimizerSize}, {.seed = 1}));
      t.push_back(cast(m, moments));
      t.push_back(cast(g, GetParam()));
      const bool is_fp32 = GetParam() == DType::kFloat32 && moments == DType::kFloat32;
      const Tolerance tolerance =
          is_fp32 ? kOptimizerUpdateTolerance : tolerance_of(DType::kBFloat16);
      expect_twins(t,
                   [&](std::vector<Tensor>& x, Stream stream) {
                     kernels::lion(x[2].defined() ? x[2].view() : TensorView{}, x[3].view(),
                                   x[4].view(), x[5].view(), ranges_in(x), numbers,
                                   optimizer_decision(0.37).to(stream).view(), stream);
                   },
                   {.tolerance = tolerance});
    }
  }
}

TEST_P(OptimizerCudaTest, SquaresAndZeros) {
  for (const int64_t misaligned_by : {0, 1}) {
    Tensor values = random_normal({kOptimizerSize}, {.seed = 5});
    for (const size_t i : {0, 5, 1'000, 70'001, 200'002}) values.span<float>()[i] = -0.0f;
    std::vector<Tensor> t = tables();
    t.push_back(cast(values, GetParam()));
    t.push_back(zeros({3, 2}, DType::kFloat64, Stream{}));
    expect_twins(t,
                 [](std::vector<Tensor>& x, Stream stream) {
                   Tensor scratch(kernels::measure_scratch_shape(kOptimizerSize, 3),
                                  DType::kFloat64, stream);
                   kernels::squares_and_zeros(x[3].view(), x[2].view(), ranges_in(x),
                                              scratch.view(), stream);
                 },
                 {.tolerance = Tolerance{.relative = 1e-12}, .misaligned_by = misaligned_by});
  }
}

TEST_P(OptimizerCudaTest, SquaresAreNotFiniteWhenAnElementIsNot) {
  for (const float odd_one :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Tensor values = full({kOptimizerSize}, 2.0f, DType::kFloat32, Stream{});
    values.span<float>()[100'000] = odd_one;
    const Tensor x = cast(values, GetParam()).to(stream());
    const std::vector<Tensor> t = tables();
    const std::vector<Tensor> on_gpu = {t[0].to(stream()), t[1].to(stream())};
    Tensor found({3, 2}, DType::kFloat64, stream());
    Tensor scratch(kernels::measure_scratch_shape(kOptimizerSize, 3), DType::kFloat64, stream());
    kernels::squares_and_zeros(found.view(), x.view(), ranges_in(on_gpu), scratch.view(), stream());
    const Tensor here = found.to(Stream{});
    EXPECT_TRUE(std::isfinite(element(here, 0)));
    EXPECT_TRUE(std::isfinite(element(here, 2)));
    EXPECT_FALSE(std::isfinite(element(here, 4)));  // 100'000 is of group 2
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, OptimizerCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron
