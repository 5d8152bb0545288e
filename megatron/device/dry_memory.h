#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/device/allocator.h"
#include "megatron/device/device.h"

// The memory of dry devices: addresses that must not be dereferenced, and a log of their
// allocations.
namespace megatron {

// The address of a block that overlaps no other dry block.
void* next_dry_memory(int64_t bytes);
bool is_dry_memory(const void* address);

// A dry device that no other owner has at the same time.
class DryDevice {
 public:
  explicit DryDevice(DeviceType type);
  ~DryDevice();
  DryDevice(const DryDevice&) = delete;
  DryDevice& operator=(const DryDevice&) = delete;

  Device get() const { return device_; }

 private:
  Device device_;
};

// Memory in use, by purpose.
struct MemoryUse {
  MemoryCategory category = MemoryCategory::kActivations;
  std::string purpose;  // "main gradients"; "layers: attention" in a MemoryPart
  int64_t bytes = 0;

  bool operator==(const MemoryUse& other) const = default;
};
struct MemoryPeak {
  int64_t bytes = 0;
  std::vector<MemoryUse> uses;  // at the peak, by category
  std::string when;             // "loss", "backward of layer 23"
};

// While it lives, records this thread's allocations and deallocations on a dry device and on the
// host beside it (host_beside()). Logs do not nest.
class MemoryLog {
 public:
  explicit MemoryLog(Device device);
  ~MemoryLog();
  MemoryLog(const MemoryLog&) = delete;
  MemoryLog& operator=(const MemoryLog&) = delete;

  // Starts the search for peaks.
  void begin();
  MemoryPeak peak() const { return peak_of(false); }
  MemoryPeak host_peak() const { return peak_of(true); }

 private:
  friend class MemoryPart;
  friend class TraceRange;
  friend int log_taken(Device device, MemoryCategory category, int64_t bytes);
  friend void log_given(int row, int64_t bytes);
  friend const char* enclosing_work();

  // A path of open ranges, as a node of the tree of all paths.
  struct Path {
    int outer = -1;
    const char* name = nullptr;
    bool is_part = false;   // the name of a MemoryPart, which a backward pass opens as a range
    bool is_whole = false;  // of the head or the optimizer
  };
  struct Row {
    MemoryCategory category = MemoryCategory::kActivations;
    std::string purpose;
    bool is_on_host = false;
    bool operator<(const Row& other) const;
  };
  // The place of an allocation in the program.
  struct Site {
    int path = -1;                  // -1 if it has a purpose
    const char* purpose = nullptr;  // of the innermost MemoryScope
    MemoryCategory category = MemoryCategory::kActivations;
    bool is_on_host = false;
    auto operator<=>(const Site& other) const = default;
  };
  struct Change {
    int row = 0;
    int path = -1;
    int64_t bytes = 0;
  };

  int path_of(int outer, const char* name);
  void open(const char* name) { path_ = path_of(path_, name); }
  void close() { path_ = paths_[static_cast<size_t>(path_)].outer; }
  int row_of(Device device, MemoryCategory category);
  std::string purpose_at(const Site& site) const;
  const char* enclosing() const;
  MemoryPeak peak_of(bool is_on_host) const;
  std::string when_text(int path) const;

  const Device device_;
  std::vector<Path> paths_;
  std::map<std::pair<int, const char*>, int> known_paths_;
  std::set<const char*> parts_;
  int path_ = -1;  // of the ranges that are open
  std::vector<Row> rows_;
  std::map<Row, int> known_rows_;
  std::map<Site, int> known_sites_;
  std::vector<Change> changes_;
  size_t begin_ = 0;
};

// The log of this thread; null: none.
MemoryLog* active_memory_log();

// The allocators' calls: the row that counts a block, and the end of its use.
int log_taken(Device device, MemoryCategory category, int64_t bytes);
void log_given(int row, int64_t bytes);

// A part of a model in the thread's MemoryLog, in its forward and its backward pass. `name` lives
// as long as the log and the gradient graph.
class MemoryPart {
 public:
  explicit MemoryPart(const char* name);
  ~MemoryPart();
  MemoryPart(const MemoryPart&) = delete;
  MemoryPart& operator=(const MemoryPart&) = delete;

 private:
  MemoryLog* const log_;
};

}  // namespace megatron
