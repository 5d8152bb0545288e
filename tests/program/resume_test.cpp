#include <fstream>
#include <functional>

#include "megatron/core/file.h"
#include "tests/program/exact_resume.h"

// A run that stops and goes on is bit for bit the run that does not: losses, norms, learning rates,
// weights and state of the optimizer.
namespace megatron::program {
namespace {

struct ResumeCase {
  std::string name;
  std::function<Flags(const Flags&)> change;  // of the golden run
  int stop_at = 10;
};

void PrintTo(const ResumeCase& c, std::ostream* out) { *out << c.name; }

class ResumeTest : public ExactResumeTest, public testing::WithParamInterface<ResumeCase> {};

TEST_P(ResumeTest, EqualsTheRunWithoutStop) {
  expect_exact_resume(GetParam().change(golden_flags()), GetParam().stop_at);
}

// By samples: batches of 2, 4 and 6 from 0, 20 and 40 samples on, 20 iterations in all.
Flags with_rampup(const Flags& flags) {
  return flags.without("--train-iters")
      .without("--lr-decay-iters")
      .without("--lr-warmup-iters")
      .with("--train-samples", "72")
      .with("--lr-decay-samples", "70")
      .with("--lr-warmup-samples", "20")
      .with("--rampup-batch-size", "2", "2", "60");
}

Flags with_blend(const Flags& flags) {
  const std::string prefix = (golden("megatron/data") / "corpus_text_document").string();
  return flags.with("--data-path", "0.3", prefix, "0.7", prefix);
}

Flags precision_aware(const Flags& flags) {
  return flags.with("--bf16")
      .with("--use-distributed-optimizer")
      .with("--use-precision-aware-optimizer");
}

INSTANTIATE_TEST_SUITE_P(
    Runs, ResumeTest,
    testing::Values(
        ResumeCase{"fp32", [](const Flags& f) { return f; }},
        ResumeCase{"odd_iteration", [](const Flags& f) { return f; }, 7},
        ResumeCase{"first_iteration", with_dropout, 1},
        ResumeCase{"bf16", [](const Flags& f) { return with_dropout(f).with("--bf16"); }},
        ResumeCase{"fp16_while_overflowing", [](const Flags& f) { return f.with("--fp16"); }, 7},
        ResumeCase{"fp16_after_overflows",
                   [](const Flags& f) {
                     return f.with("--fp16")
                         .with("--initial-loss-scale", "16777216")
                         .with("--loss-scale-window", "3");
                   },
                   13},
        ResumeCase{"dropout", with_dropout, 11}, ResumeCase{"rampup", with_rampup, 9},
        ResumeCase{"rampup_where_the_batch_grows", with_rampup, 10},
        ResumeCase{"sgd", [](const Flags& f) { return f.with("--optimizer", "sgd"); }},
        ResumeCase{"sgd_bf16",
                   [](const Flags& f) { return f.with("--optimizer", "sgd").with("--bf16"); }, 5},
        ResumeCase{
            "bf16_shared",
            [](const Flags& f) { return f.with("--bf16").with("--use-distributed-optimizer"); }},
        ResumeCase{"types_of_16_bits",
                   [](const Flags& f) {
                     return precision_aware(with_dropout(f))
                         .with("--main-grads-dtype", "bf16")
                         .with("--exp-avg-dtype", "bf16")
                         .with("--exp-avg-sq-dtype", "bf16");
                   },
                   7},
        ResumeCase{"moments_of_fp16",
                   [](const Flags& f) {
                     return precision_aware(f)
                         .with("--exp-avg-dtype", "fp16")
                         .with("--exp-avg-sq-dtype", "fp16");
                   },
                   3},
        ResumeCase{"lion_bf16",
                   [](const Flags& f) { return f.with("--optimizer", "lion").with("--bf16"); }, 5},
        ResumeCase{"muon", [](const Flags& f) { return f.with("--optimizer", "muon"); }, 4},
        ResumeCase{"muon_bf16_llama",
                   [](const Flags& f) {
                     return llama_style(f)
                         .with("--optimizer", "muon")
                         .with("--muon-use-nesterov")
                         .with("--bf16");
                   }},
        ResumeCase{"blend", with_blend},
        ResumeCase{"llama", [](const Flags& f) { return llama_style(f); }},
        ResumeCase{"llama_bf16_dropout",
                   [](const Flags& f) { return with_dropout(llama_style(f)).with("--bf16"); }, 3},
        ResumeCase{"cyclic", [](const Flags& f) { return f.with("--dataloader-type", "cyclic"); },
                   9},
        ResumeCase{"linear_decay_of_weights_too",
                   [](const Flags& f) {
                     return f.with("--lr-decay-style", "linear")
                         .with("--weight-decay-incr-style", "cosine")
                         .with("--start-weight-decay", "0.01")
                         .with("--end-weight-decay", "0.2");
                   }},
        ResumeCase{"wsd",
                   [](const Flags& f) {
                     return f.with("--lr-decay-style", "WSD").with("--lr-wsd-decay-iters", "8");
                   },
                   14},
        ResumeCase{"recompute",
                   [](const Flags& f) {
                     return with_dropout(f)
                         .with("--recompute-granularity", "full")
                         .with("--recompute-method", "uniform")
                         .with("--recompute-num-layers", "1");
                   }},
        ResumeCase{"evaluation_often",
                   [](const Flags& f) { return f.with("--eval-interval", "3"); }, 10}),
    [](const auto& one) { return one.param.name; });

class SaveTest : public ProgramTest {};

TEST_F(SaveTest, KeepsTheLastCheckpointsOnly) {
  train(golden_flags()
            .with("--save", path("save").string())
            .with("--save-interval", "5")
            .with("--keep-last", "2"));
  EXPECT_FALSE(std::filesystem::exists(iteration_in(path("save"), 10)));
  EXPECT_TRUE(std::filesystem::exists(iteration_in(path("save"), 15)));
  EXPECT_TRUE(std::filesystem::exists(iteration_in(path("save"), 20)));
  EXPECT_EQ(read_text(path("save") / "latest_checkpointed_iteration.txt"), "20");
}

TEST_F(SaveTest, GoesOnFromAnOlderCheckpoint) {
  const Flags flags = golden_flags().with("--save-interval", "5");
  train(flags.with("--save", path("a").string()));
  const Outcome outcome = train(flags.with("--save", path("b").string())
                                    .with("--load", path("a").string())
                                    .with("--ckpt-step", "15"));
  EXPECT_EQ(iterations_of(outcome.out).size(), 5u);
  expect_identical(read_saved_run(iteration_in(path("b"), 20)),
                   read_saved_run(iteration_in(path("a"), 20)));
}

TEST_F(SaveTest, RemovesWhatAKilledRunLeft) {
  const Flags flags = golden_flags().with("--save", path("save").string());
  std::filesystem::create_directories(path("save") / "iter_0000005.tmp-99999");
  train(flags.with("--save-interval", "20"));
  for (const auto& entry : std::filesystem::directory_iterator(path("save"))) {
    EXPECT_THAT(entry.path().filename().string(), testing::Not(testing::HasSubstr("tmp")));
  }
}

TEST_F(SaveTest, WithoutOptimizerSavesWeightsAlone) {
  const Flags flags =
      golden_flags().with("--save", path("save").string()).with("--save-interval", "10");
  train(flags.with("--no-save-optim").with("--exit-interval", "10"));
  for (const auto& [name, tensor] : read_saved_run(iteration_in(path("save"), 10)).tensors) {
    EXPECT_TRUE(name.starts_with("weights/")) << name;
  }
  // Going on as if nothing was missing is refused; --no-load-optim keeps the iteration.
  const Flags loading = flags.with("--load", path("save").string());
  const Outcome refused = run("pretrain-gpt", loading.words());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, testing::HasSubstr("--no-load-optim"));
  const Outcome outcome = train(loading.with("--no-load-optim"));
  EXPECT_EQ(iterations_of(outcome.out).front().text("consumed samples"), "88");
}

// Checkpoints do not depend on the types of the run that saved them. Between fp32 main parameters
// and remainders no bit is lost; a moment that was rounded once costs little.
TEST_F(SaveTest, ARunGoesOnWithOtherTypesOfTheOptimizer) {
  const Flags plain = golden_flags().with("--bf16").with("--use-distributed-optimizer");
  const Flags aware = precision_aware(golden_flags());
  const Flags moments = aware.with("--exp-avg-dtype", "bf16").with("--exp-avg-sq-dtype", "bf16");
  const auto losses = [](const Outcome& outcome) {
    std::vector<double> all;
    for (const IterationText& line : iterations_of(outcome.out)) {
      all.push_back(line.number("lm loss"));
    }
    return all;
  };
  const std::vector<double> want = losses(train(plain));
  ASSERT_EQ(want.size(), 20u);
  const Flags codes = aware.with("--exp-avg-dtype", "fp16").with("--exp-avg-sq-dtype", "fp16");
  const Flags fp32 = plain.with("--optimizer-cpu-offload");
  const std::vector<Flags> types = {plain, fp32, moments, codes};
  for (const Flags& saving : types) {
    const std::string folder = path("types").string();
    const Flags saves = saving.with("--save", folder).with("--save-interval", "10");
    const std::vector<double> begun = losses(train(saves.with("--exit-interval", "10")));
    for (const Flags& loading : types) {
      std::vector<double> all = begun;
      for (const double loss : losses(train(loading.with("--load", folder)))) all.push_back(loss);
      ASSERT_EQ(all.size(), want.size());
      const bool is_exact = &saving < &types[2] && &loading < &types[2];
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(all[i], want[i], is_exact ? 0 : 5e-3 * want[i]) << i;
      }
    }
    std::filesystem::remove_all(folder);
  }
}

