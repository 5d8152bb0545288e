#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/nccl/nccl_transport.h"
#include "megatron/comm/threads.h"
#include "megatron/core/half.h"
#include "megatron/device/cuda.h"
#include "megatron/device/cuda/check.h"
#include "megatron/device/memory.h"
#include "megatron/device/stream.h"
#include "tests/comm/cuda/on_gpu.h"
#include "tests/comm/values.h"
#include "tests/support/message_of.h"

// Every test runs on all GPUs of the machine, a rank's thread each.
namespace megatron::comm {
namespace {

using testing::HasSubstr;

constexpr ThreadRanksOptions kNcclOptions{.timeout = std::chrono::seconds(60)};

// Small whole numbers: their sums are exact in every type and order.
template <class T>
std::vector<T> wholes(int rank, int64_t count) {
  std::vector<T> list;
  for (int64_t i = 0; i < count; ++i) {
    list.push_back(static_cast<T>(static_cast<float>((i * 7 + rank * 3) % 13)));
  }
  return list;
}

template <class T>
std::vector<float> floats(const std::vector<T>& list) {
  std::vector<float> result;
  for (const T value : list) result.push_back(static_cast<float>(value));
  return result;
}

class NcclTest : public testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() < 2) GTEST_SKIP() << "needs two GPUs: not run";
    ::setenv("MEGATRON_PEER_COPIES", "off", 1);
  }
  void TearDown() override { ::unsetenv("MEGATRON_PEER_COPIES"); }

  static int size() { return num_cuda_devices(); }
  static void run_on_gpus(const std::function<void(const Group& world, Stream stream)>& f,
                          ThreadRanksOptions options = kNcclOptions) {
    run_ranks(
        size(),
        [&](const Group& world) {
          const Device device{DeviceType::kCuda, world.rank()};
          use_device(device);
          const OwnedStream stream(device);
          f(world, stream.get());
        },
        options);
  }
};

template <class T>
void check_reductions(const Group& world, Stream stream) {
  const int size = world.size();
  const int64_t count = 1001;
  std::vector<float> sum(static_cast<size_t>(size * count));
  std::vector<float> most(sum.size());
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> x = wholes<float>(rank, size * count);
    for (size_t i = 0; i < x.size(); ++i) {
      sum[i] += x[i];
      most[i] = std::max(most[i], x[i]);
    }
  }
  const std::vector<T> mine = wholes<T>(world.rank(), size * count);
  const OnGpu<T> x(mine, stream);
  all_reduce(x.view(), Reduce::kSum, world, stream);
  EXPECT_EQ(floats(x.read()), sum);
  const OnGpu<T> y(mine, stream);
  all_reduce(y.view(), Reduce::kMax, world, stream);
  EXPECT_EQ(floats(y.read()), most);

  const OnGpu<T> z(mine, stream);
  const TensorView own = z.part(world.rank(), size);
  reduce_scatter(own, z.view(), Reduce::kSum, world, stream);
  const std::vector<float> got = floats(z.read());
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const size_t at = static_cast<size_t>(world.rank() * count) + i;
    ASSERT_EQ(got[at], sum[at]);
  }
}

TEST_F(NcclTest, Reduces) {
  run_on_gpus([](const Group& world, Stream stream) {
    check_reductions<float>(world, stream);
    check_reductions<BFloat16>(world, stream);
    check_reductions<Float16>(world, stream);
    check_reductions<double>(world, stream);
    check_reductions<int64_t>(world, stream);
    check_reductions<int32_t>(world, stream);
  });
}

