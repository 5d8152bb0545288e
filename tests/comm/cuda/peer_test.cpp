#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "megatron/comm/transport.h"
#include "megatron/core/half.h"
#include "megatron/device/allocator.h"
#include "megatron/device/cuda.h"
#include "megatron/device/memory.h"
#include "megatron/device/stream.h"
#include "tests/comm/cuda/on_gpu.h"
#include "tests/comm/cuda/ranks.h"
#include "tests/comm/values.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"

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

// What GPUs do by peer copies has the bits of what ranks do on the CPU.
namespace megatron::comm {
namespace {

using testing::HasSubstr;

constexpr Stream kCpu{};
constexpr ThreadRanksOptions kOptions{.timeout = std::chrono::seconds(60)};

class PeerTest : public testing::TestWithParam<Ranks> {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
    if (num_cuda_devices() == 1 && !GetParam().share_a_gpu && world_of_processes() == nullptr) {
      GTEST_SKIP() << "needs two GPUs: not run";
    }
  }

  static int size() { return GetParam().count; }
  static void run_on_gpus(const std::function<void(const Group& world, Stream stream)>& f,
                          ThreadRanksOptions options = kOptions) {
    const int num_gpus = GetParam().share_a_gpu ? 1 : num_cuda_devices();
    const auto run_rank = [&](const Group& world) {
      const Device device{DeviceType::kCuda, world.rank() % num_gpus};
      use_device(device);
      const OwnedStream stream(device);
      const MemoryPool pool(allocator_of(device));  // threads may share a GPU
      const PoolScope scope(&pool);
      f(world, stream.get());
      synchronize(stream.get());
    };
    if (const Group* const all = world_of_processes()) {
      const std::vector<int> everybody(all->world_ranks().begin(), all->world_ranks().end());
      run_rank(all->subgroup("world", everybody));  // with peer copies of its own
      barrier(*all);
    } else {
      run_ranks(size(), run_rank, options);
    }
  }
};

template <class T>
void expect_bits(const std::vector<T>& got, const std::vector<T>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  if (got.empty() || std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0) return;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(T)), 0) << what << ", element " << i;
  }
}

// These need ranks that are threads.
class PeerThreadTest : public PeerTest {};

// Keeps the stream busy for longer on some ranks than on others.
class Delay {
 public:
  explicit Delay(Stream stream) : memory_(std::vector<uint8_t>(kBytes), stream) {}
  void queue(int rounds, Stream stream) {
    for (int i = 0; i < rounds; ++i) zero_bytes(memory_.view().data, kBytes, stream);
  }

 private:
  static constexpr int64_t kBytes = int64_t{64} << 20;
  OnGpu<uint8_t> memory_;
};

template <class F>
void for_reducible_types(const F& f) {
  f(float{}, "float32");
  f(double{}, "float64");
  f(Float16{}, "float16");
  f(BFloat16{}, "bfloat16");
  f(int64_t{}, "int64");
  f(int32_t{}, "int32");
}

// On the GPU and on the CPU: all_reduce, and reduce_scatter beside and in place.
template <class T>
void check_reductions(int64_t part, Reduce op, const Group& world, Stream stream,
                      const std::string& what) {
  std::vector<T> mine = values<T>(world.rank(), part * world.size());
  std::vector<T> want = mine;
  std::vector<T> want_part(static_cast<size_t>(part));
  reduce_scatter(view_of(want_part), view_of(mine), op, world, kCpu);
  all_reduce(view_of(want), op, world, kCpu);

  const OnGpu<T> x(mine, stream);
  const OnGpu<T> y(std::vector<T>(static_cast<size_t>(part)), stream);
  reduce_scatter(y.view(), x.view(), op, world, stream);
  expect_bits(y.read(), want_part, what + " reduce_scatter");
  expect_bits(x.read(), mine, what + " the input of reduce_scatter");
  all_reduce(x.view(), op, world, stream);
  expect_bits(x.read(), want, what + " all_reduce");

  const OnGpu<T> z(mine, stream);
  reduce_scatter(z.part(world.rank(), world.size()), z.view(), op, world, stream);
  std::vector<T> got = z.read();
  const T* const own = static_cast<const T*>(part_of(got, world.rank(), world.size()).data);
  expect_bits(std::vector<T>(own, own + part), want_part, what + " reduce_scatter in place");
}

