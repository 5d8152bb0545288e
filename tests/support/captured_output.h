#pragma once

#include <gtest/gtest.h>

#include <string>

namespace megatron {

// Keeps what this process writes to a standard stream while it lives. A test that throws meanwhile
// leaves no capture behind, which would end the whole program at the next one.
template <void (*kBegin)(), std::string (*kEnd)()>
class CapturedOutput {
 public:
  CapturedOutput() { kBegin(); }
  ~CapturedOutput() {
    if (is_open_) kEnd();
  }
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;

  // Ends the capture; its text. At most once.
  std::string text() {
    is_open_ = false;
    return kEnd();
  }

 private:
  bool is_open_ = true;
};

using CapturedStdout =
    CapturedOutput<testing::internal::CaptureStdout, testing::internal::GetCapturedStdout>;
using CapturedStderr =
    CapturedOutput<testing::internal::CaptureStderr, testing::internal::GetCapturedStderr>;

}  // namespace megatron