// Megatron-LM's files hold fp32, which has every number of 16 bits.
TEST_F(SaveTest, MegatronsFilesKeepTheBitsOfOtherTypesOfTheOptimizer) {
  const Flags flags = precision_aware(golden_flags())
                          .with("--exp-avg-dtype", "bf16")
                          .with("--exp-avg-sq-dtype", "bf16")
                          .with("--save-interval", "10");
  const Outcome straight = train(flags);
  train(flags.with("--save", path("m").string())
            .with("--save-format", "megatron")
            .with("--exit-interval", "10"));
  const std::vector<IterationText> want = iterations_of(straight.out);
  const std::vector<IterationText> got =
      iterations_of(train(flags.with("--load", path("m").string())).out);
  ASSERT_EQ(got.size(), 10u);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].line, want[10 + i].line);
}

TEST_F(SaveTest, FinetuneBeginsAtIteration0WithTheWeights) {
  const Flags flags = golden_flags().with("--save-interval", "20");
  const Outcome first = train(flags.with("--save", path("a").string()));
  const Outcome outcome = train(flags.with("--load", path("a").string()).with("--finetune"));
  const std::vector<IterationText> lines = iterations_of(outcome.out);
  ASSERT_EQ(lines.size(), 20u);
  EXPECT_EQ(lines.front().text("consumed samples"), "8");
  EXPECT_EQ(lines.front().text("learning rate"), "2.500E-04");
  const double learned = iterations_of(first.out).back().number("lm loss");
  EXPECT_NEAR(lines.front().number("lm loss"), learned, 0.1);
}

