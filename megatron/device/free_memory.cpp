#include "megatron/device/free_memory.h"

#include <fstream>
#include <string>

#include "megatron/device/cuda.h"

namespace megatron {

int64_t free_memory_bytes(Device device) {
  if (!device.is_cpu()) {
    const bool is_there = device.index < cuda::num_devices();
    return is_there ? cuda::free_memory(device.index).free_bytes : -1;
  }
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kibibytes = 0;
  std::string unit;
  while (file >> name >> kibibytes) {
    if (name == "MemAvailable:") return kibibytes * 1024;
    std::getline(file, unit);
  }
  return -1;
}

}  // namespace megatron
