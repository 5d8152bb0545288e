#include "megatron/kernels/hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "megatron/kernels/hash_term.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using kernels::hash_term;

// Of a part with the columns of the whole tensor, or of other ones.
uint64_t hash_of_elements(const Tensor& x, int64_t first, int64_t stride) {
  Tensor hash = zeros({1}, DType::kInt64, Stream{});
  kernels::add_hash(hash.view(), x.view(), first, stride, Stream{});
  return static_cast<uint64_t>(hash.span<int64_t>()[0]);
}

uint64_t hash_of_elements(const Tensor& x) {
  return hash_of_elements(x.reshape({1, x.numel()}), 0, x.numel());
}

// The first term is the first number of the generator splitmix64 with seed 0; the others were
// computed with Python's integers.
TEST(HashTest, HasKnownValues) {
  EXPECT_EQ(hash_term(0, 0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(hash_term(5, 0x3f800000), 0x96ec4553b7e71cf8u);
  EXPECT_EQ(hash_of_elements(tensor_of(std::vector<float>{1, -2, 0, 0.5}, {4})),
            0xa504ebbcee3820e1u);
  EXPECT_EQ(hash_of_elements(tensor_of(std::vector<uint8_t>{0, 255, 7}, {3})), 0xb83da26261fb84c6u);
  EXPECT_EQ(hash_of_elements(zeros({0, 3}, DType::kFloat32, Stream{})), 0u);
}

TEST(HashTest, PartsAddUpToTheWhole) {
  constexpr int64_t kRows = 70;
  constexpr int64_t kCols = 130;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const Tensor whole = random_normal({kRows, kCols}, {.seed = 1, .dtype = dtype});
    const uint64_t want = hash_of_elements(whole);
    EXPECT_EQ(hash_of_elements(whole, 0, kCols), want);
    uint64_t rows = 0;
    for (const auto& [begin, count] : {std::pair{40, 30}, {0, 1}, {1, 39}}) {
      rows += hash_of_elements(whole.slice(begin, count), begin * kCols, kCols);
    }
    EXPECT_EQ(rows, want);

    uint64_t columns = 0;
    const auto bytes = static_cast<size_t>(size_of(dtype));
    for (const auto& [begin, count] : {std::pair{0, 65}, {65, 64}, {129, 1}}) {
      Tensor part({kRows, count}, dtype, Stream{});
      for (int64_t row = 0; row < kRows; ++row) {
        std::memcpy(
            static_cast<std::byte*>(part.view().data) + static_cast<size_t>(row * count) * bytes,
            static_cast<const std::byte*>(whole.view().data) +
                static_cast<size_t>(row * kCols + begin) * bytes,
            static_cast<size_t>(count) * bytes);
      }
      columns += hash_of_elements(part, begin, kCols);
    }
    EXPECT_EQ(columns, want);
  }
}

// More elements than one thread takes, and every bit of some of them.
TEST(HashTest, EveryFlippedBitChangesIt) {
  Tensor x = random_normal({300'000}, {.seed = 2});
  auto* const bytes = static_cast<uint8_t*>(x.view().data);
  std::set<uint64_t> seen = {hash_of_elements(x)};
  size_t num_flips = 0;
  for (const int64_t element : {0, 1, 77'777, 299'999}) {
    for (int bit = 0; bit < 32; ++bit) {
      uint8_t& byte = bytes[element * 4 + bit / 8];
      const auto flip = static_cast<uint8_t>(1 << (bit % 8));
      byte ^= flip;
      EXPECT_TRUE(seen.insert(hash_of_elements(x)).second) << element << ", bit " << bit;
      byte ^= flip;
      ++num_flips;
    }
  }
  EXPECT_EQ(seen.size(), num_flips + 1);
}

TEST(HashTest, EqualElementsInOtherPlacesChangeIt) {
  EXPECT_NE(hash_of_elements(tensor_of(std::vector<float>{1, 2}, {2})),
            hash_of_elements(tensor_of(std::vector<float>{2, 1}, {2})));
  EXPECT_NE(hash_of_elements(zeros({7}, DType::kFloat32, Stream{})),
            hash_of_elements(zeros({8}, DType::kFloat32, Stream{})));
}

}  // namespace
}  // namespace megatron
