#include "megatron/core/checked.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "megatron/core/listed.h"
#include "megatron/core/shape.h"
#include "tests/support/message_of.h"

namespace megatron {
namespace {

constexpr int64_t kHuge = int64_t{1} << 62;

TEST(CheckedProductTest, IsTheProductOrAnError) {
  EXPECT_EQ(checked_product({}, "x"), 1);
  EXPECT_EQ(checked_product({3, 5, 7}, "x"), 105);
  EXPECT_EQ(checked_product({kHuge, 0}, "x"), 0);
  EXPECT_EQ(checked_product({kHuge, 1}, "x"), kHuge);
  for (const auto& sizes : {std::vector<int64_t>{kHuge, 2}, {kHuge, 48, 0}, {-1, 2}}) {
    EXPECT_THAT(message_of<ShapeError>([&] { checked_product(sizes, "weights"); }),
                testing::HasSubstr("weights: " + std::to_string(sizes[0]) + " x "));
  }
}

TEST(CheckedProductTest, ShapesUseIt) {
  EXPECT_THAT(message_of<ShapeError>([] {
                (void)Shape({kHuge, 48}).numel();
              }),
              testing::HasSubstr("number of elements: 4611686018427387904 x 48"));
}

TEST(ListedTest, NamesTheFirstTen) {
  EXPECT_EQ(listed({}), "");
  std::vector<std::string> items = {"a", "b"};
  EXPECT_EQ(listed(items), "a, b");
  items.assign(1'000'000, "x");
  EXPECT_EQ(listed(items, "\n"), "x\nx\nx\nx\nx\nx\nx\nx\nx\nx\nand 999990 more");
}

}  // namespace
}  // namespace megatron
