#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "megatron/core/error.h"
#include "megatron/core/float8.h"
#include "megatron/core/half.h"

namespace megatron {

// Element types of tensors. In memory only: files store names or their own codes.
enum class DType {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat64,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt64,
  kUInt32,
  kUInt16,
  kUInt8,
  kBool,
  kFloat8E4M3,
  kFloat8E5M2,
};

// Bytes of one element.
int64_t size_of(DType dtype);
// "float32", "bfloat16", "int64", ...
std::string_view name_of(DType dtype);
// True for types that convert to other floating-point types without a scale; false for FP8.
bool is_floating(DType dtype);
bool is_float8(DType dtype);

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kFloat32;
}
template <>
constexpr DType dtype_of<Float16>() {
  return DType::kFloat16;
}
template <>
constexpr DType dtype_of<BFloat16>() {
  return DType::kBFloat16;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::kFloat64;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::kInt64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::kInt32;
}
template <>
constexpr DType dtype_of<int16_t>() {
  return DType::kInt16;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::kInt8;
}
template <>
constexpr DType dtype_of<uint64_t>() {
  return DType::kUInt64;
}
template <>
constexpr DType dtype_of<uint32_t>() {
  return DType::kUInt32;
}
template <>
constexpr DType dtype_of<uint16_t>() {
  return DType::kUInt16;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::kUInt8;
}
template <>
constexpr DType dtype_of<bool>() {
  return DType::kBool;
}
template <>
constexpr DType dtype_of<Float8E4M3>() {
  return DType::kFloat8E4M3;
}
template <>
constexpr DType dtype_of<Float8E5M2>() {
  return DType::kFloat8E5M2;
}

// Calls `f.operator()<T>()` with the C++ type of a training dtype (fp32, fp16, bf16).
// Throws DtypeError naming `who` otherwise.
template <class F>
decltype(auto) dispatch_floating(DType dtype, const char* who, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f.template operator()<float>();
    case DType::kFloat16:
      return f.template operator()<Float16>();
    case DType::kBFloat16:
      return f.template operator()<BFloat16>();
    default:
      break;
  }
  throw DtypeError(std::string(who) + ": dtype " + std::string(name_of(dtype)) +
                   " is not float32, float16 or bfloat16");
}

// The same for the 8-bit floating-point types.
template <class F>
decltype(auto) dispatch_float8(DType dtype, const char* who, F&& f) {
  if (dtype == DType::kFloat8E4M3) return f.template operator()<Float8E4M3>();
  if (dtype == DType::kFloat8E5M2) return f.template operator()<Float8E5M2>();
  throw DtypeError(std::string(who) + ": dtype " + std::string(name_of(dtype)) +
                   " is not float8_e4m3 or float8_e5m2");
}

}  // namespace megatron
