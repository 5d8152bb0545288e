#pragma once

#include "megatron/device/device.h"

namespace megatron {

// The device of a test program, so that the same tests run on the CPU and on a GPU: the program
// lists on_cpu.cpp or on_cuda.cpp among its sources.
bool has_device_under_test();
// The queue of that device, one for all tests of the program: a test that had its own might get
// memory that the one before still writes (CachingAllocator). REQUIRES: has_device_under_test()
Stream stream_under_test();

}  // namespace megatron
