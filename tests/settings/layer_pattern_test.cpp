#include "megatron/settings/layer_pattern.h"

#include <gtest/gtest.h>

#include <string>

namespace megatron {
namespace {

using Pattern = std::vector<int>;

TEST(LayerPatternTest, EvaluatesListsAndProducts) {
  EXPECT_EQ(layer_pattern("4"), Pattern({4}));
  EXPECT_EQ(layer_pattern("[0, 1,0]"), Pattern({0, 1, 0}));
  EXPECT_EQ(layer_pattern("[0]*3+[1]*1"), Pattern({0, 0, 0, 1}));
  EXPECT_EQ(layer_pattern("([1]*2 + [0]) * 2"), Pattern({1, 1, 0, 1, 1, 0}));
  EXPECT_EQ(layer_pattern("2*[1]+(0*[5]+[3])"), Pattern({1, 1, 3}));
}

TEST(LayerPatternTest, RefusesOtherTexts) {
  for (const char* text : {"", "x", "[", "[]", "[1", "1+2", "[1]*[2]", "2*3", "[1]+2", "([1]",
                           "[1])", "[1]*-1", "[2]", "[1]*100001", "99999999999", "[1] [2]"}) {
    EXPECT_EQ(layer_pattern(text), std::nullopt) << text;
  }
  EXPECT_EQ(layer_pattern(std::string(1000, '(') + "1" + std::string(1000, ')')), std::nullopt);
}

}  // namespace
}  // namespace megatron
