#include "tests/program/program_test.h"

// A command line that cannot be run: exit code 2, all problems together, nothing else on standard
// error and nothing written.
namespace megatron::program {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class BadFlagsTest : public ProgramTest {
 protected:
  std::vector<std::string> refused(const Flags& flags, const char* command = "pretrain-gpt") const {
    const Outcome outcome = run(command, flags.words());
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_EQ(outcome.out.substr(0, 200), "");
    EXPECT_LT(outcome.seconds, 5);
    return errors_of(outcome);
  }
};

TEST_F(BadFlagsTest, UnknownFlagSuggestsTheNearest) {
  EXPECT_THAT(refused(golden_flags().with("--num-layrs", "3")),
              ElementsAre("--num-layrs is not a flag; did you mean --num-layers?"));
  EXPECT_THAT(refused(golden_flags().with("--entirely-new", "3")),
              ElementsAre("--entirely-new is not a flag; --help lists them all"));
  EXPECT_THAT(refused(Flags().with("--promt", "x"), "generate"),
              ElementsAre(HasSubstr("did you mean --prompt?")));
}

TEST_F(BadFlagsTest, UnknownCommandSuggestsTheNearest) {
  const Outcome outcome = run("pretrian-gpt", {});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("did you mean pretrain-gpt?"));
}

TEST_F(BadFlagsTest, AllContradictionsAtOnce) {
  const std::vector<std::string> errors = refused(golden_flags()
                                                      .with("--fp16")
                                                      .with("--bf16")
                                                      .with("--train-samples", "100")
                                                      .with("--hidden-size", "33")
                                                      .with("--micro-batch-size", "3")
                                                      .with("--recompute-granularity", "full")
                                                      .with("--seq-length", "64")
                                                      .with("--save", path("save").string()));
  const std::string all = testing::PrintToString(errors);
  for (const char* expected : {"--fp16 and --bf16", "--train-iters and --train-samples",
                               "--hidden-size 33", "--global-batch-size 8", "--recompute-method",
                               "--max-position-embeddings 32", "--save-interval"}) {
    EXPECT_THAT(all, HasSubstr(expected));
  }
  EXPECT_FALSE(std::filesystem::exists(path("save")));
}

// Before anything is trained.
TEST_F(BadFlagsTest, AFormatThatCannotHoldTheModel) {
  const Flags saving =
      golden_flags().with("--save", path("save").string()).with("--save-interval", "1");
  EXPECT_THAT(refused(saving.with("--save-format", "hf").with("--qk-layernorm")),
              Contains(HasSubstr("no model family of Hugging Face has this configuration")));
  const std::vector<std::string> of_megatron =
      refused(saving.with("--save-format", "megatron-core").with("--embed-layernorm"));
  EXPECT_THAT(of_megatron, ElementsAre(AllOf(
                               StartsWith("--save-format: Megatron-LM's checkpoints have no place"),
                               HasSubstr("use the format native"))));
  EXPECT_FALSE(std::filesystem::exists(path("save")));
}

TEST_F(BadFlagsTest, MissingDataAreKnownAtOnce) {
  EXPECT_THAT(refused(golden_flags().with("--data-path", path("nope").string())),
              ElementsAre(StartsWith(path("nope.idx").string() + ": not found")));
}

TEST_F(BadFlagsTest, BadValuesNameTheirFlag) {
  EXPECT_THAT(refused(golden_flags().with("--num-layers", "four")),
              ElementsAre(HasSubstr("--num-layers")));
  EXPECT_THAT(refused(golden_flags().with("--lr", "")), ElementsAre(HasSubstr("--lr")));
  EXPECT_THAT(refused(golden_flags().with("--lr-decay-style", "cosin")),
              ElementsAre(HasSubstr("--lr-decay-style")));
  const Outcome split = run("pretrain-gpt", golden_flags().with("--split", "80,15,5,3").words());
  EXPECT_EQ(split.exit_code, 2);
  EXPECT_THAT(errors_of(split), ElementsAre(HasSubstr("80,15,5,3")));
}

TEST_F(BadFlagsTest, MissingFlagsAreAllNamed) {
  const std::string all = testing::PrintToString(refused(Flags()));
  for (const char* flag : {"--num-layers", "--hidden-size", "--num-attention-heads",
                           "--micro-batch-size", "--seq-length", "--lr", "--train-iters"}) {
    EXPECT_THAT(all, HasSubstr(flag));
  }
}

