#include "megatron/core/terminate.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <thread>

namespace megatron {
namespace {

using testing::ExitedWithCode;

TEST(TerminateDeathTest, AnUncaughtExceptionIsASentence) {
  EXPECT_EXIT(
      {
        explain_uncaught_exceptions();
        std::thread([] { throw std::bad_alloc(); }).join();
      },
      ExitedWithCode(1), "^error: out of memory; use a smaller model");
  EXPECT_EXIT(
      {
        explain_uncaught_exceptions();
        std::thread([] { throw std::runtime_error("raw words"); }).join();
      },
      ExitedWithCode(1), "^error: raw words; the program cannot continue");
}

}  // namespace
}  // namespace megatron
