#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/core/turns.h"
#include "megatron/device/stream.h"

// Measures where time goes. Trainer, modules and ops open ranges; the thread's active Tracer
// records them, and a MemoryLog (device/dry_memory.h) names memory by them. Without either a range
// only reads thread-locals.
namespace megatron {

class MemoryLog;

// Kinds of work; the names of the enclosing ranges decide. kCommunication: the stream runs or
// awaits a collective. kPipeline: it waits for another stage.
enum class WorkKind {
  kHost,
  kGemm,
  kAttention,
  kElementwise,
  kHead,
  kOptimizer,
  kCommunication,
  kPipeline
};
inline constexpr int kNumWorkKinds = 8;
const char* name_of(WorkKind kind);
// "linear" is kGemm, "output_layer" kHead, "iteration" kHost, an unknown op kElementwise.
WorkKind work_kind_of(const std::string& range_name);

// The pipeline work of a range; -1: none.
struct TraceItem {
  int64_t microbatch = -1;
  int64_t chunk = -1;
};

// Records the ranges of one rank's thread, on the host's clock and, for ranges on a GPU's stream,
// on the GPU's. While functions take turns, each range ends with its function's turn, and another
// one of the same name begins with the next.
class Tracer {
 public:
  // `rank` names the process in traces.
  explicit Tracer(int rank = 0);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Waits for the GPU and returns seconds by kind. A range counts for its own kind, without the
  // ranges inside it; ranges inside the head and the optimizer count for those, except for
  // communication. Ranges on a GPU count GPU time; kHost is the rest of the outermost ranges, when
  // no kernel ran or no range covered it.
  std::map<WorkKind, double> seconds_by_kind() const;

  // Waits for the GPU and returns the events as objects of Chrome's trace format, separated by
  // commas. pid is the rank, tid 0 the host, tid 1 the GPU; time is microseconds since 1970 plus
  // `shift_ns`, which aligns ranks on hosts whose clocks differ.
  std::string events(int64_t shift_ns = 0) const;

 private:
  friend class TraceRange;
  friend class TraceScope;
  friend const char* enclosing_work();
  struct Record;
  struct OpenRange {
    const char* name;
    Stream stream;
    TraceItem item;
  };
  const char* enclosing() const;
  void open(const char* name, Stream stream, TraceItem item);
  void close();  // the innermost range
  // For the thread whose active tracer it is.
  void begin_turns();
  void change_turn();

  const int rank_;
  const int64_t epoch_offset_ns_;  // from the steady clock to 1970
  std::vector<Record> records_;    // in the order of their begin
  std::vector<size_t> open_;
  size_t num_outer_ = 0;          // of open_: opened before functions took turns
  std::vector<OpenRange> other_;  // of the other function, outermost first
};

// Writes the events of several tracers as one file for chrome://tracing or Perfetto; skips empty
// ones. Throws IoError.
void write_trace(const std::filesystem::path& path, std::span<const std::string> events);

// Makes `tracer` (null: none) the thread's active one while it lives.
class TraceScope final : public TurnObserver {
 public:
  explicit TraceScope(Tracer* tracer);
  ~TraceScope() override;
  void begin_turns() override;
  void change_turn() noexcept override;

 private:
  Tracer* previous_;
};
// True if this thread has an active tracer; then no work may be captured into a CUDA graph.
bool is_tracing();

// A piece of work, from construction to destruction; ranges nest. Profilers that read NVTX (Nsight
// Systems) show it under its name, with or without a tracer; they mix those of two functions that
// take turns.
class TraceRange {
 public:
  // `name` must outlive the tracer; null: no range.
  explicit TraceRange(const char* name) : TraceRange(name, Stream{}, false) {}
  TraceRange(const char* name, TraceItem item) : TraceRange(name, Stream{}, false, item) {}
  // A range of work that is queued on a stream.
  TraceRange(const char* name, Stream stream) : TraceRange(name, stream, true) {}
  ~TraceRange() {
    if (tracer_ != nullptr || has_nvtx_ || log_ != nullptr) end();
  }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  TraceRange(const char* name, Stream stream, bool is_queued, TraceItem item = {});
  void end() noexcept;

  Tracer* tracer_ = nullptr;
  bool has_nvtx_ = false;
  MemoryLog* log_ = nullptr;
};

// The innermost open range that counts everything inside it; null if there is none. An op keeps it
// for its backward pass.
const char* enclosing_work();

}  // namespace megatron
