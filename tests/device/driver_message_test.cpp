#include "megatron/device/driver_message.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(DriverMessageTest, NamesWhatIsThereWhatIsNeededAndTheRemedy) {
  EXPECT_EQ(
      no_device_message({.driver = 12080, .runtime = 13000, .is_old = true, .error = ""}),
      "the NVIDIA driver supports CUDA up to 12.8, this binary needs 13.0; install driver 580 "
      "or newer (nvidia-smi shows yours), or use --device cpu");
  EXPECT_EQ(no_device_message({.driver = 13000, .runtime = 14010, .is_old = true, .error = ""}),
            "the NVIDIA driver supports CUDA up to 13.0, this binary needs 14.1; install a newer "
            "driver, or use --device cpu");
}

TEST(DriverMessageTest, WithoutADriverThatIsTheReason) {
  EXPECT_EQ(no_device_message({.driver = 0, .runtime = 13000, .is_old = true, .error = "old"}),
            "no NVIDIA driver is installed; install one, or use --device cpu");
}

TEST(DriverMessageTest, OtherwiseItTellsWhatTheRuntimeSaid) {
  EXPECT_EQ(no_device_message(
                {.driver = 13000, .runtime = 13000, .is_old = false, .error = "no devices"}),
            "no GPU is visible (no devices); check nvidia-smi and CUDA_VISIBLE_DEVICES, or use "
            "--device cpu");
}

}  // namespace
}  // namespace megatron
