#include "megatron/device/work_graph.h"

#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/cuda.h"

namespace megatron {
namespace {

// Each rank is a thread that records its own work.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local bool recording = false;

// Puts the stream into capture while it lives; drops the record unless it was taken.
class Recording {
 public:
  explicit Recording(Stream stream) : stream_(stream) {
    invariant(!recording, "recordings do not nest");
    cuda::begin_capture(stream_.native);
    recording = true;
  }
  ~Recording() {
    if (recording) cuda::abandon_capture(stream_.native);
    recording = false;
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void* take() {
    recording = false;
    return cuda::end_capture(stream_.native);
  }

 private:
  const Stream stream_;
};

}  // namespace

WorkGraph::WorkGraph(Stream stream, std::function<void()> work) : stream_(stream) {
  if (!stream.has_queue()) {
    work_ = std::move(work);
    return;
  }
  Recording record(stream);
  work();
  native_ = record.take();
  cuda::upload_graph(native_, stream.native);
}

WorkGraph::~WorkGraph() {
  if (native_ != nullptr) cuda::destroy_graph(native_);
}

void WorkGraph::launch() {
  if (!stream_.has_queue()) return work_();
  cuda::launch_graph(native_, stream_.native);
}

bool is_recording() { return recording; }

}  // namespace megatron
