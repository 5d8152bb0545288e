#include "megatron/interchange/megatron/python_random.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(PythonRandomTest, KnownWords) {
  const std::vector<uint32_t> words = mt19937_words(1234);
  ASSERT_EQ(words.size(), 624u);
  EXPECT_EQ(words[0], 1234u);
  EXPECT_EQ(words[1], 3159640283u);
  EXPECT_EQ(words[2], 4062961311u);
  EXPECT_EQ(words[3], 3954462607u);
  EXPECT_EQ(mt19937_words(1)[1], 1812433254u);
  // random.seed(1234); random.getstate()[1][:3] and [623] of CPython.
  const std::vector<uint32_t> python = mt19937_words_of_array(1234);
  EXPECT_EQ(python[0], 0x80000000u);
  EXPECT_EQ(python[1], 681931688u);
  EXPECT_EQ(python[2], 3687344416u);
  EXPECT_EQ(python[623], 343805460u);
}

TEST(PythonRandomTest, SizesOfStates) {
  EXPECT_EQ(torch_random_state(1234).size(), 5056u);
  EXPECT_EQ(cuda_random_state(1234).size(), 16u);
}

}  // namespace
}  // namespace megatron
