#include "megatron/kernels/output_gate.h"

#include <utility>
#include <vector>

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

class OutputGateCudaTest : public CudaDtypeTest {};

TEST_P(OutputGateCudaTest, IsThatOfTheCpu) {
  for (const Shape& shape : {Shape{1}, Shape{7, 3, 33}, Shape{5, 2, 256}}) {
    const auto random = [&](uint64_t seed) {
      return random_normal(shape, {.seed = seed, .dtype = GetParam()});
    };
    for (const int64_t misaligned_by : {0, 1}) {
      expect_twins({random(1), random(2), random(3), random(4), random(5), random(6)},
                   [](std::vector<Tensor>& t, Stream stream) {
                     const auto in = [&](size_t i) { return std::as_const(t[i]).view(); };
                     kernels::output_gate_forward(t[0].view(), in(1), in(2), stream);
                     kernels::output_gate_backward(t[3].view(), t[4].view(), in(5), in(1), in(2),
                                                   stream);
                   },
                   {.misaligned_by = misaligned_by});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, OutputGateCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron
