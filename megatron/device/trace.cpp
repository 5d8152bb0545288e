#include "megatron/device/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/device/cuda.h"
#include "megatron/device/dry_memory.h"

namespace megatron {
namespace {

// Each rank is a thread with its own tracer.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local Tracer* active = nullptr;

int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

int64_t epoch_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Profilers set these variables for the libraries they inject.
bool is_profiler_attached() {
  static const bool found = cuda::kIsBuilt && std::getenv("NVTX_INJECTION64_PATH") != nullptr;
  return found;
}

struct NamedKind {
  std::string_view name;
  WorkKind kind;
};
constexpr NamedKind kKinds[] = {
    {"iteration", WorkKind::kHost},
    {"data", WorkKind::kHost},
    {"forward", WorkKind::kHost},
    {"backward", WorkKind::kHost},
    {"recompute", WorkKind::kHost},
    {"forward_step", WorkKind::kHost},
    {"backward_step", WorkKind::kHost},
    {"weight_step", WorkKind::kHost},
    {"linear", WorkKind::kGemm},
    {"grouped_matmul", WorkKind::kGemm},
    {"fp8_grouped_matmul", WorkKind::kGemm},
    {"column_parallel_linear", WorkKind::kGemm},
    {"row_parallel_linear", WorkKind::kGemm},
    {"gelu_mlp", WorkKind::kGemm},
    {"fp8_column_parallel_linear", WorkKind::kGemm},
    {"fp8_row_parallel_linear", WorkKind::kGemm},
    {"fp8_mlp", WorkKind::kGemm},
    {"attention", WorkKind::kAttention},
    {"cross_attention", WorkKind::kAttention},
    {"output_layer", WorkKind::kHead},
    {"cross_entropy", WorkKind::kHead},
    {"vocabulary_loss", WorkKind::kHead},
    {"masked_mean", WorkKind::kHead},
    {"optimizer", WorkKind::kOptimizer},
    {"copy_to_tensor_region", WorkKind::kCommunication},
    {"reduce_from_tensor_region", WorkKind::kCommunication},
    {"scatter_to_sequence_region", WorkKind::kCommunication},
    {"reduce_scatter_to_sequence_region", WorkKind::kCommunication},
    {"gather_from_sequence_region", WorkKind::kCommunication},
    {"all_reduce", WorkKind::kCommunication},
    {"all_gather", WorkKind::kCommunication},
    {"reduce_scatter", WorkKind::kCommunication},
    {"broadcast", WorkKind::kCommunication},
    {"all_to_all", WorkKind::kCommunication},
    {"barrier", WorkKind::kCommunication},
    {"exchange", WorkKind::kCommunication},
    {"send", WorkKind::kCommunication},
    {"recv", WorkKind::kCommunication},
    {"wait_for_collective", WorkKind::kCommunication},
    {"wait_for_stage", WorkKind::kPipeline},
};

// Ranges inside a range of these kinds count for it.
bool is_whole(WorkKind kind) {
  return kind == WorkKind::kHead || kind == WorkKind::kOptimizer || kind == WorkKind::kPipeline;
}
bool is_counted_in(WorkKind kind, WorkKind around) {
  return is_whole(around) && (kind != WorkKind::kCommunication || around == WorkKind::kPipeline);
}

constexpr size_t kNone = static_cast<size_t>(-1);

}  // namespace

const char* name_of(WorkKind kind) {
  constexpr const char* kNames[kNumWorkKinds] = {
      "host", "gemm", "attention", "elementwise", "head", "optimizer", "communication", "pipeline"};
  return kNames[static_cast<size_t>(kind)];
}

WorkKind work_kind_of(const std::string& range_name) {
  const auto found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const NamedKind& known) { return known.name == range_name; });
  return found == std::end(kKinds) ? WorkKind::kElementwise : found->kind;
}

struct Tracer::Record {
  const char* name;
  size_t parent;  // kNone: outermost
  int64_t begin_ns;
  int64_t end_ns = 0;
  // GPU ranges only.
  std::optional<Event> begin = {};
  std::optional<Event> end = {};
  Stream stream = {};
  TraceItem item = {};

  double host_seconds() const { return static_cast<double>(end_ns - begin_ns) * 1e-9; }
  double seconds() const { return end ? end->ms_since(*begin) * 1e-3 : host_seconds(); }
};

Tracer::Tracer(int rank) : rank_(rank), epoch_offset_ns_(epoch_ns() - now_ns()) {}
Tracer::~Tracer() = default;

void Tracer::open(const char* name, Stream stream, TraceItem item) {
  Record& record = records_.emplace_back(
      Record{.name = name, .parent = open_.empty() ? kNone : open_.back(), .begin_ns = now_ns()});
  record.stream = stream;
  record.item = item;
  if (!stream.is_cpu()) {
    record.begin.emplace(stream.device);
    record.begin->record(stream);
  }
  open_.push_back(records_.size() - 1);
}

void Tracer::close() {
  Record& record = records_[open_.back()];
  open_.pop_back();
  record.end_ns = now_ns();
  if (record.begin) {
    record.end.emplace(record.stream.device);
    record.end->record(record.stream);
  }
}

void Tracer::begin_turns() {
  num_outer_ = open_.size();
  other_.clear();
}

void Tracer::change_turn() {
  std::vector<OpenRange> own;
  while (open_.size() > num_outer_) {
    const Record& record = records_[open_.back()];
    own.push_back({record.name, record.stream, record.item});
    close();
  }
  std::ranges::reverse(own);
  for (const OpenRange& range : std::exchange(other_, std::move(own))) {
    open(range.name, range.stream, range.item);
  }
}

