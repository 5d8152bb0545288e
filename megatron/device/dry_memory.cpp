#include "megatron/device/dry_memory.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <tuple>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"

namespace megatron {
namespace {

// No processor maps addresses between 2^62 and 2^63.
constexpr uint64_t kFirstDryAddress = uint64_t{1} << 62;
constexpr uint64_t kDryPage = uint64_t{2} << 20;

// Each rank is a thread with its own log.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local MemoryLog* active_log = nullptr;

struct DryIndices {
  std::mutex mutex;
  std::set<int> in_use;
};
DryIndices& dry_indices() {
  // All ranks of the process draw from it, and none may outlive it.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static auto* const all = new DryIndices();
  return *all;
}

bool is_whole_work(const char* name) {
  const WorkKind kind = work_kind_of(name);
  return kind == WorkKind::kHead || kind == WorkKind::kOptimizer;
}

}  // namespace

void* next_dry_memory(int64_t bytes) {
  // Addresses are unique in the process, as a device's are.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static std::atomic<uint64_t> next{kFirstDryAddress};
  const uint64_t pages = (static_cast<uint64_t>(bytes) + kDryPage - 1) / kDryPage;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): nobody follows it
  return reinterpret_cast<void*>(next.fetch_add((pages + 1) * kDryPage));
}

bool is_dry_memory(const void* address) {
  const auto number = reinterpret_cast<uint64_t>(address);
  return number >= kFirstDryAddress && number < 2 * kFirstDryAddress;
}

DryDevice::DryDevice(DeviceType type) : device_{.type = type, .is_dry = true} {
  DryIndices& indices = dry_indices();
  const std::lock_guard lock(indices.mutex);
  while (indices.in_use.contains(device_.index)) ++device_.index;
  indices.in_use.insert(device_.index);
}

DryDevice::~DryDevice() {
  for (const Device device : {device_, host_beside({device_}).device}) {
    allocator_of(device).empty_cache();
  }
  DryIndices& indices = dry_indices();
  const std::lock_guard lock(indices.mutex);
  indices.in_use.erase(device_.index);
}

bool MemoryLog::Row::operator<(const Row& other) const {
  return std::tie(category, purpose, is_on_host) <
         std::tie(other.category, other.purpose, other.is_on_host);
}

MemoryLog::MemoryLog(Device device) : device_(device) {
  invariant(active_log == nullptr, "memory logs do not nest");
  active_log = this;
}
MemoryLog::~MemoryLog() { active_log = nullptr; }
MemoryLog* active_memory_log() { return active_log; }

void MemoryLog::begin() { begin_ = changes_.size(); }

int MemoryLog::path_of(int outer, const char* name) {
  const auto [found, is_new] =
      known_paths_.try_emplace({outer, name}, static_cast<int>(paths_.size()));
  if (is_new) {
    const bool is_part = parts_.contains(name);
    paths_.push_back({outer, name, is_part, !is_part && is_whole_work(name)});
  }
  return found->second;
}

int MemoryLog::row_of(Device device, MemoryCategory category) {
  const char* const given = current_memory_purpose();
  const Site site{given == nullptr ? path_ : -1, given, category, device != device_};
  const auto [found, is_new] = known_sites_.try_emplace(site);
  if (!is_new) return found->second;
  Row row{category, purpose_at(site), device != device_};
  const auto [same, is_new_row] = known_rows_.try_emplace(row, static_cast<int>(rows_.size()));
  if (is_new_row) rows_.push_back(std::move(row));
  return found->second = same->second;
}

std::string MemoryLog::purpose_at(const Site& site) const {
  if (site.purpose != nullptr) return site.purpose;
  if (site.path < 0) return name_of(site.category);
  const Path& inner = paths_[static_cast<size_t>(site.path)];
  if (inner.is_part) return "layers";
  for (int at = inner.outer; at >= 0; at = paths_[static_cast<size_t>(at)].outer) {
    if (paths_[static_cast<size_t>(at)].is_part) return std::string("layers: ") + inner.name;
  }
  return inner.name;
}

const char* MemoryLog::enclosing() const {
  for (int at = path_; at >= 0; at = paths_[static_cast<size_t>(at)].outer) {
    const Path& path = paths_[static_cast<size_t>(at)];
    if (path.is_part || path.is_whole) return path.name;
  }
  return nullptr;
}

int log_taken(Device device, MemoryCategory category, int64_t bytes) {
  MemoryLog* const log = active_log;
  if (log == nullptr) return -1;
  const int row = log->row_of(device, category);
  log->changes_.push_back({row, log->path_, bytes});
  return row;
}

void log_given(int row, int64_t bytes) {
  MemoryLog* const log = active_log;
  if (log != nullptr && row >= 0) log->changes_.push_back({row, log->path_, -bytes});
}

std::string MemoryLog::when_text(int path) const {
  const char* part = nullptr;
  bool is_backward = false;
  for (int at = path; at >= 0; at = paths_[static_cast<size_t>(at)].outer) {
    const Path& range = paths_[static_cast<size_t>(at)];
    const std::string_view name = range.name;
    if (range.is_whole) return work_kind_of(range.name) == WorkKind::kHead ? "loss" : range.name;
    if (range.is_part && part == nullptr) part = range.name;
    is_backward = is_backward || name == "backward";
  }
  if (part == nullptr) part = path < 0 ? "start" : paths_[static_cast<size_t>(path)].name;
  return std::string(is_backward ? "backward of " : "forward of ") + part;
}

MemoryPeak MemoryLog::peak_of(bool is_on_host) const {
  MemoryPeak peak;
  int64_t now = 0;
  size_t end = 0;  // of the changes up to the peak
  for (size_t i = 0; i < changes_.size(); ++i) {
    const Change& change = changes_[i];
    if (rows_[static_cast<size_t>(change.row)].is_on_host == is_on_host) now += change.bytes;
    if (i + 1 < begin_ || now <= peak.bytes) continue;
    peak.bytes = now;
    end = i + 1;
  }
  if (end == 0) return peak;
  peak.when = when_text(changes_[end - 1].path);
  std::vector<int64_t> bytes(rows_.size());
  for (size_t i = 0; i < end; ++i) bytes[static_cast<size_t>(changes_[i].row)] += changes_[i].bytes;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (bytes[i] == 0 || rows_[i].is_on_host != is_on_host) continue;
    peak.uses.push_back({rows_[i].category, rows_[i].purpose, bytes[i]});
  }
  std::ranges::stable_sort(peak.uses, {}, &MemoryUse::category);
  return peak;
}

MemoryPart::MemoryPart(const char* name) : log_(active_log) {
  if (log_ == nullptr) return;
  log_->parts_.insert(name);
  log_->open(name);
}
MemoryPart::~MemoryPart() {
  if (log_ != nullptr) log_->close();
}

}  // namespace megatron
