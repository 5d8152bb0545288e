#pragma once

#include "megatron/device/lazy_library.h"

// Defines a function of a C library that is not linked: it calls the library's own, which it finds
// when it is first called. So the program starts, and trains on the CPU, where the library is
// missing. The compiler checks the parameters against the library's header; what is called without
// being defined is an error of the linker.
//
//   MG_FORWARD(library(), cudnnStatus_t, cudnnSetStream,
//              (cudnnHandle_t handle, cudaStream_t stream), (handle, stream))
//
// `library` is an expression for the LazyLibrary; the function throws what that throws.
#define MG_FORWARD(library, result, name, parameters, arguments)                   \
  extern "C" result name parameters {                                              \
    static const auto own = (library).template function<decltype(&::name)>(#name); \
    return own arguments;                                                          \
  }
