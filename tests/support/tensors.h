#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "megatron/tensor/tensor.h"
#include "tests/support/message_of.h"

// Random tensors, comparisons, and readable failures for tests.
namespace megatron {

struct RandomOptions {
  uint64_t seed = 0;
  float mean = 0;
  float stddev = 1;
  DType dtype = DType::kFloat32;
};
// Normal values that depend only on the options and the position.
Tensor random_normal(const Shape& shape, RandomOptions options);

// Integers in [0, bound), int64.
Tensor random_ids(const Shape& shape, int64_t bound, uint64_t seed);

// |got - want| <= relative * |want| + absolute, for every element.
struct Tolerance {
  double relative = 0;
  double absolute = 0;

  // For sums of `terms` products: rounding errors grow with the square root of terms.
  Tolerance for_terms(int64_t terms) const;
};
// The tolerance of elementwise results of a dtype.
Tolerance tolerance_of(DType dtype);

// Fails the test at the first element that differs by more than `tolerance` (NaN equals only NaN),
// with its index and both values. dtypes may differ; the default is the coarser one's tolerance.
void expect_close(const Tensor& got, const Tensor& want, Tolerance tolerance,
                  const std::string& what = "");
void expect_close(const Tensor& got, const Tensor& want, const std::string& what = "");
// Compares dtype, shape and bits.
void expect_identical(const Tensor& got, const Tensor& want, const std::string& what = "");

// Element i as a double, for any dtype.
double element(const Tensor& x, int64_t i);
// The largest absolute value; 0 for an empty tensor.
double largest(const Tensor& x);

}  // namespace megatron
