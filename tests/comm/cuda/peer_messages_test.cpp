#include <gmock/gmock.h>

#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/transport.h"
#include "megatron/device/cuda.h"
#include "tests/comm/cuda/peer_ranks.h"
#include "tests/comm/values.h"
#include "tests/support/message_of.h"

// Messages between two ranks, and what is refused.
namespace megatron::comm {
namespace {

using testing::HasSubstr;

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

TEST_P(PeerTest, MembersThatShareAGpuCannotRecord) {
  run_on_gpus([](const Group& world, Stream stream) {
    const OnGpu<float> x(std::vector<float>(4, 1), stream);
    all_reduce(x.view(), Reduce::kSum, world, stream);
    synchronize(stream);
    const bool shares_a_gpu = GetParam().share_a_gpu || num_cuda_devices() < world.size();
    EXPECT_EQ(can_record(world, stream), !shares_a_gpu);
    if (!shares_a_gpu) return;  // peer_records_test.cpp
    cuda::begin_capture(stream.native);
    EXPECT_THAT(message_of<Unsupported>([&] { all_reduce(x.view(), Reduce::kSum, world, stream); }),
                HasSubstr("peer copies cannot be recorded in a CUDA graph"));
    cuda::abandon_capture(stream.native);
  });
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

}  // namespace
}  // namespace megatron::comm