TEST_F(NcclTest, MovesWithoutReducing) {
  run_on_gpus([](const Group& world, Stream stream) {
    const int size = world.size();
    const int64_t count = 333;
    std::vector<int16_t> all;
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<int16_t> part = values<int16_t>(rank, count);
      all.insert(all.end(), part.begin(), part.end());
    }
    const OnGpu<int16_t> x(values<int16_t>(world.rank(), count), stream);
    const OnGpu<int16_t> y(std::vector<int16_t>(all.size()), stream);
    all_gather(y.view(), x.view(), world, stream);
    EXPECT_EQ(y.read(), all);
    broadcast(x.view(), size - 1, world, stream);
    EXPECT_EQ(x.read(), values<int16_t>(size - 1, count));

    const OnGpu<uint8_t> in(values<uint8_t>(world.rank(), size * count), stream);
    const OnGpu<uint8_t> out(std::vector<uint8_t>(static_cast<size_t>(size * count)), stream);
    all_to_all(out.view(), in.view(), world, stream);
    std::vector<uint8_t> got = out.read();
    for (int rank = 0; rank < size; ++rank) {
      std::vector<uint8_t> theirs = values<uint8_t>(rank, size * count);
      EXPECT_EQ(std::memcmp(part_of(got, rank, size).data, part_of(theirs, world.rank(), size).data,
                            static_cast<size_t>(count)),
                0);
    }
  });
}

TEST_F(NcclTest, ExchangesWithBothNeighbours) {
  run_on_gpus([](const Group& world, Stream stream) {
    const int next = (world.rank() + 1) % world.size();
    const int previous = (world.rank() + world.size() - 1) % world.size();
    const OnGpu<float> x(values<float>(world.rank(), 500), stream);
    const OnGpu<float> from_next(std::vector<float>(500), stream);
    const OnGpu<float> from_previous(std::vector<float>(500), stream);
    const std::array<Transfer, 4> transfers = {{{from_next.view(), next, false},
                                                {x.view(), next, true},
                                                {x.view(), previous, true},
                                                {from_previous.view(), previous, false}}};
    if (world.size() == 2) {  // one peer: messages match in the order of sending
      exchange(std::span(transfers).first(2), world, stream);
    } else {
      exchange(transfers, world, stream);
      EXPECT_EQ(from_previous.read(), values<float>(previous, 500));
    }
    EXPECT_EQ(from_next.read(), values<float>(next, 500));
  });
}

TEST_F(NcclTest, StartedOnesRunBesideAndAreInOrder) {
  run_on_gpus([](const Group& world, Stream stream) {
    const int size = world.size();
    const std::vector<int> everybody(world.world_ranks().begin(), world.world_ranks().end());
    const Group other = world.subgroup("data", everybody);
    connect(other, stream);
    const int64_t count = 1 << 20;
    const OnGpu<float> x(std::vector<float>(count, 1), stream);
    const OnGpu<float> y(std::vector<float>(count, 1), stream);
    for (int i = 0; i < 5; ++i) {
      Pending first = start_all_reduce(x.view(), Reduce::kMax, world, stream);
      Pending second = start_all_reduce(y.view(), Reduce::kMax, other, stream);
      const OnGpu<int32_t> beside({world.rank()}, stream);
      all_reduce(beside.view(), Reduce::kSum, world, stream);  // one communicator, two streams
      EXPECT_EQ(beside.read()[0], size * (size - 1) / 2);
      second.wait();
      first.wait();
      all_reduce(x.view(), Reduce::kMax, world, stream);
    }
    EXPECT_EQ(x.read(), std::vector<float>(count, 1));
    EXPECT_EQ(y.read(), std::vector<float>(count, 1));
  });
}

TEST_F(NcclTest, CanBeCapturedInAGraph) {
  run_on_gpus([](const Group& world, Stream stream) {
    const OnGpu<int64_t> x({1}, stream);
    const OnGpu<int64_t> y(std::vector<int64_t>(static_cast<size_t>(world.size())), stream);
    const auto step = [&] {
      all_reduce(x.view(), Reduce::kSum, world, stream);
      start_all_gather(y.view(), x.view(), world, stream).wait();
    };
    step();  // connects
    synchronize(stream);
    cudaStream_t const native = static_cast<cudaStream_t>(stream.native);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    MG_CUDA(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal));
    step();
    MG_CUDA(cudaStreamEndCapture(native, &graph));
    MG_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    int64_t want = world.size();
    for (int i = 0; i < 3; ++i) {
      MG_CUDA(cudaGraphLaunch(executable, native));
      want *= world.size();
    }
    EXPECT_EQ(y.read(), std::vector<int64_t>(static_cast<size_t>(world.size()), want));
    MG_CUDA(cudaGraphExecDestroy(executable));
    MG_CUDA(cudaGraphDestroy(graph));
  });
}