TEST_F(SaveTest, TakesTheArchitectureFromTheCheckpoint) {
  const Flags flags = llama_style(golden_flags()).with("--save", path("a").string());
  train(flags.with("--save-interval", "10").with("--exit-interval", "10"));
  Flags bare = golden_flags().with("--load", path("a").string()).with("--use-checkpoint-args");
  for (const char* flag : {"--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length",
                           "--max-position-embeddings"}) {
    bare = bare.without(flag);
  }
  const Outcome outcome =
      train(bare.with("--save", path("b").string()).with("--save-interval", "20"));
  EXPECT_EQ(iterations_of(outcome.out).size(), 10u);
  train(flags.with("--save-interval", "20").with("--load", path("a").string()));
  expect_identical(read_saved_run(iteration_in(path("b"), 20)),
                   read_saved_run(iteration_in(path("a"), 20)));
}

TEST_F(SaveTest, SchedulerOfAnotherRunNeedsAWord) {
  const Flags flags = golden_flags().with("--save", path("a").string());
  train(flags.with("--save-interval", "10").with("--exit-interval", "10"));
  const Flags other =
      flags.without("--save").with("--load", path("a").string()).with("--lr", "2e-3");

  const Outcome refused = run("pretrain-gpt", other.words());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, testing::HasSubstr("--override-opt_param-scheduler"));
  const Outcome overridden = train(other.with("--override-opt_param-scheduler"));
  const Outcome kept = train(other.with("--use-checkpoint-opt_param-scheduler"));
  // 6.378E-04 of the cosine from 1e-3 to 1e-4, and its twin from 2e-3.
  EXPECT_EQ(iterations_of(kept.out).front().text("learning rate"), "6.378E-04");
  EXPECT_EQ(iterations_of(overridden.out).front().text("learning rate"), "1.235E-03");
}

TEST_F(SaveTest, LoadOfAnEmptyDirectoryStartsAnew) {
  const Flags flags = golden_flags().with("--load", path("none").string());
  const Outcome outcome = train(flags.with("--exit-interval", "1"));
  EXPECT_THAT(outcome.out, testing::HasSubstr("will start from random"));
  const Outcome refused = run("pretrain-gpt", flags.with("--exit-on-missing-checkpoint").words());
  EXPECT_EQ(refused.exit_code, 2);
}

class KillSwitchTest : public ProgramTest {};

TEST_F(KillSwitchTest, SavesAndEnds) {
  const Flags flags = golden_flags()
                          .with("--save", path("save").string())
                          .with("--save-interval", "1000")
                          .with("--eval-iters", "0")
                          .with("--train-iters", "100000")
                          .with("--kill-switch-path", path("switch").string());
  Running running("pretrain-gpt", flags.words());
  ASSERT_TRUE(running.wait_for("iteration        3/"));
  std::ofstream(path("switch")) << "";
  const Outcome outcome = running.finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::HasSubstr("successfully saved checkpoint at iteration"));
  EXPECT_THAT(outcome.out, testing::HasSubstr("exiting program: the kill switch " +
                                              path("switch").string() + " exists"));
  // While it is there, nothing trains.
  const Outcome again = train(flags.with("--load", path("save").string()));
  EXPECT_TRUE(iterations_of(again.out).empty());
}

}  // namespace
}  // namespace megatron::program
