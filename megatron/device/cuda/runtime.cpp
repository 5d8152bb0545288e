#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/architectures.h"
#include "megatron/device/cuda.h"
#include "megatron/device/cuda/check.h"
#include "megatron/device/driver_message.h"

namespace megatron::cuda {
namespace {

// Makes a device the thread's current one while it lives.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    MG_CUDA(cudaGetDevice(&previous_));
    if (device != previous_) MG_CUDA(cudaSetDevice(device));
  }
  ~DeviceScope() { cudaSetDevice(previous_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
};

// Counts the running captures of this process; during a capture, waiting for a device is an error.
struct Captures {
  std::mutex mutex;
  int count = 0;
};
Captures& captures() {
  // Never destroyed: memory is released until the process ends.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static auto* const all = new Captures();
  return *all;
}
void end_of_capture() {
  const std::lock_guard lock(captures().mutex);
  --captures().count;
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  MG_CUDA(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

DriverState driver_state() {
  DriverState state;
  state.runtime = CUDART_VERSION;
  cudaDriverGetVersion(&state.driver);  // 0 without a driver
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  // Second condition: the driver claims to be new enough but lacks functions.
  state.is_old =
      status == cudaErrorInsufficientDriver || status == cudaErrorCallRequiresNewerDriver;
  state.error = cudaGetErrorString(status);
  return state;
}

// True if the graph contains a copy from the host, whose source may be freed before a launch.
bool copies_from_host(cudaGraph_t graph) {
  size_t count = 0;
  MG_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  MG_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
  return std::any_of(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
    cudaGraphNodeType type{};
    MG_CUDA(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeMemcpy) return false;
    cudaMemcpy3DParms copy{};
    MG_CUDA(cudaGraphMemcpyNodeGetParams(node, &copy));
    cudaPointerAttributes source{};
    MG_CUDA(cudaPointerGetAttributes(&source, copy.srcPtr.ptr));
    return source.type != cudaMemoryTypeDevice;
  });
}

}  // namespace

int num_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // a missing driver or device is not an error here
  return 0;
}

std::string why_no_device() { return no_device_message(driver_state()); }

bool has_old_driver() {
  const DriverState state = driver_state();
  return state.driver != 0 && state.is_old;
}

Properties properties(int device) {
  const int count = num_devices();
  if (device < 0 || device >= count) {
    throw DeviceError(fmt::format(
        "cuda:{} does not exist: {} devices are visible; check nvidia-smi and CUDA_VISIBLE_DEVICES",
        device, count));
  }
  cudaDeviceProp found{};
  MG_CUDA(cudaGetDeviceProperties(&found, device));
  if (!has_code_for(MG_ARCHITECTURES, found.major, found.minor)) {
    throw DeviceError(fmt::format(
        "cuda:{} ({}) has compute capability {}.{}, this binary has code for {}; use --device cpu, "
        "or build with -DMG_CUDA_ARCHITECTURES=all, which supports 8.0 and later",
        device, found.name, found.major, found.minor, gpus_of(MG_ARCHITECTURES)));
  }
  return {.name = found.name,
          .major = found.major,
          .minor = found.minor,
          .num_multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device),
          .memory_bytes = static_cast<int64_t>(found.totalGlobalMem),
          .l2_bytes = attribute(cudaDevAttrL2CacheSize, device)};
}

void use_device(int device) { MG_CUDA(cudaSetDevice(device)); }