TEST_F(BadFlagsTest, WhatIsNotThereYetSaysSo) {
  for (const Flags& flags : {golden_flags().with("--check-for-spiky-loss"),
                             golden_flags().with("--tensor-model-parallel-size", "2"),
                             golden_flags().with("--position-embedding-type", "relative")}) {
    const Outcome outcome = run("pretrain-gpt", flags.words());
    if (outcome.exit_code == 0) {
      EXPECT_THAT(outcome.err, HasSubstr("warning: "));  // one rank: the size is lowered to 1
    } else {
      EXPECT_EQ(outcome.exit_code, 2);
      EXPECT_THAT(errors_of(outcome), ElementsAre(HasSubstr("not available yet")));
    }
  }
}

TEST_F(BadFlagsTest, WeightsFromNowhere) {
  EXPECT_THAT(refused(golden_flags().with("--no-initialization")),
              ElementsAre(HasSubstr("--no-initialization leaves the weights undefined")));
  EXPECT_THAT(refused(golden_flags()
                          .with("--no-initialization")
                          .with("--use-checkpoint-args")
                          .with("--load", path("none").string())),
              ElementsAre(HasSubstr("--no-initialization leaves the weights undefined")));
}

// Before any rank is started or any memory is taken.
TEST_F(BadFlagsTest, NumbersThatNoMachineHas) {
  Words words = {"--nproc-per-node", "100000", "pretrain-gpt"};
  for (const std::string& word : golden_flags().words()) words.push_back(word);
  EXPECT_THAT(errors_of(run("launch", words)),
              ElementsAre(HasSubstr("100000 ranks on one host must be at most 1024")));
  words = {"--nnodes", "200000", "--node-rank", "0", "--master-addr", "a", "pretrain-gpt"};
  EXPECT_THAT(errors_of(run("launch", words)),
              ElementsAre(HasSubstr("200000 hosts must be at most 100000; lower --nnodes")));
  EXPECT_THAT(errors_of(run("pretrain-gpt", golden_flags().words(),
                            {.environment = {{"OMP_NUM_THREADS", "99999999999"}}})),
              ElementsAre("environment variable OMP_NUM_THREADS is 99999999999, which must be at "
                          "most 4096; lower it or unset it"));
  EXPECT_THAT(refused(golden_flags().with("--split", "nan,1,1")),
              ElementsAre(HasSubstr("--split \"nan,1,1\" must be finite numbers")));
}

TEST_F(BadFlagsTest, AnUnknownInstructionSetIsRefused) {
  EXPECT_THAT(errors_of(run("env", {}, {.environment = {{"MEGATRON_CPU", "sse2"}}})),
              ElementsAre(StartsWith("environment variable MEGATRON_CPU is sse2, ")));
}

// A name that JSON cannot hold: found before training, not when the first checkpoint is written.
TEST_F(BadFlagsTest, NamesThatAreNotUtf8) {
  EXPECT_THAT(refused(golden_flags().with("--save", "n\xff").with("--save-interval", "2")),
              ElementsAre(HasSubstr("--save n\\xff must be UTF-8")));
  EXPECT_THAT(
      refused(Flags().with("--input", "n\xff").with("--output-prefix", "o"), "preprocess-data"),
      Contains(HasSubstr("--input n\\xff must be UTF-8")));
}

TEST_F(BadFlagsTest, SplitWithoutTrainingData) {
  const Outcome outcome = run("pretrain-gpt", golden_flags().with("--split", "0,50,50").words());
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(errors_of(outcome), ElementsAre(HasSubstr("--split 0,50,50")));
  const Outcome evaluated = train(golden_flags().with("--split", "0,50,50").with("--skip-train"));
  EXPECT_THAT(evaluated.out, HasSubstr("validation loss at iteration 0 on test set"));
}

TEST_F(BadFlagsTest, MoreMemoryThanThereIs) {
  const Flags flags = golden_flags()
                          .with("--hidden-size", "4000000")
                          .with("--num-attention-heads", "15625")
                          .with("--save", path("s").string())
                          .with("--save-interval", "5");
  const Outcome planned = run("pretrain-gpt", flags.words());
  EXPECT_EQ(planned.exit_code, 2);
  EXPECT_THAT(errors_of(planned), ElementsAre(AllOf(StartsWith("training needs 114"),
                                                    HasSubstr("use a smaller model"))));
  const Outcome tried = run("pretrain-gpt", flags.with("--skip-memory-check").words());
  EXPECT_EQ(tried.exit_code, 2);
  EXPECT_THAT(errors_of(tried), ElementsAre(HasSubstr("out of memory")));
}

TEST_F(BadFlagsTest, SamplingFlags) {
  const std::string all = testing::PrintToString(refused(Flags()
                                                             .with("--load", "x")
                                                             .with("--temperature", "0")
                                                             .with("--top-k", "2")
                                                             .with("--top-p", "2"),
                                                         "generate"));
  for (const char* flag : {"--temperature 0", "--top-p 2", "--prompt"}) {
    EXPECT_THAT(all, HasSubstr(flag));
  }
}

}  // namespace
}  // namespace megatron::program
