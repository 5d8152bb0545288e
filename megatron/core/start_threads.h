#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

namespace megatron {

// Starts up to `count` threads that call `work`; the caller joins them. If the system allows fewer,
// warns and names their purpose ("reading samples").
std::vector<std::thread> start_threads(int64_t count, const std::function<void()>& work,
                                       std::string_view purpose);

}  // namespace megatron
