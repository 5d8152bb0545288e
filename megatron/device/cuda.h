#pragma once

#include <cstdint>
#include <string>

#include "megatron/device/device.h"

// What this project asks of the CUDA runtime, in words that compile without its headers. In a build
// without CUDA num_devices() is 0 and everything else throws Unsupported. Everything throws
// DeviceError when the runtime refuses. Handles are opaque: cudaStream_t, cudaEvent_t.
namespace megatron::cuda {

#if defined(MG_CUDA_BUILD)
inline constexpr bool kIsBuilt = true;
#else
inline constexpr bool kIsBuilt = false;
#endif

struct Properties {
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  int num_multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
};

// 0 also without a driver.
int num_devices();
// Why there are none, and the remedy: no driver, a driver older than this build's runtime, no GPU.
std::string why_no_device();
// Is there a driver, but one that is too old for this build's runtime?
bool has_old_driver();
// Throws DeviceError when there is no such device, or this build has no code for it.
Properties properties(int device);
// The device of this thread's launches from now on.
void use_device(int device);

struct FreeMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};
FreeMemory free_memory(int device);

// Null when the device has no memory left.
void* allocate(int64_t bytes, int device);
// Waits for all work of the device, unless this process records a graph (begin_capture()).
void release(void* block, int device) noexcept;
// Page-locked host memory, which copies reach at full speed and without waiting for the host.
void* allocate_pinned(int64_t bytes);
void release_pinned(void* block) noexcept;

// Streams do not wait for the legacy default stream.
void* create_stream(int device);
void destroy_stream(void* stream) noexcept;
void synchronize(void* stream);

// Without a time, an event costs less and elapsed_ms() does not take it.
void* create_event(int device, bool is_timed = true);
void destroy_event(void* event) noexcept;
void record(void* event, void* stream);
void wait(void* stream, void* event);
bool is_done(void* event);
void synchronize_event(void* event);
double elapsed_ms(void* begin, void* end);

// A CUDA graph of what this thread queues on a stream from begin_capture() on. end_capture()
// returns it ready to launch, a cudaGraphExec_t; when it throws, or after abandon_capture(), the
// stream is as it was before. Other threads, and allocations of this one, are not disturbed.
void begin_capture(void* stream);
void* end_capture(void* stream);
void abandon_capture(void* stream) noexcept;
void launch_graph(void* graph, void* stream);
void destroy_graph(void* graph) noexcept;

// Named ranges that profilers show (NVTX), of this thread; they nest.
void begin_nvtx_range(const char* name) noexcept;
void end_nvtx_range() noexcept;
// What a profiler that waits for it records (nsys --capture-range=cudaProfilerApi).
void start_profiler();
void stop_profiler();

// Either side may be host or any device's memory. From pageable host memory, `from` may be reused
// on return; to pageable host memory, the copy is complete on return.
void copy_async(void* to, const void* from, int64_t bytes, void* stream);
void zero_async(void* to, int64_t bytes, void* stream);

}  // namespace megatron::cuda
