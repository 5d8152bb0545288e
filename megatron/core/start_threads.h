#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

namespace megatron {

// Starts up to `count` threads that call `work`, for callers that manage with fewer. If the system
// allows fewer, warns with what they are for ("reading samples"). The caller joins them.
std::vector<std::thread> start_threads(int64_t count, const std::function<void()>& work,
                                       std::string_view purpose);

}  // namespace megatron