FreeMemory free_memory(int device) {
  const DeviceScope scope(device);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  MG_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

void* allocate(int64_t bytes, int device) {
  const DeviceScope scope(device);
  void* block = nullptr;
  const cudaError_t status = cudaMalloc(&block, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(status, "cudaMalloc", __FILE__, __LINE__);
  return block;
}

void release(void* block, int device) noexcept {
  int previous = 0;
  cudaGetDevice(&previous);
  cudaSetDevice(device);
  {
    // cudaFree does not always wait for the device's work, such as a stream that waits until
    // another GPU has read the block.
    const std::lock_guard no_capture_begins(captures().mutex);
    if (captures().count == 0) cudaDeviceSynchronize();
  }
  cudaFree(block);
  cudaSetDevice(previous);
}

void* allocate_pinned(int64_t bytes) {
  void* block = nullptr;
  MG_CUDA(cudaMallocHost(&block, static_cast<size_t>(bytes)));
  return block;
}

void release_pinned(void* block) noexcept { cudaFreeHost(block); }

void* create_stream(int device) {
  const DeviceScope scope(device);
  cudaStream_t stream = nullptr;
  MG_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void destroy_stream(void* stream) noexcept { cudaStreamDestroy(stream_of(stream)); }

void synchronize(void* stream) { MG_CUDA(cudaStreamSynchronize(stream_of(stream))); }

void synchronize_device(int device) {
  const DeviceScope scope(device);
  const std::lock_guard no_capture_begins(captures().mutex);
  if (captures().count == 0) MG_CUDA(cudaDeviceSynchronize());
}

void* create_event(int device, bool is_timed) {
  const DeviceScope scope(device);
  cudaEvent_t event = nullptr;
  MG_CUDA(cudaEventCreateWithFlags(&event, is_timed ? 0 : cudaEventDisableTiming));
  return event;
}

void destroy_event(void* event) noexcept { cudaEventDestroy(event_of(event)); }

void record(void* event, void* stream) {
  MG_CUDA(cudaEventRecord(event_of(event), stream_of(stream)));
}

void wait(void* stream, void* event) {
  MG_CUDA(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
}

bool is_done(void* event) {
  const cudaError_t status = cudaEventQuery(event_of(event));
  if (status == cudaErrorNotReady) return false;
  check(status, "cudaEventQuery", __FILE__, __LINE__);
  return true;
}

void synchronize_event(void* event) { MG_CUDA(cudaEventSynchronize(event_of(event))); }

double elapsed_ms(void* begin, void* end) {
  float ms = 0;
  MG_CUDA(cudaEventElapsedTime(&ms, event_of(begin), event_of(end)));
  return ms;
}

void begin_capture(void* stream) {
  const std::lock_guard lock(captures().mutex);
  MG_CUDA(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeRelaxed));
  ++captures().count;
}

void* end_capture(void* stream) {
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream_of(stream), &captured);
  end_of_capture();
  check(ended, "cudaStreamEndCapture", __FILE__, __LINE__);
  const std::unique_ptr<CUgraph_st, decltype(&cudaGraphDestroy)> graph(captured, cudaGraphDestroy);
  if (copies_from_host(graph.get())) {
    throw DeviceError(
        "a library copies from host memory, which would change before the graph runs (cuDNN "
        "before 9.16 does if a sequence is no multiple of 128: use such a length, a newer cuDNN "
        "or --no-cuda-graph)");
  }
  cudaGraphExec_t executable = nullptr;
  MG_CUDA(cudaGraphInstantiate(&executable, graph.get(), 0));
  return executable;
}

void abandon_capture(void* stream) noexcept {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream_of(stream), &graph) == cudaSuccess) cudaGraphDestroy(graph);
  end_of_capture();
  cudaGetLastError();  // the call that broke the capture reported its own error
}

unsigned long long capture_of(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  MG_CUDA(cudaStreamGetCaptureInfo(stream_of(stream), &status, &id));
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

void upload_graph(void* graph, void* stream) {
  MG_CUDA(cudaGraphUpload(static_cast<cudaGraphExec_t>(graph), stream_of(stream)));
}

void launch_graph(void* graph, void* stream) {
  MG_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)));
}

void destroy_graph(void* graph) noexcept {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

void begin_nvtx_range(const char* name) noexcept { nvtxRangePushA(name); }
void end_nvtx_range() noexcept { nvtxRangePop(); }
void start_profiler() { MG_CUDA(cudaProfilerStart()); }
void stop_profiler() { MG_CUDA(cudaProfilerStop()); }

void copy_async(void* to, const void* from, int64_t bytes, void* stream) {
  if (bytes == 0) return;
  MG_CUDA(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_of(stream)));
}

void zero_async(void* to, int64_t bytes, void* stream) {
  if (bytes == 0) return;
  MG_CUDA(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream_of(stream)));
}

}  // namespace megatron::cuda