const char* Tracer::enclosing() const {
  for (auto at = open_.rbegin(); at != open_.rend(); ++at) {
    if (is_whole(work_kind_of(records_[*at].name))) return records_[*at].name;
  }
  return nullptr;
}

std::map<WorkKind, double> Tracer::seconds_by_kind() const {
  invariant(open_.empty(), "all ranges have ended before times are read");
  for (const Record& record : records_) {
    if (record.end) record.end->synchronize();
  }
  std::vector<WorkKind> kinds;
  std::map<WorkKind, double> seconds;
  for (int i = 0; i < kNumWorkKinds; ++i) seconds[static_cast<WorkKind>(i)] = 0;
  for (const Record& record : records_) {
    const WorkKind kind = work_kind_of(record.name);
    const bool is_inside = record.parent != kNone && is_counted_in(kind, kinds[record.parent]);
    kinds.push_back(is_inside ? kinds[record.parent] : kind);
    const double own = record.seconds();
    seconds[kinds.back()] += own;
    if (record.parent != kNone) seconds[kinds[record.parent]] -= own;
  }
  return seconds;
}

std::string Tracer::events(int64_t shift_ns) const {
  std::string text;
  const int64_t offset_ns = epoch_offset_ns_ + shift_ns;
  const auto event = [&](const Record& record, int tid, int64_t begin_ns, int64_t duration_ns) {
    std::string item;
    if (record.item.microbatch >= 0) {
      item = fmt::format(",\"args\":{{\"microbatch\":{},\"chunk\":{}}}", record.item.microbatch,
                         record.item.chunk);
    }
    text += fmt::format(
        ",\n{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},"
        "\"ts\":{}.{:03},\"dur\":{}.{:03}{}}}",
        record.name, name_of(work_kind_of(record.name)), rank_, tid, begin_ns / 1000,
        begin_ns % 1000, duration_ns / 1000, duration_ns % 1000, item);
  };
  const auto label = [&](const char* what, int tid, const std::string& name) {
    text += fmt::format(
        "{}{{\"name\":\"{}\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":\"{}\"}}}}",
        text.empty() ? "" : ",\n", what, rank_, tid, name);
  };
  label("process_name", 0, fmt::format("rank {}", rank_));
  label("thread_name", 0, "host");

  const Record* first = nullptr;  // on the GPU
  int64_t gpu_begin_ns = 0;       // of `first`, on the host's clock
  const auto since_first = [&](const Event& moment) {
    return static_cast<int64_t>(moment.ms_since(*first->begin) * 1e6);
  };
  for (const Record& record : records_) {
    event(record, 0, record.begin_ns + offset_ns, record.end_ns - record.begin_ns);
    if (!record.end) continue;
    if (first == nullptr) first = &record;
    record.end->synchronize();
    // The GPU may have had work left when the first range was queued. A GPU range cannot begin
    // before the host queued it.
    gpu_begin_ns = std::max(gpu_begin_ns, record.begin_ns - since_first(*record.begin));
  }
  if (first == nullptr) return text;
  label("thread_name", 1, first->stream.device.str());
  for (const Record& record : records_) {
    if (!record.end) continue;
    const int64_t from = since_first(*record.begin);
    event(record, 1, gpu_begin_ns + offset_ns + from, since_first(*record.end) - from);
  }
  return text;
}

void write_trace(const std::filesystem::path& path, std::span<const std::string> events) {
  std::ofstream file(path);
  file << "[";
  const char* before = "";
  for (const std::string& part : events) {
    if (part.empty()) continue;
    file << before << part;
    before = ",\n";
  }
  file << "\n]\n";
  file.close();
  if (!file) {
    throw IoError(
        fmt::format("{}: cannot write the profile; check free space and the directory's "
                    "permissions",
                    path.string()));
  }
}

TraceScope::TraceScope(Tracer* tracer) : previous_(std::exchange(active, tracer)) {}
TraceScope::~TraceScope() { active = previous_; }

void TraceScope::begin_turns() {
  if (active != nullptr) active->begin_turns();
}

void TraceScope::change_turn() noexcept {
  if (active == nullptr) return;
  try {
    active->change_turn();
  } catch (const Error& error) {
    // The device has failed; its own operation reports the error.
    debug(error.what());
  }
}

bool is_tracing() { return active != nullptr; }

TraceRange::TraceRange(const char* name, Stream stream, bool is_queued, TraceItem item) {
  if (name == nullptr) return;
  log_ = active_memory_log();
  if (log_ != nullptr) log_->open(name);
  if (active != nullptr) {
    tracer_ = active;
    tracer_->open(name, is_queued ? stream : Stream{}, item);
  }
  has_nvtx_ = cuda::kIsBuilt && (tracer_ != nullptr || is_profiler_attached());
  if (has_nvtx_) cuda::begin_nvtx_range(name);
}

void TraceRange::end() noexcept {
  if (log_ != nullptr) log_->close();
  if (has_nvtx_) cuda::end_nvtx_range();
  if (tracer_ == nullptr) return;
  try {
    tracer_->close();
  } catch (const Error& error) {
    // The device has failed; its own operation reports the error.
    debug(error.what());
  }
}

const char* enclosing_work() {
  if (const MemoryLog* const log = active_memory_log()) return log->enclosing();
  return active == nullptr ? nullptr : active->enclosing();
}

}  // namespace megatron
