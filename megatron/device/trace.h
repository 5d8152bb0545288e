#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/device/stream.h"

// Where the time goes. Trainer, modules and ops open ranges; what becomes of them is up to the
// Tracer that is active on the thread. Without one a range costs one look at a thread-local.
namespace megatron {

// What a piece of work is counted as; decided by the names of the ranges around it.
// kCommunication: the stream does, or waits for, a collective. kPipeline: it waits for another
// stage.
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

// Which piece of a pipeline's work a range is; -1: none.
struct TraceItem {
  int64_t microbatch = -1;
  int64_t chunk = -1;
};

// Notes the ranges of one rank's thread, on the host's clock and, where they have a GPU's stream,
// on the GPU's.
class Tracer {
 public:
  // `rank` names the process in traces.
  explicit Tracer(int rank = 0);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Waits for the GPU, then: seconds by kind. A range counts for its own kind without the ranges
  // inside it, but everything inside the head and the optimizer counts for them, save their
  // communication. Of ranges on a GPU the GPU's time; kHost has what is left of the outermost
  // ranges: no kernel ran, or none that a range covers.
  std::map<WorkKind, double> seconds_by_kind() const;

  // Waits for the GPU, then: the events as objects of Chrome's trace format, with commas between
  // them. pid is the rank, tid 0 the host, tid 1 the GPU; time is microseconds since 1970 plus
  // `shift_ns`, so that those of ranks, on hosts whose clocks differ, can be joined.
  std::string events(int64_t shift_ns = 0) const;

 private:
  friend class TraceRange;
  friend const char* enclosing_work();
  struct Record;
  const char* enclosing() const;
  size_t open(const char* name, Stream stream, TraceItem item);
  void close(size_t record);

  const int rank_;
  const int64_t epoch_offset_ns_;  // from the steady clock to 1970
  std::vector<Record> records_;    // in the order of their begin
  std::vector<size_t> open_;
};

// Writes the events of several tracers as one file for chrome://tracing or Perfetto; empty ones are
// left out. Throws IoError.
void write_trace(const std::filesystem::path& path, std::span<const std::string> events);

// Makes a tracer (null: none) the thread's own while it lives.
class TraceScope {
 public:
  explicit TraceScope(Tracer* tracer);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Tracer* previous_;
};
// Is one active on this thread? Then nothing may be captured into a CUDA graph.
bool is_tracing();

// A piece of work, from construction to destruction; ranges nest. In a profiler that reads NVTX
// (Nsight Systems) it is a range of that name, with or without a tracer.
class TraceRange {
 public:
  // `name` must outlive the tracer; null: nothing.
  explicit TraceRange(const char* name) : TraceRange(name, Stream{}, false) {}
  TraceRange(const char* name, TraceItem item) : TraceRange(name, Stream{}, false, item) {}
  // Of work that is queued on a stream.
  TraceRange(const char* name, Stream stream) : TraceRange(name, stream, true) {}
  ~TraceRange() {
    if (tracer_ != nullptr || has_nvtx_) end();
  }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  TraceRange(const char* name, Stream stream, bool is_queued, TraceItem item = {});
  void end() noexcept;

  Tracer* tracer_ = nullptr;
  size_t record_ = 0;
  bool has_nvtx_ = false;
};

// The innermost open range that everything inside counts for; null when there is none. An op keeps
// it for its backward pass.
const char* enclosing_work();

}  // namespace megatron
