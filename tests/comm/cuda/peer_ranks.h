#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/device/allocator.h"
#include "megatron/device/memory.h"
#include "megatron/device/stream.h"
#include "tests/comm/cuda/on_gpu.h"
#include "tests/comm/cuda/ranks.h"

// Peer copies between GPUs give the same bits as CPU ranks.
namespace megatron::comm {

inline constexpr Stream kCpu{};
inline constexpr ThreadRanksOptions kOptions{.timeout = std::chrono::seconds(60)};

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

// These need ranks that are threads.
class PeerThreadTest : public PeerTest {};

template <class T>
void expect_bits(const std::vector<T>& got, const std::vector<T>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  if (got.empty() || std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0) return;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(T)), 0) << what << ", element " << i;
  }
}

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

}  // namespace megatron::comm
