#include <fmt/format.h>

#include "megatron/interchange/megatron/reader.h"
#include "tests/program/program_test.h"
#include "tests/support/tensors.h"

// Runs that save as torch_dist (tests/interop/check_torch_dist.py loads such with Megatron Core).
namespace megatron::program {
namespace {

namespace fs = std::filesystem;

class TorchDistTest : public ProgramTest {
 protected:
  Outcome train_on(int ranks, const Flags& flags) {
    if (ranks == 1) return run("pretrain-gpt", flags.words());
    Words words = {"--nproc-per-node", std::to_string(ranks), "pretrain-gpt"};
    for (const std::string& word : flags.words()) words.push_back(word);
    return run("launch", words);
  }

  // A run that stops after 3 of 6 iterations and goes on is, to the bit, one that does not stop.
  void expect_exact_resume(int ranks, const Flags& flags) {
    const Flags saving =
        flags.with("--train-iters", "6").with("--eval-iters", "0").with("--save-interval", "3");
    const Outcome whole = train_on(ranks, saving.with("--save", path("whole").string()));
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    const Outcome rest = train_on(ranks, saving.with("--save", path("rest").string())
                                             .with("--load", path("whole").string())
                                             .with("--ckpt-step", "3"));
    ASSERT_EQ(rest.exit_code, 0) << rest.err;
    const std::vector<IterationText> want = iterations_of(whole.out);
    const std::vector<IterationText> got = iterations_of(rest.out);
    ASSERT_EQ(want.size(), 6u);
    ASSERT_EQ(got.size(), 3u);
    for (size_t i = 0; i < got.size(); ++i) {
      for (const char* name : {"lm loss", "grad norm", "learning rate", "consumed samples"}) {
        EXPECT_EQ(got[i].text(name), want[i + 3].text(name)) << name;
      }
    }
    const CheckpointContents theirs = open_megatron_checkpoint(iteration_in(path("whole"), 6));
    const CheckpointContents ours = open_megatron_checkpoint(iteration_in(path("rest"), 6));
    EXPECT_EQ(ours.scalars, theirs.scalars);
    EXPECT_EQ(ours.sections.size(), 4u);
    for (const auto& [section, tensors] : theirs.sections) {
      for (const auto& [name, tensor] : tensors) {
        expect_identical(read_whole(ours.sections.at(section).at(name)), read_whole(tensor), name);
      }
    }
  }
};

TEST_F(TorchDistTest, ResumesBitForBit) {
  expect_exact_resume(1, golden_flags()
                             .with("--bf16")
                             .with("--hidden-dropout", "0.1")
                             .with("--attention-dropout", "0.1")
                             .with("--ckpt-format", "torch_dist"));
}

// Each of 2 x 2 x 2 ranks (tensor, pipeline, data) writes its part; any others can go on with it.
TEST_F(TorchDistTest, EightRanksResumeBitForBit) {
  const Flags flags = golden_flags().with("--swiglu").with("--save-format", "torch_dist");
  expect_exact_resume(8, flags.with("--tensor-model-parallel-size", "2")
                             .with("--pipeline-model-parallel-size", "2")
                             .with("--hidden-dropout", "0.1")
                             .with("--use-distributed-optimizer"));
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_TRUE(fs::exists(iteration_in(path("whole"), 3) / fmt::format("__{}_0.distcp", rank)));
  }
  const Outcome alone = train_on(1, flags.with("--train-iters", "7")
                                        .with("--eval-iters", "0")
                                        .with("--load", path("whole").string()));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(iterations_of(alone.out).size(), 1u);
}

TEST_F(TorchDistTest, ConvertsAndBack) {
  const auto convert = [&](const fs::path& from, const fs::path& to, const char* saver) {
    const Outcome outcome = run("convert-checkpoint", {"--load-dir", from.string(), "--save-dir",
                                                       to.string(), "--saver", saver});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, testing::HasSubstr("every tensor was read again and is the same"));
    EXPECT_THAT(outcome.out, testing::HasSubstr("logits of 16 tokens differ by 0 at most"));
  };
  convert(golden("megatron/gpt/ckpt/iter_0000010"), path("dist"), "torch_dist");
  EXPECT_TRUE(fs::exists(iteration_in(path("dist"), 10) / ".metadata"));
  convert(path("dist"), path("native"), "native");
}

}  // namespace
}  // namespace megatron::program