TEST_P(PeerTest, ReducesToTheBitsOfTheCpu) {
  run_on_gpus([](const Group& world, Stream stream) {
    for_reducible_types([&](auto zero, const std::string& type) {
      using T = decltype(zero);
      for (const int64_t part : {0, 1, 7, 1001, 40003}) {
        for (const Reduce op : {Reduce::kSum, Reduce::kMax}) {
          check_reductions<T>(part, op, world, stream, type + " x " + std::to_string(part));
        }
      }
    });
  });
}

TEST_P(PeerTest, LargeSumsAreTakenPieceByPiece) {
  run_on_gpus([](const Group& world, Stream stream) {
    const int64_t part = (int64_t{36} << 20) / world.size();  // more pieces than slots
    check_reductions<float>(part + 1, Reduce::kSum, world, stream, "float32");
    check_reductions<BFloat16>(part / 2, Reduce::kSum, world, stream, "bfloat16");
  });
}

// Those that run beside other work have larger pieces.
TEST_P(PeerTest, LargeSumsRunBesideOtherWork) {
  run_on_gpus([](const Group& world, Stream stream) {
    const int size = world.size();
    const int64_t part = (int64_t{36} << 20) / size;
    const OnGpu<int32_t> x(std::vector<int32_t>(static_cast<size_t>(part * size)), stream);
    const OnGpu<int32_t> y(std::vector<int32_t>(static_cast<size_t>(part * size)), stream);
    Delay delay(stream);
    for (int i = 0; i < 3; ++i) {
      const std::vector<int32_t> mine(static_cast<size_t>(part * size), world.rank() + i);
      copy_bytes(x.view().data, mine.data(), x.view().bytes(), stream);
      copy_bytes(y.view().data, mine.data(), y.view().bytes(), stream);
      delay.queue((world.rank() + i) % 3 * 3, stream);
      Pending first =
          start_reduce_scatter(x.part(world.rank(), size), x.view(), Reduce::kSum, world, stream);
      Pending second = start_all_reduce(y.view(), Reduce::kMax, world, stream);
      delay.queue(2, stream);
      first.wait();
      second.wait();
      std::vector<int32_t> got = x.read();
      const auto* const own = static_cast<const int32_t*>(part_of(got, world.rank(), size).data);
      ASSERT_EQ(std::count(own, own + part, size * (size - 1) / 2 + i * size), part);
      got = y.read();
      ASSERT_EQ(std::count(got.begin(), got.end(), size - 1 + i), part * size);
    }
  });
}

TEST_P(PeerTest, MaximumWithNanIsNan) {
  run_on_gpus([](const Group& world, Stream stream) {
    std::vector<float> mine(8, 1);
    mine[static_cast<size_t>(world.rank())] = std::numeric_limits<float>::quiet_NaN();
    const OnGpu<float> x(mine, stream);
    all_reduce(x.view(), Reduce::kMax, world, stream);
    const std::vector<float> got = x.read();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(std::isnan(got[i]), i < static_cast<size_t>(world.size()));
    }
  });
}

