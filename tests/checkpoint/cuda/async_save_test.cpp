#include "megatron/checkpoint/async_save.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>

#include "megatron/checkpoint/directory.h"
#include "megatron/device/stream.h"
#include "tests/checkpoint/sample_state.h"
#include "tests/support/temporary_directory.h"

// The linker hands every call of these functions in this program to those below.
extern "C" {
cudaError_t __real_cudaSetDevice(int device);
cudaError_t __wrap_cudaSetDevice(int device);
cudaError_t __real_cudaEventSynchronize(cudaEvent_t event);
cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event);
}

namespace {

// What the wrapped functions below saw; they have no argument for it.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
thread_local int device_of_thread = -1;  // as it has chosen itself
std::atomic<int> num_waits{0};
std::atomic<int> num_waits_without_device{0};
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

}  // namespace

cudaError_t __wrap_cudaSetDevice(int device) {
  device_of_thread = device;
  return __real_cudaSetDevice(device);
}

cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event) {
  ++num_waits;
  if (device_of_thread < 0) ++num_waits_without_device;
  return __real_cudaEventSynchronize(event);
}

namespace megatron {
namespace {

CheckpointState on_gpu(CheckpointState state, Stream stream) {
  for (CheckpointTensor& tensor : state.model) tensor.data = tensor.data.to(stream);
  for (auto& [section, tensors] : state.optimizer) {
    for (CheckpointTensor& tensor : tensors) tensor.data = tensor.data.to(stream);
  }
  return state;
}

// A thread that asks for an event without having chosen its device makes the driver take memory of
// the first GPU, whichever the event's is.
TEST(AsyncSaverCudaTest, ItsThreadChoosesItsDevice) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
  const TemporaryDirectory directory;
  const Device device{DeviceType::kCuda, num_cuda_devices() - 1};
  use_device(device);
  const OwnedStream stream(device);
  AsyncSaver saver(directory.path(), {}, comm::Group());
  saver.save(on_gpu(sample_state(10, 1), stream.get()));
  EXPECT_EQ(saver.finish(), 10);
  EXPECT_GT(num_waits, 0);
  EXPECT_EQ(num_waits_without_device, 0);
}

}  // namespace
}  // namespace megatron
