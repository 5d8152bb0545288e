#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/core/half.h"
#include "tests/comm/cuda/peer_ranks.h"
#include "tests/comm/values.h"

// Collectives.
namespace megatron::comm {
namespace {

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
void peer_check_reductions(int64_t part, Reduce op, const Group& world, Stream stream,
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
          peer_check_reductions<T>(part, op, world, stream, type + " x " + std::to_string(part));
        }
      }
    });
  });
}

TEST_P(PeerTest, LargeSumsAreTakenPieceByPiece) {
  run_on_gpus([](const Group& world, Stream stream) {
    const int64_t part = (int64_t{36} << 20) / world.size();  // more pieces than slots
    peer_check_reductions<float>(part + 1, Reduce::kSum, world, stream, "float32");
    peer_check_reductions<BFloat16>(part / 2, Reduce::kSum, world, stream, "bfloat16");
  });
}

// Overlapped collectives have larger pieces.
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

INSTANTIATE_TEST_SUITE_P(Layouts, PeerTest, testing::ValuesIn(layouts()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace megatron::comm