template <class T>
void check_moves(int64_t count, const Group& world, Stream stream, const std::string& what) {
  const int size = world.size();
  std::vector<T> mine = values<T>(world.rank(), count);
  std::vector<T> all(static_cast<size_t>(size * count));
  all_gather(view_of(all), view_of(mine), world, kCpu);
  const OnGpu<T> x(mine, stream);
  const OnGpu<T> y(std::vector<T>(all.size()), stream);
  all_gather(y.view(), x.view(), world, stream);
  expect_bits(y.read(), all, what + " all_gather");

  std::vector<T> own_part(all.size());
  std::copy(mine.begin(), mine.end(), own_part.begin() + world.rank() * count);
  const OnGpu<T> z(own_part, stream);
  all_gather(z.view(), z.part(world.rank(), size), world, stream);
  expect_bits(z.read(), all, what + " all_gather in place");

  for (int root = 0; root < size; ++root) {
    const OnGpu<T> from_root(mine, stream);
    broadcast(from_root.view(), root, world, stream);
    expect_bits(from_root.read(), values<T>(root, count), what + " broadcast");
  }

  std::vector<T> in = values<T>(world.rank(), size * count, 5);
  std::vector<T> want(in.size());
  all_to_all(view_of(want), view_of(in), world, kCpu);
  const OnGpu<T> from(in, stream);
  const OnGpu<T> to(std::vector<T>(in.size()), stream);
  all_to_all(to.view(), from.view(), world, stream);
  expect_bits(to.read(), want, what + " all_to_all");
}

TEST_P(PeerTest, MovesWithoutReducing) {
  run_on_gpus([](const Group& world, Stream stream) {
    for (const int64_t count : {1, 333, 100001}) {
      const std::string what = std::to_string(count);
      check_moves<float>(count, world, stream, what + " x float32");
      check_moves<BFloat16>(count, world, stream, what + " x bfloat16");
      check_moves<double>(count, world, stream, what + " x float64");
      check_moves<int64_t>(count, world, stream, what + " x int64");
      check_moves<uint8_t>(count, world, stream, what + " x uint8");
      check_moves<int16_t>(count, world, stream, what + " x int16");
    }
  });
}

// Each round overwrites inputs and outputs as soon as the calls are queued, while GPUs are at
// different places.
TEST_P(PeerTest, MemoryMayBeUsedAgainAtOnce) {
  run_on_gpus([](const Group& world, Stream stream) {
    const int64_t size = world.size();
    Delay delay(stream);
    for (const int64_t part : {int64_t{1000}, int64_t{300000}}) {
      const OnGpu<int32_t> x(std::vector<int32_t>(static_cast<size_t>(part)), stream);
      const OnGpu<int32_t> y(std::vector<int32_t>(static_cast<size_t>(part * size)), stream);
      const OnGpu<int32_t> z(std::vector<int32_t>(static_cast<size_t>(part)), stream);
      for (int i = 0; i < 12; ++i) {
        const std::vector<int32_t> mine(static_cast<size_t>(part), i + 1);
        copy_bytes(x.view().data, mine.data(), x.view().bytes(), stream);
        delay.queue((world.rank() + i) % 3 * 4, stream);
        all_gather(y.view(), x.view(), world, stream);  // all i + 1
        zero_bytes(x.view().data, x.view().bytes(), stream);
        reduce_scatter(z.view(), y.view(), Reduce::kSum, world, stream);  // size * (i + 1)
        zero_bytes(y.view().data, y.view().bytes(), stream);
        all_reduce(z.view(), Reduce::kSum, world, stream);  // size^2 * (i + 1)
        broadcast(z.view(), i % world.size(), world, stream);
        for (int64_t to = 0; to < size; ++to) {
          copy_bytes(y.part(static_cast<int>(to), world.size()).data, z.view().data,
                     z.view().bytes(), stream);
        }
        zero_bytes(z.view().data, z.view().bytes(), stream);
        const OnGpu<int32_t> w(std::vector<int32_t>(static_cast<size_t>(part * size)), stream);
        all_to_all(w.view(), y.view(), world, stream);
        zero_bytes(y.view().data, y.view().bytes(), stream);
        const auto want = static_cast<int32_t>(size * size * (i + 1));
        ASSERT_EQ(w.read(), std::vector<int32_t>(static_cast<size_t>(part * size), want)) << i;
      }
    }
  });
}

