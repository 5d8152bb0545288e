#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/processes.h"
#include "megatron/comm/threads.h"
#include "megatron/comm/transport.h"
#include "megatron/device/allocator.h"
#include "megatron/device/memory.h"
#include "megatron/device/stream.h"
#include "megatron/device/work_graph.h"

// Time and bus bandwidth of collectives, by size:
//
//   comm_bench [cpu|cuda] [ranks]            ranks are threads: one for each GPU, four without
//   mpirun -np 4 comm_bench [cpu|cuda]       ranks are processes
//
// Threads communicate by peer copies, or NCCL with MEGATRON_PEER_COPIES=off; processes by NCCL.
//
// Bus bandwidth is the bytes that each rank must send, divided by the time: 2 (n - 1) / n of the
// buffer for an all_reduce, (n - 1) / n for an all_gather or reduce_scatter of n ranks, half of it
// for an exchange around the ring of ranks. "host us" is the host's time for starting and awaiting
// an exchange. The last columns are an all_reduce and an all_gather in a CUDA graph of 50, where
// they can be recorded.
namespace megatron::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds of one call: the mean of many after a warm-up.
template <class F>
double seconds_of(const Group& world, Stream stream, int64_t bytes, const F& call) {
  const int num_calls = bytes < (1 << 20) ? 200 : 20;
  for (int i = 0; i < 5; ++i) call();
  synchronize(stream);
  barrier(world);
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < num_calls; ++i) call();
  synchronize(stream);
  barrier(world);
  return std::chrono::duration<double>(Clock::now() - begin).count() / num_calls;
}

// Seconds of the host for a call, from a few calls that the device runs later.
template <class F>
double host_seconds_of(const Group& world, Stream stream, const F& call) {
  constexpr int kCalls = 8;
  double least = 1e9;
  for (int round = 0; round < 5; ++round) {
    synchronize(stream);
    barrier(world);
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count() / kCalls);
  }
  synchronize(stream);
  return least;
}

// Seconds of a call in a record of many.
template <class F>
double recorded_seconds_of(const Group& world, Stream stream, const F& call) {
  constexpr int kCalls = 50;
  WorkGraph graph(stream, [&] {
    for (int i = 0; i < kCalls; ++i) call();
  });
  return seconds_of(world, stream, int64_t{1} << 20,
                    [&] {
                      launch_barrier(world, stream);
                      graph.launch();
                    }) /
         kCalls;
}

void measure(const Group& world, Stream stream) {
  const int size = world.size();
  constexpr int64_t kMaxBytes = int64_t{256} << 20;
  CachingAllocator memory(stream.device);
  void* const data = memory.allocate(kMaxBytes, MemoryCategory::kWorkspace);
  const std::vector<float> ones(static_cast<size_t>(kMaxBytes) / sizeof(float), 1.0f);
  copy_bytes(data, ones.data(), kMaxBytes, stream);
  if (world.rank() == 0) {
    const std::string device =
        stream.is_cpu() || size == 1
            ? stream.device.str()
            : "GPUs by " + std::string(world.device_transport(stream.device).name());
    std::printf("%d ranks on %s, float32\n%12s %24s %24s %24s %24s %12s %12s %12s\n", size,
                device.c_str(), "bytes", "all_reduce us GB/s", "all_gather us GB/s",
                "reduce_scatter us GB/s", "exchange us GB/s", "host us", "graph: sum", "gather us");
  }
  const bool records = size > 1 && !stream.is_cpu() && can_record(world, stream);
  for (int64_t bytes = 4096; bytes <= kMaxBytes; bytes *= 4) {
    const int64_t count = bytes / static_cast<int64_t>(sizeof(float)) / size * size;
    const TensorView all{data, {count}, DType::kFloat32};
    const TensorView own{
        static_cast<float*>(data) + world.rank() * (count / size), {count / size}, DType::kFloat32};
    // The maximum of ones stays one for any number of calls.
    const double reduce =
        seconds_of(world, stream, bytes, [&] { all_reduce(all, Reduce::kMax, world, stream); });
    const double gather =
        seconds_of(world, stream, bytes, [&] { all_gather(all, own, world, stream); });
    const double scatter = seconds_of(
        world, stream, bytes, [&] { reduce_scatter(own, all, Reduce::kMax, world, stream); });
    const int64_t half = count / 2;
    const TensorView to{data, {half}, DType::kFloat32};
    const TensorView from{static_cast<float*>(data) + half, {half}, DType::kFloat32};
    const std::array<Transfer, 2> transfers = {
        {{to, (world.rank() + 1) % size, true}, {from, (world.rank() + size - 1) % size, false}}};
    double exchange_seconds = 0;
    double host_seconds = 0;
    if (size > 1) {
      exchange_seconds =
          seconds_of(world, stream, bytes, [&] { exchange(transfers, world, stream); });
      host_seconds =
          host_seconds_of(world, stream, [&] { start_exchange(transfers, world, stream).wait(); });
    }
    double recorded_reduce = 0;
    double recorded_gather = 0;
    if (records) {
      recorded_reduce =
          recorded_seconds_of(world, stream, [&] { all_reduce(all, Reduce::kMax, world, stream); });
      recorded_gather =
          recorded_seconds_of(world, stream, [&] { all_gather(all, own, world, stream); });
    }
    const double sent = static_cast<double>(all.bytes()) * (size - 1) / size * 1e-9;
    if (world.rank() != 0) continue;
    std::printf("%12lld %15.1f %8.2f %15.1f %8.2f %15.1f %8.2f %15.1f %8.2f %12.1f %12.1f %12.1f\n",
                static_cast<long long>(bytes), reduce * 1e6, 2 * sent / reduce, gather * 1e6,
                sent / gather, scatter * 1e6, sent / scatter, exchange_seconds * 1e6,
                static_cast<double>(to.bytes()) / exchange_seconds * 1e-9, host_seconds * 1e6,
                recorded_reduce * 1e6, recorded_gather * 1e6);
  }
  memory.release(data);
}

void run_rank(const Group& world, const Device& device) {
  use_device(device);
  const OwnedStream stream(device);
  const Clock::time_point begin = Clock::now();
  connect(world, stream.get());
  if (!device.is_cpu() && world.rank() == 0) {
    const std::chrono::duration<double> time = Clock::now() - begin;
    std::printf("connected in %.2f s\n", time.count());
  }
  measure(world, stream.get());
}

int run(int argc, char** argv) {
  const int num_gpus = num_cuda_devices();
  const bool on_gpus = argc > 1 ? std::string(argv[1]) == "cuda" : num_gpus > 1;
  const DeviceType type = on_gpus ? DeviceType::kCuda : DeviceType::kCpu;
  if (const std::optional<LaunchEnvironment> place = launch_environment()) {
    run_process_rank(*place, [&](const Group& world) {
      run_rank(world, {type, place->local_rank});
    });
    return 0;
  }
  const int num_ranks = argc > 2 ? std::atoi(argv[2]) : (on_gpus ? num_gpus : 4);
  if (num_ranks < 1 || (on_gpus && num_gpus == 0)) {
    std::fprintf(stderr, "comm_bench [cpu|cuda] [ranks]: %d GPUs are visible\n", num_gpus);
    return 2;
  }
  run_ranks(num_ranks, [&](const Group& world) {
    run_rank(world, {type, on_gpus ? world.rank() % num_gpus : world.rank()});
  });
  return 0;
}

}  // namespace
}  // namespace megatron::comm

int main(int argc, char** argv) { return megatron::comm::run(argc, argv); }