TEST_F(NcclTest, ARankThatThrowsReleasesStreamsThatWait) {
  std::atomic<int> num_queued{0};
  std::atomic<int> num_released{0};
  const std::string message = message_of<ConfigError>([&] {
    run_on_gpus([&](const Group& world, Stream stream) {
      const OnGpu<float> x(std::vector<float>(1000, 1), stream);
      all_reduce(x.view(), Reduce::kSum, world, stream);
      synchronize(stream);
      if (world.rank() == 1) {
        while (num_queued < size() - 1) std::this_thread::yield();
        throw ConfigError("the disk is full");
      }
      all_reduce(x.view(), Reduce::kSum, world, stream);
      ++num_queued;
      synchronize(stream);  // returns because the watchdog aborts
      EXPECT_THAT(message_of<CommError>([&] { all_reduce(x.view(), Reduce::kSum, world, stream); }),
                  HasSubstr("rank 1 of the world failed: the disk is full"));
      ++num_released;
    });
  });
  EXPECT_EQ(message, "the disk is full");
  EXPECT_EQ(num_released, size() - 1);
}

TEST_F(NcclTest, AMemberThatDoesNotComeIsNamed) {
  std::atomic<int> num_connected{0};
  std::atomic<int> num_released{0};
  run_on_gpus(
      [&](const Group& world, Stream stream) {
        const OnGpu<float> x(std::vector<float>(1000, 1), stream);
        all_reduce(x.view(), Reduce::kSum, world, stream);
        synchronize(stream);
        // NCCL takes two seconds and more to connect.
        ++num_connected;
        while (num_connected < world.size()) std::this_thread::yield();
        world.transport().context().timeout = std::chrono::seconds(2);
        if (world.rank() == 0) {
          while (num_released < world.size() - 1) std::this_thread::yield();
          return;
        }
        all_reduce(x.view(), Reduce::kMax, world, stream);
        synchronize(stream);
        const std::string text =
            message_of<CommError>([&] { all_reduce(x.view(), Reduce::kSum, world, stream); });
        EXPECT_THAT(text, HasSubstr("all_reduce(max, 1000 x float32) in group world was not done "
                                    "after 2 s"));
        EXPECT_THAT(text, HasSubstr("rank 0 (rank 0 of the world): all_reduce(sum, 1000 x float32) "
                                    "in group world, queued"));
        ++num_released;
      },
      kNcclOptions);
}

// One GPU is enough for NCCL itself; groups of one never ask it.
TEST(NcclAloneTest, IsTheIdentity) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
  const Device device{DeviceType::kCuda, 0};
  use_device(device);
  const OwnedStream stream(device);
  const std::shared_ptr<Transport> self =
      make_self_transport({.name = "self", .rank = 0, .world_ranks = {0}});
  const std::unique_ptr<DeviceTransport> alone = nccl::make_nccl_transport(*self, device);
  const OnGpu<float> x(values<float>(0, 100), stream.get());
  const OnGpu<float> y(std::vector<float>(100), stream.get());
  for (const Operation operation :
       {Operation::kAllReduce, Operation::kAllGather, Operation::kReduceScatter}) {
    zero_bytes(y.view().data, y.view().bytes(), stream.get());
    alone->run({operation, DType::kFloat32, 100}, x.view().data, y.view().data, stream.get());
    EXPECT_EQ(y.read(), values<float>(0, 100)) << name_of(operation);
  }
}

}  // namespace
}  // namespace megatron::comm