TEST_P(PeerTest, StartedOnesRunBesideOtherWorkAndOtherGroups) {
  run_on_gpus([](const Group& world, Stream stream) {
    const int64_t size = world.size();
    const std::vector<int> everybody(world.world_ranks().begin(), world.world_ranks().end());
    const Group other = world.subgroup("data", everybody);
    connect(other, stream);
    Delay delay(stream);
    for (const int64_t part : {int64_t{1000}, int64_t{400000}}) {
      const int64_t count = part * size;
      const auto ones = [&](int64_t n) { return std::vector<float>(static_cast<size_t>(n), 1); };
      const OnGpu<float> x(ones(count), stream);
      const OnGpu<float> y(ones(count), stream);
      const OnGpu<float> z(ones(part), stream);
      const OnGpu<float> w(ones(part), stream);
      for (int i = 0; i < 6; ++i) {
        delay.queue((world.rank() + i) % 2 * 3, stream);
        Pending first = start_all_reduce(x.view(), Reduce::kMax, world, stream);
        Pending second = start_all_gather(y.view(), z.view(), other, stream);
        const OnGpu<int32_t> beside({world.rank()}, stream);
        all_reduce(beside.view(), Reduce::kSum, world, stream);
        EXPECT_EQ(beside.read()[0], size * (size - 1) / 2);
        second.wait();
        zero_bytes(z.view().data, z.view().bytes(), stream);
        Pending third = start_reduce_scatter(w.view(), y.view(), Reduce::kSum, other, stream);
        first.wait();
        third.wait();
        zero_bytes(y.view().data, y.view().bytes(), stream);
        ASSERT_EQ(x.read(), ones(count)) << i;
        ASSERT_EQ(w.read(), std::vector<float>(static_cast<size_t>(part), static_cast<float>(size)))
            << i;
        copy_bytes(z.view().data, ones(part).data(), z.view().bytes(), stream);
        synchronize(stream);
      }
    }
  });
}

// As products of a tensor-parallel layer do (parallel/tensor/pieces.cpp).
TEST_P(PeerTest, ExchangesRunBesideOtherWork) {
  run_on_gpus([](const Group& world, Stream stream) {
    const int size = world.size();
    const int64_t count = 100003;
    Delay delay(stream);
    const OnGpu<float> x(std::vector<float>(static_cast<size_t>(count)), stream);
    const OnGpu<float> all(std::vector<float>(static_cast<size_t>(count * size)), stream);
    for (uint64_t round = 0; round < 8; ++round) {
      const std::vector<float> mine = values<float>(world.rank(), count, round);
      copy_bytes(x.view().data, mine.data(), x.view().bytes(), stream);
      delay.queue(static_cast<int>((static_cast<uint64_t>(world.rank()) + round) % 3) * 3, stream);
      std::vector<Pending> arrivals;
      for (int step = 1; step < size; ++step) {
        const int to = (world.rank() + size - step) % size;
        const int from = (world.rank() + step) % size;
        const std::array<Transfer, 2> transfers = {
            {{x.view(), to, true}, {all.part(from, size), from, false}}};
        arrivals.push_back(start_exchange(transfers, world, stream));
      }
      copy_bytes(all.part(world.rank(), size).data, x.view().data, x.view().bytes(), stream);
      for (Pending& arrival : arrivals) arrival.wait();
      zero_bytes(x.view().data, x.view().bytes(), stream);  // the others have read it
      std::vector<float> got = all.read();
      for (int rank = 0; rank < size; ++rank) {
        const std::vector<float> want = values<float>(rank, count, round);
        ASSERT_EQ(std::memcmp(part_of(got, rank, size).data, want.data(), want.size() * 4), 0)
            << "round " << round << ", rank " << rank;
      }
    }
  });
}

