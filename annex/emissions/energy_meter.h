#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace megatron {

// Joules that parts of a host have used. Nothing: they have no counter that this user may read.
struct Energy {
  std::optional<double> cpu;
  std::optional<double> ram;
  std::optional<double> gpu;  // of all GPUs of the host together
};

// A counter of RAPL: a file with microjoules, which begins again at 0 after its range.
class RaplCounter {
 public:
  // `zone` is a folder of the kernel: .../intel-rapl:0. Throws IoError if it cannot be read.
  explicit RaplCounter(std::filesystem::path zone);
  // Joules since the start. REQUIRES: the counter went through its range once at most since the
  // last call.
  double joules();

 private:
  int64_t read() const;

  std::filesystem::path zone_;
  int64_t range_;  // microjoules
  int64_t last_;
  int64_t sum_ = 0;
};

// The counters of NVIDIA's driver, of all GPUs of the host.
class GpuCounters {
 public:
  // Throws DeviceError if the library is missing or a GPU has no counter.
  explicit GpuCounters(const char* library);
  ~GpuCounters();
  GpuCounters(const GpuCounters&) = delete;
  GpuCounters& operator=(const GpuCounters&) = delete;

  double joules() const;  // since the start
  int64_t num_gpus() const;
  // "NVIDIA H200"
  std::string model() const;

 private:
  class Library;
  std::unique_ptr<const Library> library_;
  double first_ = 0;
};

// Measures the energy of this host from its construction on. A thread reads counters often enough
// that none begins again twice between two readings.
class EnergyMeter {
 public:
  struct Options {
    std::filesystem::path powercap = "/sys/class/powercap";
    bool has_gpus = false;  // measure the host's GPUs
    const char* nvml = "libnvidia-ml.so.1";
  };
  explicit EnergyMeter(const Options& options);
  ~EnergyMeter();

  Energy used();
  // Null if GPUs are not measured.
  const GpuCounters* gpus() const { return gpus_ ? gpus_.get() : nullptr; }

 private:
  void open_rapl(const std::filesystem::path& powercap);
  void watch();

  std::mutex mutex_;  // of the counters
  std::vector<RaplCounter> packages_;
  std::vector<RaplCounter> memories_;
  std::unique_ptr<const GpuCounters> gpus_;
  std::condition_variable stopping_;
  bool is_stopping_ = false;
  std::thread watcher_;
};

}  // namespace megatron
