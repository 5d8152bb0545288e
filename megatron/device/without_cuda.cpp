#include "megatron/core/error.h"
#include "megatron/device/cuda.h"

// device/cuda.h in builds without CUDA.
namespace megatron::cuda {
namespace {

[[noreturn]] void throw_unsupported() {
  throw Unsupported(
      "this binary was built without CUDA; use --device cpu or build the cuda preset");
}

}  // namespace

int num_devices() { return 0; }
std::string why_no_device() {
  return "this binary was built without CUDA; build the cuda preset, or use --device cpu";
}
bool has_old_driver() { return false; }
Properties properties(int) { throw_unsupported(); }
void use_device(int) { throw_unsupported(); }
FreeMemory free_memory(int) { throw_unsupported(); }

void* allocate(int64_t, int) { throw_unsupported(); }
void release(void*, int) noexcept {}
void* allocate_pinned(int64_t) { throw_unsupported(); }
void release_pinned(void*) noexcept {}

void* create_stream(int) { throw_unsupported(); }
void destroy_stream(void*) noexcept {}
void synchronize(void*) { throw_unsupported(); }
void synchronize_device(int) { throw_unsupported(); }

void* create_event(int, bool) { throw_unsupported(); }
void destroy_event(void*) noexcept {}
void record(void*, void*) { throw_unsupported(); }
void wait(void*, void*) { throw_unsupported(); }
bool is_done(void*) { throw_unsupported(); }
void synchronize_event(void*) { throw_unsupported(); }
double elapsed_ms(void*, void*) { throw_unsupported(); }

void begin_capture(void*) { throw_unsupported(); }
void* end_capture(void*) { throw_unsupported(); }
void abandon_capture(void*) noexcept {}
unsigned long long capture_of(void*) { throw_unsupported(); }
void upload_graph(void*, void*) { throw_unsupported(); }
void launch_graph(void*, void*) { throw_unsupported(); }
void destroy_graph(void*) noexcept {}

void begin_nvtx_range(const char*) noexcept {}
void end_nvtx_range() noexcept {}
void start_profiler() { throw_unsupported(); }
void stop_profiler() { throw_unsupported(); }

void copy_async(void*, const void*, int64_t, void*) { throw_unsupported(); }
void zero_async(void*, int64_t, void*) { throw_unsupported(); }

}  // namespace megatron::cuda