// As the stages of a pipeline do: receives are started early, sends overwrite what they sent.
TEST_P(PeerTest, MessagesGoThroughAPipeline) {
  run_on_gpus([](const Group& world, Stream stream) {
    const int last = world.size() - 1;
    constexpr int kMessages = 12;
    const int64_t count = 50000;
    Delay delay(stream);
    const OnGpu<int32_t> x(std::vector<int32_t>(static_cast<size_t>(count)), stream);
    std::vector<std::unique_ptr<OnGpu<int32_t>>> slots;
    for (int i = 0; i < 2; ++i) {
      slots.push_back(std::make_unique<OnGpu<int32_t>>(
          std::vector<int32_t>(static_cast<size_t>(count)), stream));
    }
    const auto receive = [&](int i) {
      const Transfer transfer{slots[static_cast<size_t>(i % 2)]->view(), world.rank() - 1, false};
      return start_exchange({&transfer, 1}, world, stream);
    };
    Pending next;
    if (world.rank() > 0) next = receive(0);
    for (int i = 0; i < kMessages; ++i) {
      delay.queue((world.rank() + i) % 3 * 2, stream);
      const OnGpu<int32_t>* slot = &x;
      if (world.rank() > 0) {
        Pending now = std::move(next);
        next = Pending();
        if (i + 1 < kMessages) next = receive(i + 1);
        now.wait();
        slot = slots[static_cast<size_t>(i % 2)].get();
        if (world.rank() == last) {
          ASSERT_EQ(slot->read(), std::vector<int32_t>(static_cast<size_t>(count), i)) << i;
        }
      } else {
        const std::vector<int32_t> mine(static_cast<size_t>(count), i);
        copy_bytes(x.view().data, mine.data(), x.view().bytes(), stream);
      }
      if (world.rank() < last) {
        const Transfer transfer{slot->view(), world.rank() + 1, true};
        start_exchange({&transfer, 1}, world, stream).wait();
        zero_bytes(slot->view().data, slot->view().bytes(), stream);
      }
    }
  });
}

TEST_P(PeerTest, ASendWaitsForNobodyAndOutlivesItsSender) {
  run_on_gpus([](const Group& world, Stream stream) {
    connect(world, stream);
    if (world.rank() == 0) {
      for (int i = 0; i < 3; ++i) {
        const OnGpu<double> x(values<double>(i, 1000 * (i + 1)), stream);
        send(x.view(), 1, world, stream);
        zero_bytes(x.view().data, x.view().bytes(), stream);
      }
    }
    barrier(world);
    if (world.rank() == 1) {
      for (int i = 0; i < 3; ++i) {
        const OnGpu<double> y(std::vector<double>(static_cast<size_t>(1000 * (i + 1))), stream);
        recv(y.view(), 0, world, stream);
        expect_bits(y.read(), values<double>(i, 1000 * (i + 1)), "message");
      }
    }
  });
}

// The receiver's host is ahead of its GPU, which reads each message late.
TEST_P(PeerTest, WhatWasSentIsKeptUntilItIsRead) {
  run_on_gpus([](const Group& world, Stream stream) {
    constexpr int kMessages = 6;
    const int64_t count = 1 << 20;
    connect(world, stream);
    Delay delay(stream);
    std::vector<std::unique_ptr<OnGpu<int32_t>>> all;
    for (int i = 0; i < kMessages; ++i) {
      all.push_back(std::make_unique<OnGpu<int32_t>>(
          std::vector<int32_t>(static_cast<size_t>(count), world.rank() == 0 ? i : -1), stream));
    }
    synchronize(stream);
    if (world.rank() == 1) delay.queue(100, stream);
    for (const auto& x : all) {
      if (world.rank() == 0) send(x->view(), 1, world, stream);
      if (world.rank() == 1) recv(x->view(), 0, world, stream);
      barrier(world);  // the receiver has taken the message, but not yet read it
    }
    if (world.rank() != 1) return;
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_EQ(all[static_cast<size_t>(i)]->read(),
                std::vector<int32_t>(static_cast<size_t>(count), i));
    }
  });
}

TEST_P(PeerTest, NamesItself) {
  run_on_gpus([](const Group& world, Stream stream) {
    EXPECT_STREQ(world.device_transport(stream.device).name(), "peer copies");
  });
}

