#include "megatron/kernels/muon.h"

#include <cstring>

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

constexpr int64_t kSize = 100'003;
// Products may be fused with sums on one device only.
constexpr Tolerance kUpdateTolerance{.relative = 1e-5, .absolute = 1e-6};

using MuonCudaTest = CudaDtypeTest;

Tensor decision(bool is_skipped) {
  Tensor state({kernels::kStepStateBytes}, DType::kUInt8, Stream{});
  const kernels::StepState numbers{.is_skipped = is_skipped ? 1 : 0, .grad_scale = 0.37};
  std::memcpy(state.view().data, &numbers, sizeof numbers);
  return state;
}

TEST_P(MuonCudaTest, MomentumAndUpdateFollowTheCpu) {
  for (const bool is_skipped : {false, true}) {
    for (const bool is_nesterov : {false, true}) {
      for (const int64_t misaligned_by : {0, 1}) {
        const std::vector<Tensor> t = {
            zeros({kSize}, DType::kFloat32, Stream{}), random_normal({kSize}, {.seed = 1}),
            random_normal({kSize}, {.seed = 2, .dtype = GetParam()}),
            GetParam() == DType::kFloat32 ? Tensor() : zeros({kSize}, GetParam(), Stream{}),
            random_normal({kSize}, {.seed = 3})};
        const Tolerance tolerance =
            GetParam() == DType::kFloat32 ? kUpdateTolerance : tolerance_of(GetParam());
        expect_twins(t,
                     [&](std::vector<Tensor>& x, Stream stream) {
                       const Tensor state = decision(is_skipped).to(stream);
                       kernels::muon_momentum(x[0].view(), x[1].view(), x[2].view(), 0.95,
                                              is_nesterov, state.view(), stream);
                       kernels::muon_update(x[3].defined() ? x[3].view() : TensorView{},
                                            x[4].view(), x[0].view(), 1e-2, 0.1, state.view(),
                                            stream);
                     },
                     {.tolerance = tolerance, .misaligned_by = misaligned_by});
      }
    }
  }
}

TEST_P(MuonCudaTest, NormalizeFollowsTheCpu) {
  for (const double squares : {1e5, 0.0}) {
    for (const int64_t misaligned_by : {0, 1}) {
      const std::vector<Tensor> t = {zeros({kSize}, GetParam(), Stream{}),
                                     random_normal({kSize}, {.seed = 1, .stddev = 1e-7f}),
                                     tensor_of(std::vector<double>{squares, 0.0}, {1, 2})};
      expect_twins(t,
                   [](std::vector<Tensor>& x, Stream stream) {
                     kernels::muon_normalize(x[0].view(), x[1].view(), x[2].view(), stream);
                   },
                   {.misaligned_by = misaligned_by});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, MuonCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron
