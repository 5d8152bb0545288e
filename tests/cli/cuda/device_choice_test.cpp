#include "megatron/run/device_choice.h"

#include <gtest/gtest.h>

#include <string>

#include "megatron/comm/threads.h"
#include "megatron/device/stream.h"
#include "tests/support/captured_output.h"

namespace megatron {
namespace {

// A process is told once, whatever it runs, and by one of its ranks.
TEST(DeviceChoiceCudaTest, AProcessIsToldThatRanksShareAGpu) {
  const int gpus = num_cuda_devices();
  if (gpus == 0) GTEST_SKIP() << "no GPU: not run";
  const std::string what = std::to_string(gpus + 1) + " ranks share " + std::to_string(gpus);
  CapturedStderr captured_err;
  for (int run = 0; run < 2; ++run) {
    comm::run_ranks(gpus + 1, [](const comm::Group& world) {
      warn_of_device(DeviceChoice::kAuto, world);
      EXPECT_FALSE(chosen_device(DeviceChoice::kAuto, world).is_cpu());
    });
  }
  const std::string said = captured_err.text();
  EXPECT_NE(said.find(what), std::string::npos) << said;
  EXPECT_EQ(said.find(what), said.rfind(what)) << said;
}

}  // namespace
}  // namespace megatron