TEST_P(PeerTest, CannotBeRecordedInAGraph) {
  run_on_gpus([](const Group& world, Stream stream) {
    const OnGpu<float> x(std::vector<float>(4, 1), stream);
    all_reduce(x.view(), Reduce::kSum, world, stream);
    synchronize(stream);
    cuda::begin_capture(stream.native);
    EXPECT_THAT(message_of<Unsupported>([&] { all_reduce(x.view(), Reduce::kSum, world, stream); }),
                HasSubstr("peer copies cannot be recorded in a CUDA graph"));
    cuda::abandon_capture(stream.native);
  });
}

// Rank 0's GPU is late and reads rank 1's memory after rank 1 has given that back to the driver's
// allocator, unless that waits.
TEST_P(PeerThreadTest, MemoryIsFreedWhenTheOthersHaveReadIt) {
  run_on_gpus([](const Group& world, Stream stream) {
    const int64_t count = int64_t{4} << 20;  // no part of a block that the driver keeps
    connect(world, stream);
    Delay delay(stream);
    const OnGpu<int32_t> all(std::vector<int32_t>(static_cast<size_t>(count * world.size())),
                             stream);
    const std::vector<int32_t> mine(static_cast<size_t>(count), world.rank());
    const TensorView block{cuda::allocate(count * 4, stream.device.index), {count}, DType::kInt32};
    copy_bytes(block.data, mine.data(), block.bytes(), stream);
    if (world.rank() == 0) delay.queue(300, stream);
    all_gather(all.view(), block, world, stream);
    cuda::release(block.data, stream.device.index);
    const std::vector<int32_t> got = all.read();
    for (int rank = 0; rank < world.size(); ++rank) {
      const auto begin = got.begin() + rank * count;
      EXPECT_EQ(std::count(begin, begin + count, rank), count);
    }
  });
}

TEST_P(PeerThreadTest, ARankThatThrowsReleasesTheOthers) {
  std::atomic<int> num_released{0};
  const std::string message = message_of<ConfigError>([&] {
    run_on_gpus([&](const Group& world, Stream stream) {
      const OnGpu<float> x(std::vector<float>(1000, 1), stream);
      all_reduce(x.view(), Reduce::kSum, world, stream);
      if (world.rank() == 1) throw ConfigError("the disk is full");
      EXPECT_THAT(message_of<CommError>([&] { all_reduce(x.view(), Reduce::kSum, world, stream); }),
                  HasSubstr("was released because rank 1 of the world failed: the disk is full"));
      synchronize(stream);
      ++num_released;
    });
  });
  EXPECT_EQ(message, "the disk is full");
  EXPECT_EQ(num_released, size() - 1);
}

TEST_P(PeerThreadTest, AMemberThatDoesNotComeIsNamed) {
  std::atomic<int> num_waiting{size() - 1};
  const CapturedStderr captured_err;
  run_on_gpus(
      [&](const Group& world, Stream stream) {
        const OnGpu<float> x(std::vector<float>(1000, 1), stream);
        all_reduce(x.view(), Reduce::kSum, world, stream);
        if (world.rank() == 0) {
          while (num_waiting > 0) std::this_thread::yield();
          return;
        }
        const std::string text =
            message_of<CommError>([&] { all_reduce(x.view(), Reduce::kMax, world, stream); });
        --num_waiting;
        EXPECT_THAT(text, HasSubstr("all_reduce(max, 1000 x float32) in group world: rank"));
        if (text.find("was released") != std::string::npos) return;
        EXPECT_THAT(text, HasSubstr("waited 0.3 s for rank 0 (rank 0 of the world) (last call: "
                                    "all_reduce(sum, 1000 x float32) in group world, queued"));
      },
      {.timeout = std::chrono::milliseconds(300)});
}

