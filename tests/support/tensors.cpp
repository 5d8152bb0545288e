#include "tests/support/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "megatron/device/philox.h"

namespace megatron {

Tensor random_normal(const Shape& shape, RandomOptions options) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto words = philox({static_cast<uint32_t>(i), 0, 0, 0}, options.seed);
    const float radius = std::sqrt(-2.0f * std::log(unit_interval(words[0])));
    const float angle = 2.0f * std::numbers::pi_v<float> * unit_interval(words[1]);
    values[i] = options.mean + options.stddev * radius * std::cos(angle);
  }
  return cast(tensor_of(values, shape), options.dtype);
}

Tensor random_ids(const Shape& shape, int64_t bound, uint64_t seed) {
  std::vector<int64_t> ids(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = philox({static_cast<uint32_t>(i), 1, 0, 0}, seed)[0] % bound;
  }
  return tensor_of(ids, shape);
}

Tolerance Tolerance::for_terms(int64_t terms) const {
  const double growth = std::sqrt(static_cast<double>(std::max<int64_t>(terms, 1)));
  return {relative * growth, absolute * growth};
}

Tolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return {1e-10, 1e-12};
    case DType::kFloat32:
      return {1e-6, 1e-7};
    case DType::kFloat16:
      return {2e-3, 1e-4};
    case DType::kBFloat16:
      return {1.6e-2, 1e-3};
    default:
      return {};
  }
}

double element(const Tensor& x, int64_t i) {
  const auto at = static_cast<size_t>(i);
  switch (x.dtype()) {
    case DType::kFloat64:
      return x.span<double>()[at];
    case DType::kInt64:
      return static_cast<double>(x.span<int64_t>()[at]);
    case DType::kInt32:
      return x.span<int32_t>()[at];
    case DType::kInt16:
      return x.span<int16_t>()[at];
    case DType::kInt8:
      return x.span<int8_t>()[at];
    case DType::kUInt8:
      return x.span<uint8_t>()[at];
    case DType::kFloat8E4M3:
      return static_cast<float>(x.span<Float8E4M3>()[at]);
    case DType::kFloat8E5M2:
      return static_cast<float>(x.span<Float8E5M2>()[at]);
    default:
      return dispatch_floating(x.dtype(), "element", [&]<class T>() {
        return static_cast<double>(static_cast<float>(x.span<T>()[at]));
      });
  }
}

double largest(const Tensor& x) {
  double most = 0;
  for (int64_t i = 0; i < x.numel(); ++i) most = std::max(most, std::abs(element(x, i)));
  return most;
}

void expect_close(const Tensor& got, const Tensor& want, Tolerance tolerance,
                  const std::string& what) {
  ASSERT_TRUE(got.defined() && want.defined()) << what << ": a tensor is missing";
  ASSERT_EQ(got.shape().str(), want.shape().str()) << what;
  for (int64_t i = 0; i < got.numel(); ++i) {
    const double a = element(got, i);
    const double b = element(want, i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const double limit = tolerance.relative * std::abs(b) + tolerance.absolute;
    ASSERT_LE(std::abs(a - b), limit) << what << ": element " << i << " of " << got.shape().str()
                                      << " is " << a << ", expected " << b;
  }
}

void expect_close(const Tensor& got, const Tensor& want, const std::string& what) {
  ASSERT_TRUE(got.defined() && want.defined()) << what << ": a tensor is missing";
  const Tolerance a = tolerance_of(got.dtype());
  const Tolerance b = tolerance_of(want.dtype());
  expect_close(got, want, a.relative > b.relative ? a : b, what);
}

void expect_identical(const Tensor& got, const Tensor& want, const std::string& what) {
  ASSERT_TRUE(got.defined() && want.defined()) << what << ": a tensor is missing";
  ASSERT_EQ(got.dtype(), want.dtype()) << what;
  ASSERT_EQ(got.shape().str(), want.shape().str()) << what;
  if (got.bytes() == 0) return;
  if (std::memcmp(got.view().data, want.view().data, static_cast<size_t>(got.bytes())) == 0) return;
  for (int64_t i = 0; i < got.numel(); ++i) {
    ASSERT_EQ(element(got, i), element(want, i)) << what << ": element " << i;
  }
  FAIL() << what << ": the bits differ though every element compares equal";
}

}  // namespace megatron
