#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "tests/comm/values.h"
#include "tests/support/message_of.h"

namespace megatron::comm {
namespace {

constexpr Stream kMessageCpu{};
constexpr ThreadRanksOptions kMessageOptions{.timeout = std::chrono::seconds(30)};

TEST(MessageTest, ArriveInTheOrderOfSending) {
  run_ranks(
      2,
      [](const Group& world) {
        for (int i = 0; i < 50; ++i) {
          std::vector<int32_t> x = {i, 2 * i, 3 * i};
          if (world.rank() == 0) {
            send(view_of(x), 1, world, kMessageCpu);
            x.assign(3, -1);  // may be reused at once
          } else {
            std::vector<int32_t> y(3);
            recv(view_of(y), 0, world, kMessageCpu);
            EXPECT_EQ(y, x);
          }
        }
      },
      kMessageOptions);
}

TEST(MessageTest, ASendDoesNotWait) {
  run_ranks(
      2,
      [](const Group& world) {
        const int other = 1 - world.rank();
        std::vector<float> y(100000);
        for (int i = 0; i < 3; ++i) {
          send(view_of(values<float>(world.rank(), 100000, static_cast<uint64_t>(i))), other, world,
               kMessageCpu);
        }
        for (int i = 0; i < 3; ++i) {
          recv(view_of(y), other, world, kMessageCpu);
          EXPECT_EQ(y, values<float>(other, 100000, static_cast<uint64_t>(i)));
        }
      },
      kMessageOptions);
}

TEST(MessageTest, ARingExchangesInAnyOrder) {
  for (const int size : {2, 3, 8}) {
    run_ranks(
        size,
        [&](const Group& world) {
          const int next = (world.rank() + 1) % size;
          const int previous = (world.rank() + size - 1) % size;
          std::vector<double> x = values<double>(world.rank(), 999);
          std::vector<double> y(999);
          const std::array<Transfer, 2> receive_first = {
              {{view_of(y), previous, false}, {view_of(x), next, true}}};
          exchange(receive_first, world, kMessageCpu);
          EXPECT_EQ(y, values<double>(previous, 999));
          start_exchange(receive_first, world, kMessageCpu).wait();
          exchange({}, world, kMessageCpu);
        },
        kMessageOptions);
  }
}

TEST(MessageTest, SendersDoNotMix) {
  run_ranks(
      3,
      [](const Group& world) {
        if (world.rank() > 0)
          return send(view_of(values<float>(world.rank(), 9)), 0, world, kMessageCpu);
        std::vector<float> y(9);
        for (const int from : {2, 1}) {  // whoever came first
          recv(view_of(y), from, world, kMessageCpu);
          EXPECT_EQ(y, values<float>(from, 9));
        }
      },
      kMessageOptions);
}

TEST(MessageTest, AnotherSizeIsRefused) {
  run_ranks(
      2,
      [](const Group& world) {
        std::vector<float> x(5 + static_cast<size_t>(world.rank()));
        if (world.rank() == 0) return send(view_of(x), 1, world, kMessageCpu);
        EXPECT_EQ(
            message_of<CommError>([&] { recv(view_of(x), 0, world, kMessageCpu); }),
            "recv(6 x float32 from 0) in group world: rank 1 (rank 1 of the world) expects "
            "a message that rank 0 (rank 0 of the world) did not send: send(5 x float32 to 1)");
      },
      kMessageOptions);
}

TEST(MessageTest, ToOneselfIsABug) {
  run_ranks(
      2,
      [](const Group& world) {
        std::vector<float> x(1);
        EXPECT_THROW(send(view_of(x), world.rank(), world, kMessageCpu), InternalError);
        EXPECT_THROW(recv(view_of(x), 2, world, kMessageCpu), InternalError);
      },
      kMessageOptions);
}

}  // namespace
}  // namespace megatron::comm
