#include "megatron/run/device_choice.h"

#include <gtest/gtest.h>

#include <string>

#include "megatron/comm/threads.h"
#include "megatron/device/stream.h"
#include "tests/support/captured_output.h"

namespace megatron {
namespace {

// Each run of a process is told, and of its ranks one tells it.
TEST(DeviceChoiceCudaTest, EveryRunIsToldThatRanksShareAGpu) {
  const int gpus = num_cuda_devices();
  if (gpus == 0) GTEST_SKIP() << "no GPU: not run";
  const std::string what = std::to_string(gpus + 1) + " ranks share " + std::to_string(gpus);
  for (int run = 0; run < 2; ++run) {
    CapturedStderr captured_err;
    comm::run_ranks(gpus + 1, [](const comm::Group& world) {
      warn_of_device(DeviceChoice::kAuto, world);
      EXPECT_FALSE(chosen_device(DeviceChoice::kAuto, world).is_cpu());
    });
    const std::string said = captured_err.text();
    EXPECT_NE(said.find(what), std::string::npos) << "run " << run << ": " << said;
    EXPECT_EQ(said.find(what), said.rfind(what)) << "run " << run << ": " << said;
  }
}

}  // namespace
}  // namespace megatron
