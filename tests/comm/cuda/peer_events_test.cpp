#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <vector>

#include "megatron/comm/collectives.h"
#include "tests/comm/cuda/peer_ranks.h"

// The linker hands every call of these functions in this program to those below.
extern "C" {
cudaError_t __real_cudaEventCreate(cudaEvent_t* event);
cudaError_t __wrap_cudaEventCreate(cudaEvent_t* event);
cudaError_t __real_cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t __wrap_cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
}

namespace {
// Counted by the wrapped function below, which has no argument for it.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<int> num_events_made{0};
}  // namespace

cudaError_t __wrap_cudaEventCreate(cudaEvent_t* event) {
  ++num_events_made;
  return __real_cudaEventCreate(event);
}
cudaError_t __wrap_cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  ++num_events_made;
  return __real_cudaEventCreateWithFlags(event, flags);
}

namespace megatron::comm {
namespace {

// Pending collectives use events again: making one takes longer than to queue a copy.
TEST_P(PeerTest, StartedOnesMakeNoNewEvents) {
  run_on_gpus([](const Group& world, Stream stream) {
    const int size = world.size();
    const int64_t count = 5000;
    const OnGpu<float> x(std::vector<float>(static_cast<size_t>(count)), stream);
    const OnGpu<float> all(std::vector<float>(static_cast<size_t>(count * size)), stream);
    const OnGpu<float> parts(std::vector<float>(static_cast<size_t>(count * size)), stream);
    const auto round = [&] {
      const std::array<Transfer, 2> transfers = {
          {{x.view(), (world.rank() + 1) % size, true},
           {all.part(0, size), (world.rank() + size - 1) % size, false}}};
      start_exchange(transfers, world, stream).wait();
      Pending gathering = start_all_gather(all.view(), x.view(), world, stream);
      Pending sum = start_all_reduce(x.view(), Reduce::kSum, world, stream);
      gathering.wait();
      sum.wait();
      start_all_to_all(parts.view(), all.view(), world, stream).wait();
    };
    for (int i = 0; i < 2; ++i) round();
    barrier(world);
    const int before = num_events_made;
    barrier(world);
    for (int i = 0; i < 10; ++i) round();
    barrier(world);
    EXPECT_EQ(num_events_made, before);
  });
}

}  // namespace
}  // namespace megatron::comm
