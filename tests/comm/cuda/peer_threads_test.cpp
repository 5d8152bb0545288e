#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/device/cuda.h"
#include "tests/comm/cuda/peer_ranks.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"

// Memory that others still read, and ranks that fail.
namespace megatron::comm {
namespace {

using testing::HasSubstr;

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

// Long enough for the first kernel of a process on a machine that runs many others.
constexpr std::chrono::milliseconds kTimeout{4000};

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
        EXPECT_THAT(text, HasSubstr("waited 4 s for rank 0 (rank 0 of the world) (last call: "
                                    "all_reduce(sum, 1000 x float32) in group world, queued"));
      },
      {.timeout = kTimeout});
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
                                "world) waited 4 s for rank 1 (rank 1 of the world) to receive"));
          is_over = true;
        } else {
          if (world.rank() == 1) send(x.view(), 0, world, stream);
          while (!is_over) std::this_thread::yield();
        }
      },
      {.timeout = kTimeout});
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
INSTANTIATE_TEST_SUITE_P(Layouts, PeerThreadTest, testing::ValuesIn(layouts()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace megatron::comm
