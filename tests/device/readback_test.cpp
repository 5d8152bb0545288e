#include "megatron/device/readback.h"

#include <gtest/gtest.h>

#include <cstring>

#include "megatron/core/error.h"

namespace megatron {
namespace {

TEST(ReadbackTest, HoldsWhatWasThereWhenItStarted) {
  Readback readback(sizeof(double), Device{});
  double number = 1.5;
  readback.start(&number, Stream{});
  number = 2.5;
  EXPECT_TRUE(readback.is_under_way());
  double got = 0;
  std::memcpy(&got, readback.wait(), sizeof got);
  EXPECT_EQ(got, 1.5);
  EXPECT_FALSE(readback.is_under_way());
}

TEST(ReadbackTest, StartsAndEndsInTurn) {
  Readback readback(1, Device{});
  const char byte = 'a';
  EXPECT_THROW(readback.wait(), InternalError);
  readback.start(&byte, Stream{});
  EXPECT_THROW(readback.start(&byte, Stream{}), InternalError);
}

}  // namespace
}  // namespace megatron
