#include "megatron/kernels/cuda/algorithm_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "megatron/device/cuda.h"
#include "megatron/device/stream.h"

namespace megatron::kernels::cuda {

std::string machine_of(Device device) {
  const megatron::cuda::Properties gpu = megatron::cuda::properties(device.index);
  return fmt::format("{}, {} multiprocessors", gpu.name, gpu.num_multiprocessors);
}

bool is_recorded(Stream stream) { return megatron::cuda::capture_of(stream.native) != 0; }

bool may_search(Stream stream) {
  return stream.options.searches_algorithms && !is_recorded(stream);
}

std::vector<double> measured_ms(size_t count, const std::function<bool(size_t)>& queue, int rounds,
                                Stream stream) {
  std::vector<double> least(count, std::numeric_limits<double>::infinity());
  std::vector<bool> is_refused(count, false);
  // Each round times all algorithms, so that a change of clocks affects all of them. Nothing waits
  // within a round, and one call is queued ahead, so that events measure the device's work alone.
  std::vector<Event> events;
  for (size_t i = 0; i <= count; ++i) events.emplace_back(stream.device);
  for (int round = 0; round <= rounds; ++round) {
    queue(0);
    events[0].record(stream);
    for (size_t i = 0; i < count; ++i) {
      if (!is_refused[i]) is_refused[i] = !queue(i);
      events[i + 1].record(stream);
    }
    events[count].synchronize();
    if (round == 0) continue;  // warm-up: loads code and raises clocks
    for (size_t i = 0; i < count; ++i) {
      if (!is_refused[i]) least[i] = std::min(least[i], events[i + 1].ms_since(events[i]));
    }
  }
  return least;
}

}  // namespace megatron::kernels::cuda
