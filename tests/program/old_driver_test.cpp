#include "tests/program/program_test.h"

// In builds with CUDA. MG_FAKE_DRIVER is the directory of a libcuda.so.1 that serves CUDA 12.8.
namespace megatron::program {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class OldDriverTest : public ProgramTest {
 protected:
  static RunOptions with_old_driver() {
    return {.environment = {{"LD_LIBRARY_PATH", MG_FAKE_DRIVER}}};
  }
};

TEST_F(OldDriverTest, EndsWithOneMessageThatTellsVersionsAndRemedy) {
  const Outcome outcome =
      run("pretrain-gpt", golden_flags().with("--device", "cuda").words(), with_old_driver());
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  const auto errors = errors_of(outcome);
  ASSERT_EQ(errors.size(), 1u) << outcome.err;
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("--device cuda: the NVIDIA driver supports CUDA up to 12.8, this "
                              "binary needs 13."),
                    HasSubstr("install driver 580 or newer"), HasSubstr("or use --device cpu")));
}

TEST_F(OldDriverTest, TrainingOnTheCpuNeedsNone) {
  const Outcome outcome = run(
      "pretrain-gpt", golden_flags().with("--device", "auto").with("--exit-interval", "1").words(),
      with_old_driver());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--device auto takes the CPU: the NVIDIA driver supports CUDA "
                                     "up to 12.8"));
}

}  // namespace
}  // namespace megatron::program
