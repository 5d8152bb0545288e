#pragma once

#include "megatron/device/lazy_library.h"

// Defines a function of a C library that is not linked: its first call looks up the library's own
// function. So the program starts, and trains on the CPU, without the library. The compiler checks
// the parameters against the library's header; a call to a function that is not defined this way is
// a linker error.
//
//   MG_FORWARD(library(), cudnnStatus_t, cudnnSetStream,
//              (cudnnHandle_t handle, cudaStream_t stream), (handle, stream))
//
// `library` is an expression for the LazyLibrary; the function throws what LazyLibrary throws.
#define MG_FORWARD(library, result, name, parameters, arguments)                   \
  extern "C" result name parameters {                                              \
    static const auto own = (library).template function<decltype(&::name)>(#name); \
    return own arguments;                                                          \
  }
