#include "annex/emissions/energy_meter.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/number_text.h"
#include "megatron/device/lazy_library.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& file) {
  const std::string text = read_text(file);
  return text.substr(0, text.find('\n'));
}

int64_t number_in(const fs::path& file) {
  const std::optional<int64_t> number = integer_of(first_line(file));
  if (!number) throw IoError(fmt::format("{}: holds no number", file.string()));
  return *number;
}

// Adds a counter, unless this user may not read it.
void add_counter(std::vector<RaplCounter>& counters, const fs::path& zone) {
  try {
    counters.emplace_back(zone);
  } catch (const Error&) {
    // The report leaves this part of the host empty.
  }
}

// None if there is no counter.
std::optional<double> sum_of(std::vector<RaplCounter>& counters) {
  if (counters.empty()) return std::nullopt;
  double sum = 0;
  for (RaplCounter& counter : counters) sum += counter.joules();
  return sum;
}

}  // namespace

RaplCounter::RaplCounter(fs::path zone)
    : zone_(std::move(zone)), range_(number_in(zone_ / "max_energy_range_uj")), last_(read()) {}

int64_t RaplCounter::read() const { return number_in(zone_ / "energy_uj"); }

double RaplCounter::joules() {
  const int64_t now = read();
  sum_ += now >= last_ ? now - last_ : range_ - last_ + now;
  last_ = now;
  return static_cast<double>(sum_) * 1e-6;
}

// The functions of NVML that count energy.
class GpuCounters::Library {
 public:
  explicit Library(const char* file)
      : library_(file, "the energy of GPUs is not known without it"),
        end_(library_.function<int (*)()>("nvmlShutdown")),
        total_(library_.function<Total>("nvmlDeviceGetTotalEnergyConsumption")),
        name_(library_.function<Name>("nvmlDeviceGetName")) {
    const auto begin = library_.function<int (*)()>("nvmlInit_v2");
    const auto count_of = library_.function<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
    const auto handle_of =
        library_.function<int (*)(unsigned, Handle*)>("nvmlDeviceGetHandleByIndex_v2");
    expect_success(begin(), "nvmlInit_v2");
    unsigned count = 0;
    expect_success(count_of(&count), "nvmlDeviceGetCount_v2");
    for (unsigned i = 0; i < count; ++i) {
      expect_success(handle_of(i, &devices_.emplace_back()), "nvmlDeviceGetHandleByIndex_v2");
    }
    if (devices_.empty()) throw DeviceError("NVML finds no GPU");
  }
  ~Library() { end_(); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  double joules() const {
    double sum = 0;
    for (const Handle device : devices_) {
      unsigned long long millijoules = 0;  // NOLINT(google-runtime-int): NVML's type
      expect_success(total_(device, &millijoules), "nvmlDeviceGetTotalEnergyConsumption");
      sum += static_cast<double>(millijoules) * 1e-3;
    }
    return sum;
  }
  int64_t num_gpus() const { return std::ssize(devices_); }
  std::string model() const {
    char name[96] = {};
    expect_success(name_(devices_.front(), name, sizeof name), "nvmlDeviceGetName");
    return name;
  }

 private:
  using Handle = void*;
  using Total = int (*)(Handle, unsigned long long*);  // NOLINT(google-runtime-int)
  using Name = int (*)(Handle, char*, unsigned);

  static void expect_success(int status, const char* call) {
    if (status != 0) throw DeviceError(fmt::format("{}: NVML's error {}", call, status));
  }

  LazyLibrary library_;
  int (*end_)();
  Total total_;
  Name name_;
  std::vector<Handle> devices_;
};

GpuCounters::GpuCounters(const char* library)
    : library_(std::make_unique<const Library>(library)), first_(library_->joules()) {}
GpuCounters::~GpuCounters() = default;

double GpuCounters::joules() const { return library_->joules() - first_; }
int64_t GpuCounters::num_gpus() const { return library_->num_gpus(); }
std::string GpuCounters::model() const { return library_->model(); }

EnergyMeter::EnergyMeter(const Options& options) {
  open_rapl(options.powercap);
  if (options.has_gpus) {
    try {
      gpus_ = std::make_unique<const GpuCounters>(options.nvml);
    } catch (const DeviceError&) {
      // The report leaves the GPUs empty.
    }
  }
  if (packages_.empty() && memories_.empty()) return;
  watcher_ = std::thread([this] { watch(); });
}

EnergyMeter::~EnergyMeter() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  stopping_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

// Zones are intel-rapl:<package> and intel-rapl:<package>:<part>, on processors of every maker.
void EnergyMeter::open_rapl(const fs::path& powercap) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(powercap, error)) {
    const fs::path& zone = entry.path();
    if (!zone.filename().string().starts_with("intel-rapl:")) continue;
    try {
      const std::string name = first_line(zone / "name");
      if (name.starts_with("package")) add_counter(packages_, zone);
      if (name == "dram") add_counter(memories_, zone);
    } catch (const Error&) {
      continue;  // another driver's zone
    }
  }
}

void EnergyMeter::watch() {
  constexpr std::chrono::seconds kInterval(15);
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kInterval, [this] { return is_stopping_; })) {
    try {
      sum_of(packages_);
      sum_of(memories_);
    } catch (const Error&) {
      return;  // the last reading says it
    }
  }
}

Energy EnergyMeter::used() {
  const std::lock_guard lock(mutex_);
  Energy energy;
  const auto unless_lost = [](const auto& read) -> std::optional<double> {
    try {
      return read();
    } catch (const Error&) {
      return std::nullopt;
    }
  };
  energy.cpu = unless_lost([&] { return sum_of(packages_); });
  energy.ram = unless_lost([&] { return sum_of(memories_); });
  if (gpus_) energy.gpu = unless_lost([&] { return std::optional(gpus_->joules()); });
  return energy;
}

}  // namespace megatron
