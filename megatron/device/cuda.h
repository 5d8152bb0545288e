#pragma once

#include <cstdint>
#include <string>

#include "megatron/device/device.h"

// The parts of the CUDA runtime that this project uses; compiles without its headers. In a build
// without CUDA num_devices() is 0 and everything else throws Unsupported. Everything throws
// DeviceError if the runtime fails. Handles are opaque: cudaStream_t, cudaEvent_t.
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

// 0 if there is no driver.
int num_devices();
// The reason why num_devices() is 0, with the remedy: no driver, a driver older than this build's
// runtime, no GPU.
std::string why_no_device();
// True if the driver is too old for this build's runtime.
bool has_old_driver();
// Throws DeviceError if there is no such device, or this build has no code for it.
Properties properties(int device);
// Sets the device of this thread's later launches.
void use_device(int device);

struct FreeMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};
FreeMemory free_memory(int device);

// Null if the device has no memory left.
void* allocate(int64_t bytes, int device);
// Waits for all work of the device, unless this process captures a graph (begin_capture()).
void release(void* block, int device) noexcept;
// Page-locked host memory: copies reach full speed and do not block the host.
void* allocate_pinned(int64_t bytes);
void release_pinned(void* block) noexcept;

// Streams do not wait for the legacy default stream.
void* create_stream(int device);
void destroy_stream(void* stream) noexcept;
void synchronize(void* stream);
// Waits for all work of the device, also that of other libraries. Does nothing while this process
// captures a graph.
void synchronize_device(int device);

// An event without a time costs less, but elapsed_ms() rejects it.
void* create_event(int device, bool is_timed = true);
void destroy_event(void* event) noexcept;
void record(void* event, void* stream);
void wait(void* stream, void* event);
bool is_done(void* event);
void synchronize_event(void* event);
double elapsed_ms(void* begin, void* end);

// Captures the work that this thread queues on a stream as a CUDA graph. end_capture() returns it
// ready to launch, a cudaGraphExec_t. If it throws, or after abandon_capture(), the stream is as it
// was before. Other threads, and this thread's allocations, are not affected.
void begin_capture(void* stream);
void* end_capture(void* stream);
void abandon_capture(void* stream) noexcept;
// The number of the capture that the stream is in; 0 if it is in none.
unsigned long long capture_of(void* stream);
// Uploads a graph to the device, so that its first launch costs no more than later ones.
void upload_graph(void* graph, void* stream);
void launch_graph(void* graph, void* stream);
void destroy_graph(void* graph) noexcept;

// Named ranges that profilers show (NVTX), of this thread; they nest.
void begin_nvtx_range(const char* name) noexcept;
void end_nvtx_range() noexcept;
// Bounds the recording of a profiler that waits for them (nsys --capture-range=cudaProfilerApi).
void start_profiler();
void stop_profiler();

// Each side may be host memory or any device's memory. `from` in pageable host memory may be reused
// on return; a copy to pageable host memory is complete on return.
void copy_async(void* to, const void* from, int64_t bytes, void* stream);
void zero_async(void* to, int64_t bytes, void* stream);

}  // namespace megatron::cuda
