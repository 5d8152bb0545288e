#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/device/cuda.h"
#include "megatron/device/work_graph.h"
#include "tests/comm/cuda/peer_ranks.h"
#include "tests/comm/values.h"
#include "tests/support/message_of.h"

// Collectives in CUDA graphs.
namespace megatron::comm {
namespace {

using testing::HasSubstr;

class PeerRecordTest : public PeerTest {
 protected:
  void SetUp() override {
    PeerTest::SetUp();
    if (IsSkipped() || num_cuda_devices() >= size()) return;
    GTEST_SKIP() << "a record needs a GPU for each rank: not run";
  }
};

void launch(WorkGraph& graph, const Group& world, Stream stream) {
  launch_barrier(world, stream);
  graph.launch();
}

// Those of layouts() that have a GPU for each rank on a machine with enough of them.
std::vector<Ranks> layouts_of_own_gpus() {
  std::vector<Ranks> own = layouts();
  std::erase_if(own, [](const Ranks& ranks) { return ranks.share_a_gpu; });
  return own;
}

// A sum and a gather of one size and type, with room for an offset in memory.
template <class T>
class Pair {
 public:
  Pair(int64_t count, int64_t offset, Reduce op, const Group& world, Stream stream)
      : world_(world),
        stream_(stream),
        count_(count),
        offset_(offset),
        op_(op),
        sum_(std::vector<T>(static_cast<size_t>(count + offset)), stream),
        all_(std::vector<T>(static_cast<size_t>(count * world.size() + offset)), stream) {}

  void fill(int seed) {
    const std::vector<T> mine = values<T>(world_.rank(), count_, seed);
    copy_bytes(sum().data, mine.data(), sum().bytes(), stream_);
    copy_bytes(own_part().data, mine.data(), own_part().bytes(), stream_);
    synchronize(stream_);
    want_sum_ = mine;
    want_all_.resize(static_cast<size_t>(count_ * world_.size()));
    all_gather(view_of(want_all_), view_of(mine), world_, kCpu);
    all_reduce(view_of(want_sum_), op_, world_, kCpu);
  }
  void queue() {
    all_gather(all(), own_part(), world_, stream_);
    all_reduce(sum(), op_, world_, stream_);
  }
  void check(const std::string& what) {
    const std::vector<T> sum = sum_.read();
    const std::vector<T> all = all_.read();
    expect_bits(std::vector<T>(sum.begin() + offset_, sum.end()), want_sum_, what + " all_reduce");
    expect_bits(std::vector<T>(all.begin() + offset_, all.end()), want_all_, what + " all_gather");
  }

 private:
  TensorView view(const OnGpu<T>& list, int64_t begin, int64_t count) const {
    return {static_cast<T*>(list.view().data) + offset_ + begin, {count}, dtype_of<T>()};
  }
  TensorView sum() const { return view(sum_, 0, count_); }
  TensorView all() const { return view(all_, 0, count_ * world_.size()); }
  TensorView own_part() const { return view(all_, count_ * world_.rank(), count_); }

  const Group& world_;
  const Stream stream_;
  const int64_t count_;
  const int64_t offset_;
  const Reduce op_;
  const OnGpu<T> sum_;
  const OnGpu<T> all_;
  std::vector<T> want_sum_;
  std::vector<T> want_all_;
};

// Sizes of no block, one block, some, and all of them in several rounds; with and without 16 bytes
// at once.
template <class T>
void check_type(const std::string& type, const Group& world, Stream stream) {
  for (const int64_t count : {0, 1, 7, 4096, 40'003, 1'500'000}) {
    for (const int64_t offset : {0, 1}) {
      const Reduce op = (count + offset) % 2 == 0 ? Reduce::kSum : Reduce::kMax;
      Pair<T> pair(count, offset, op, world, stream);
      WorkGraph graph(stream, [&] { pair.queue(); });
      for (int i = 0; i < 3; ++i) {
        pair.fill(i);
        launch(graph, world, stream);
        pair.check(type + " x " + std::to_string(count) + ", launch " + std::to_string(i));
      }
    }
  }
}

TEST_P(PeerRecordTest, HasTheBitsOfTheCpu) {
  run_on_gpus([](const Group& world, Stream stream) {
    ASSERT_TRUE(can_record(world, stream));
    ASSERT_TRUE(can_record(world, stream));  // again
    check_type<float>("float32", world, stream);
    check_type<double>("float64", world, stream);
    check_type<Float16>("float16", world, stream);
    check_type<BFloat16>("bfloat16", world, stream);
    check_type<int64_t>("int64", world, stream);
    check_type<int32_t>("int32", world, stream);
  });
}

// GPUs are late in turn, sizes change from call to call, and calls that are not recorded run
// between launches.
TEST_P(PeerRecordTest, RanksMayBeLate) {
  run_on_gpus([](const Group& world, Stream stream) {
    ASSERT_TRUE(can_record(world, stream));
    std::vector<std::unique_ptr<Pair<BFloat16>>> pairs;
    for (const int64_t count : {900'000, 8, 5'000, 300'000, 64}) {
      pairs.push_back(std::make_unique<Pair<BFloat16>>(count, 0, Reduce::kSum, world, stream));
    }
    const OnGpu<float> other(std::vector<float>(1'000'000, 1), stream);
    Delay delay(stream);
    WorkGraph graph(stream, [&] {
      for (const auto& pair : pairs) pair->queue();
    });
    for (int i = 0; i < 12; ++i) {
      for (const auto& pair : pairs) pair->fill(i);
      delay.queue((world.rank() + i) % 3 * 20, stream);
      launch(graph, world, stream);
      if (i % 2 == 0) all_reduce(other.view(), Reduce::kMax, world, stream);
      for (const auto& pair : pairs) pair->check("launch " + std::to_string(i));
    }
  });
}

// The host queues many launches ahead of its GPU. In each of them a rank's number goes on to its
// neighbour.
TEST_P(PeerRecordTest, ManyLaunchesAreUnderWay) {
  run_on_gpus([](const Group& world, Stream stream) {
    constexpr int kLaunches = 300;
    const int size = world.size();
    const OnGpu<float> x(std::vector<float>(50'000, static_cast<float>(world.rank())), stream);
    const OnGpu<float> all(std::vector<float>(static_cast<size_t>(50'000 * size)), stream);
    ASSERT_TRUE(can_record(world, stream));
    WorkGraph graph(stream, [&] {
      all_gather(all.view(), x.view(), world, stream);
      copy_bytes(x.view().data, all.part((world.rank() + 1) % size, size).data, x.view().bytes(),
                 stream);
    });
    Delay delay(stream);
    if (world.rank() == 0) delay.queue(100, stream);
    for (int i = 0; i < kLaunches; ++i) launch(graph, world, stream);
    const auto from = static_cast<float>((world.rank() + kLaunches) % size);
    expect_bits(x.read(), std::vector<float>(50'000, from), "passed on");
  });
}

TEST_P(PeerRecordTest, OtherCallsAreRefusedByName) {
  run_on_gpus([](const Group& world, Stream stream) {
    const OnGpu<float> x(std::vector<float>(4, 1), stream);
    ASSERT_TRUE(can_record(world, stream));
    EXPECT_THAT(message_of<Unsupported>([&] {
                  const WorkGraph graph(stream, [&] { broadcast(x.view(), 0, world, stream); });
                }),
                HasSubstr("broadcast(4 x float32, root 0) in group world: peer copies cannot be "
                          "recorded in a CUDA graph"));
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, PeerRecordTest, testing::ValuesIn(layouts_of_own_gpus()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace megatron::comm
