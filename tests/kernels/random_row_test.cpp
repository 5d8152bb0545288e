#include "megatron/kernels/cpu/random_row.h"

#include <gtest/gtest.h>

#include <vector>

#include "megatron/device/philox.h"

namespace megatron::kernels::cpu {
namespace {

TEST(RandomRowTest, IsPhiloxOfThePlace) {
  constexpr uint64_t kKey = 0xFEDCBA9876543210u;
  constexpr int64_t kSample = 0x1234567890;
  for (const int64_t first : {0, 512}) {
    for (const int64_t n : {1, 4, 63, 64, 65, 200}) {
      std::vector<uint32_t> words(256);
      random_row(words.data(), kKey, 77, kSample, first, n);
      for (int64_t k = first; k < first + n; ++k) {
        const auto want = philox({static_cast<uint32_t>(k / 4), 77, 0x34567890u, 0x12u}, kKey);
        ASSERT_EQ(words[static_cast<size_t>(k - first)], want[static_cast<size_t>(k % 4)]) << k;
      }
      random_row(words.data(), kKey, 77, kSample, first, n, 7);
      for (int64_t k = first; k < first + n; ++k) {
        const auto want = philox<7>({static_cast<uint32_t>(k / 4), 77, 0x34567890u, 0x12u}, kKey);
        ASSERT_EQ(words[static_cast<size_t>(k - first)], want[static_cast<size_t>(k % 4)]) << k;
      }
    }
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu
