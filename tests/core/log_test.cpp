#include "megatron/core/log.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(LogTest, AWarningIsWrittenOnce) {
  testing::internal::CaptureStderr();
  {
    const LogScope of_another_rank(false);
    warn_once("a file is old");
  }
  warn_once("a file is old");
  warn_once("a file is old");
  warn_once("another file is old");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "warning: a file is old\nwarning: another file is old\n");
}

}  // namespace
}  // namespace megatron
