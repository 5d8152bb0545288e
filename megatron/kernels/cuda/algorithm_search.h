#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megatron/device/device.h"

namespace megatron::kernels::cuda {

// "<GPU>, <n> multiprocessors": the part of a key that the fastest algorithm depends on.
std::string machine_of(Device device);

// True while the stream is captured into a CUDA graph.
bool is_recorded(Stream stream);

// True if a call on the stream may time algorithms, which synchronizes with the device.
bool may_search(Stream stream);

// The time in ms of queue(0) to queue(count - 1), which queue a call's work on the stream: the
// minimum of `rounds` after a warm-up. Infinite if queue() refuses by returning false. Waits for
// the device.
std::vector<double> measured_ms(size_t count, const std::function<bool(size_t)>& queue, int rounds,
                                Stream stream);

}  // namespace megatron::kernels::cuda
