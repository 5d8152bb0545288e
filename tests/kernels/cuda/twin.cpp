#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

// Elements of zeros on either side of a guarded tensor; a multiple of 16 bytes of any dtype.
constexpr int64_t kGuard = 64;

// A copy of x on the GPU between two stretches of zeros.
struct Guarded {
  Tensor all;  // [kGuard + misaligned_by + numel + kGuard]
  Tensor inside;
};

Tensor inside_of(const Tensor& all, const Shape& shape, int64_t misaligned_by) {
  return all.slice(kGuard + misaligned_by, shape.numel()).reshape(shape);
}

Guarded guarded(const Tensor& x, int64_t misaligned_by, Stream stream) {
  const Tensor host = zeros({x.numel() + misaligned_by + 2 * kGuard}, x.dtype(), Stream{});
  Tensor inside = inside_of(host, x.shape(), misaligned_by);
  copy_into(inside, x);
  const Tensor all = host.to(stream);
  return {all, inside_of(all, x.shape(), misaligned_by)};
}

bool is_zero(const Tensor& x) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (element(x, i) != 0) return false;
  }
  return true;
}

void expect_agreement(const Tensor& got, const Tensor& want, std::optional<Tolerance> tolerance,
                      const std::string& what) {
  if (!is_floating(want.dtype())) {
    expect_identical(got, want, what);
  } else if (tolerance) {
    expect_close(got, want, *tolerance, what);
  } else {
    expect_close(got, want, what);
  }
}

}  // namespace

void CudaTest::expect_twins(const std::vector<Tensor>& tensors, const Run& run,
                            const TwinOptions& options) const {
  std::vector<Tensor> want;
  std::vector<Guarded> buffers;
  std::vector<Tensor> got;
  for (const Tensor& x : tensors) {
    want.push_back(x.defined() ? copied(x) : x);
    buffers.push_back(x.defined() ? guarded(x, options.misaligned_by, stream()) : Guarded{});
    got.push_back(buffers.back().inside);
  }
  run(want, Stream{});
  run(got, stream());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    const std::string what = options.what + " tensor " + std::to_string(i);
    const Tensor all = buffers[i].all.to(Stream{});
    const Tensor result = inside_of(all, tensors[i].shape(), options.misaligned_by);
    expect_agreement(result, want[i], options.tolerance, what);
    const int64_t before = kGuard + options.misaligned_by;
    EXPECT_TRUE(is_zero(all.slice(0, before))) << what << ": elements before it were written";
    EXPECT_TRUE(is_zero(all.slice(before + result.numel(), kGuard)))
        << what << ": elements after it were written";
  }
}

void CudaTest::expect_as_in_fp32(const std::vector<Tensor>& tensors, const Run& run,
                                 const std::vector<Tolerance>& tolerances,
                                 const std::string& what) const {
  std::vector<Tensor> narrow, wide;
  for (const Tensor& x : tensors) {
    narrow.push_back(x.defined() ? x.to(stream()) : x);
    wide.push_back(x.defined() ? cast(x, DType::kFloat32) : x);
  }
  run(narrow, stream());
  run(wide, Stream{});
  for (size_t i = 0; i < tolerances.size(); ++i) {
    if (!tensors[i].defined()) continue;
    expect_close(narrow[i].to(Stream{}), wide[i], tolerances[i],
                 what + ": tensor " + std::to_string(i));
  }
}

}  // namespace megatron