TEST_P(PeerThreadTest, AReceiverThatDoesNotReceiveIsNamed) {
  std::atomic<bool> is_over{false};
  const CapturedStderr captured_err;
  run_on_gpus(
      [&](const Group& world, Stream stream) {
        const OnGpu<float> x(std::vector<float>(10, 1), stream);
        const OnGpu<float> y(std::vector<float>(10), stream);
        connect(world, stream);
        if (world.rank() == 0) {
          const std::array<Transfer, 2> both = {{{x.view(), 1, true}, {y.view(), 1, false}}};
          EXPECT_THAT(message_of<CommError>([&] { exchange(both, world, stream); }),
                      HasSubstr("send(10 x float32 to 1) in group world: rank 0 (rank 0 of the "
                                "world) waited 0.3 s for rank 1 (rank 1 of the world) to receive"));
          is_over = true;
        } else {
          if (world.rank() == 1) send(x.view(), 0, world, stream);
          while (!is_over) std::this_thread::yield();
        }
      },
      {.timeout = std::chrono::milliseconds(300)});
}

TEST_P(PeerTest, DifferentCallsAreNamed) {
  run_on_gpus([](const Group& world, Stream stream) {
    const OnGpu<float> x(std::vector<float>(5, 1), stream);
    const TensorView part{x.view().data, {world.rank() == 1 ? 4 : 5}, DType::kFloat32};
    EXPECT_THAT(message_of<CommError>([&] { all_reduce(part, Reduce::kSum, world, stream); }),
                HasSubstr("group world: members made different calls: rank 0 (rank 0 of the world) "
                          "called all_reduce(sum, 5 x float32), rank 1"));
    all_reduce(x.view(), Reduce::kSum, world, stream);  // the group can still be used
    EXPECT_EQ(x.read(), std::vector<float>(5, static_cast<float>(world.size())));
  });
}

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

class PeerPairTest : public PeerThreadTest {};

// The first slots of a large sum may be memory that this rank has released while its stream still
// reads it. Rank 0 is late with that; rank 1, which is not, must not fill it too early.
TEST_P(PeerPairTest, NewSlotsAreFilledAfterTheWorkThatHadTheirMemory) {
  constexpr int64_t kPiece = int64_t{8} << 20;  // of a sum that does not run beside other work
  run_on_gpus([](const Group& world, Stream stream) {
    connect(world, stream);
    CachingAllocator& memory = allocator_of(stream.device);
    const auto take = [&] { return memory.allocate(kPiece, MemoryCategory::kWorkspace); };
    const OnGpu<uint8_t> x(std::vector<uint8_t>(6 * kPiece, 1), stream);
    const OnGpu<uint8_t> seen(std::vector<uint8_t>(kPiece), stream);
    const TensorView numbers{x.view().data, {6 * kPiece / 4}, DType::kInt32};
    const std::vector<uint8_t> pattern(kPiece, 0x5a);
    Delay delay(stream);
    if (world.rank() == 0) {
      memory.empty_cache();
      // Held on both sides, the block stays of its size: no larger request gets it.
      void* const below = take();
      void* const block = take();
      void* const above = take();
      copy_bytes(block, pattern.data(), kPiece, stream);
      synchronize(stream);
      barrier(world);
      delay.queue(700, stream);
      copy_bytes(seen.view().data, block, kPiece, stream);
      memory.release(block);
      all_reduce(numbers, Reduce::kSum, world, stream);
      EXPECT_EQ(seen.read(), pattern);
      std::vector<uint8_t> now(kPiece);
      copy_bytes(now.data(), block, kPiece, stream);
      synchronize(stream);
      EXPECT_NE(now, pattern) << "the block did not become a slot: the test shows nothing";
      barrier(world);
      memory.release(below);
      memory.release(above);
    } else {
      barrier(world);
      // Beside other work pieces are larger: this rank's slots are no blocks of that size.
      start_all_reduce(numbers, Reduce::kSum, world, stream).wait();
      synchronize(stream);
      barrier(world);
    }
    EXPECT_EQ(x.read(), std::vector<uint8_t>(6 * kPiece, 2));
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, PeerPairTest, testing::Values(Ranks{2, true}, Ranks{2, false}),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Layouts, PeerTest, testing::ValuesIn(layouts()),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Layouts, PeerThreadTest, testing::ValuesIn(layouts()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace megatron::comm
