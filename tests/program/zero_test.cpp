#include <signal.h>
#include <fstream>
#include <map>

#include "tests/program/layout_runs.h"
#include "tests/program/process_tree.h"

// ZeRO: however gradients, parameters and the optimizer's state are divided among data-parallel
// ranks, and wherever the state lies, it is the same training.
namespace megatron::program {
namespace {

using testing::HasSubstr;

class ZeroTest : public LayoutTest {
 protected:
  static std::vector<Layout> zero_layouts(int stage) {
    return {{.dp = 2, .zero_stage = stage},
            {.dp = 4, .zero_stage = stage},
            {.tp = 2, .dp = 2, .zero_stage = stage},
            {.tp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = stage}};
  }
  // A run that saves iteration 10, ends, and goes on from it.
  std::vector<Metrics> trained_with_a_stop(const Flags& flags, const std::string& save) {
    std::vector<Metrics> lines = trained(until_ten(flags, save), {}, "begun");
    for (const Metrics& line : trained(flags.with("--load", save), {}, "resumed")) {
      lines.push_back(line);
    }
    return lines;
  }
  static double mean_of_last(const std::vector<Metrics>& lines) {
    double sum = 0;
    for (size_t i = lines.size() - 20; i < lines.size(); ++i) sum += lines[i].at("lm loss");
    return sum / 20;
  }
};

TEST_F(ZeroTest, EveryStageTrainsAsOneRank) {
  std::vector<Layout> layouts;
  for (const int stage : {2, 3}) {
    for (const Layout& layout : zero_layouts(stage)) layouts.push_back(layout);
    layouts.push_back({.dp = 2, .cp = 2, .zero_stage = stage});
  }
  expect_trains_as_one_rank(layouts);
}

TEST_F(ZeroTest, RecomputationTrainsAsOneRank) {
  const std::vector<Metrics> want = trained(model(false), {}, "one");
  const std::vector<Words> ways = {
      {"--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers",
       "3"},
      {"--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers",
       "5"},
      {"--recompute-granularity", "selective", "--ddp-bucket-size", "1000"},
      {"--recompute-granularity", "selective", "--recompute-modules", "layernorm",
       "--ddp-bucket-size", "1000"}};
  for (const Words& way : ways) {
    Flags flags = model(false);
    for (size_t i = 0; i < way.size(); i += 2) flags = flags.with(way[i], way[i + 1]);
    for (const Layout& layout :
         {Layout{.dp = 2, .zero_stage = 2}, Layout{.dp = 4, .zero_stage = 3},
          Layout{.tp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 3}}) {
      const std::string name = way[1] + way[3] + name_of(layout);
      expect_equal(trained(flags, layout, name), want, name);
    }
  }
}

// One rank divides nothing, and the host updates as the device does.
TEST_F(ZeroTest, OffloadAndStagesOfOneRankKeepTheBits) {
  const Flags plain = model(false).with("--bf16");
  const std::vector<Metrics> want = trained(plain, {}, "plain");
  EXPECT_EQ(trained(plain.with("--optimizer-cpu-offload"), {}, "offloaded"), want);
  EXPECT_EQ(trained(plain, {.zero_stage = 2}, "second"), want);
  EXPECT_EQ(trained(plain, {.zero_stage = 3}, "third"), want);
  const Layout divided{.tp = 2, .dp = 2, .zero_stage = 3};
  EXPECT_EQ(trained(plain.with("--optimizer-cpu-offload"), divided, "offloaded_third"),
            trained(plain, divided, "kept_third"));
}

// Main parameters as 16 bits more than bf16 are those in fp32, whoever has which share of them.
// With offload main parameters are fp32 numbers; else they are 16 bits beyond those of the model.
TEST_F(ZeroTest, RemaindersOfMainParametersKeepTheBitsInEveryStage) {
  const Flags plain = model(false).with("--bf16").with("--eval-iters", "0");
  const std::vector<Layout> layouts = {{.distributed_optimizer = true},
                                       {.dp = 2, .distributed_optimizer = true, .overlap = true},
                                       {.dp = 2, .zero_stage = 2},
                                       {.tp = 2, .dp = 2, .zero_stage = 3},
                                       {.pp = 2, .dp = 2, .distributed_optimizer = true}};
  for (const Layout& layout : layouts) {
    const std::string name = name_of(layout);
    const std::vector<Metrics> want = trained(plain, layout, name);
    EXPECT_EQ(trained(plain.with("--optimizer-cpu-offload"), layout, "fp32_" + name), want) << name;
    const Flags aware = plain.with("--use-precision-aware-optimizer");
    const std::vector<Metrics> wide =
        trained(plain.with("--adam-beta2", "0.95"), layout, "wide_" + name);
    for (const char* const moments : {"bf16", "fp16"}) {
      const std::vector<Metrics> narrow = trained(aware.with("--main-grads-dtype", "bf16")
                                                      .with("--exp-avg-dtype", moments)
                                                      .with("--exp-avg-sq-dtype", moments)
                                                      .with("--adam-beta2", "0.95"),
                                                  layout, moments + name);
      ASSERT_EQ(narrow.size(), wide.size());
      EXPECT_NE(narrow, wide) << name;
      for (size_t i = 0; i < wide.size(); ++i) {
        const double loss = wide[i].at("lm loss");
        EXPECT_NEAR(narrow[i].at("lm loss"), loss, 5e-3 * loss) << moments << name << i;
      }
    }
  }
}

// 200 iterations of two layers: moments of 8 bits end within 2 % of the loss of those in fp32.
TEST_F(ZeroTest, MomentsInFp8TrainAsInFp32) {
  const Flags wide = golden_flags()
                         .with("--bf16")
                         .with("--use-distributed-optimizer")
                         .with("--eval-iters", "0")
                         .with("--train-iters", "200")
                         .with("--lr-decay-style", "constant");
  const Flags narrow = wide.with("--use-precision-aware-optimizer")
                           .with("--exp-avg-dtype", "fp8")
                           .with("--exp-avg-sq-dtype", "fp8");
  const std::vector<Metrics> want = trained(wide, {}, "wide");
  const std::vector<Metrics> got = trained(narrow, {}, "narrow");
  ASSERT_EQ(got.size(), 200U);
  EXPECT_LT(mean_of_last(want), want.front().at("lm loss") - 1);
  EXPECT_NEAR(mean_of_last(got), mean_of_last(want), 0.02 * mean_of_last(want));

  // Two ranks have the same blocks and draw the same bits. Where their sums of gradients differ, a
  // number may become the other neighbour. A resumed run has every bit.
  const Flags few = narrow.with("--train-iters", "20");
  const std::vector<Metrics> straight = trained(few, {}, "straight");
  const std::vector<Metrics> of_two = trained(few, {.dp = 2}, "dp2");
  ASSERT_EQ(of_two.size(), straight.size());
  for (size_t i = 0; i < straight.size(); ++i) {
    const double loss = straight[i].at("lm loss");
    EXPECT_NEAR(of_two[i].at("lm loss"), loss, 2e-5 * loss) << i;
  }
  const std::string saved = path("saved").string();
  EXPECT_EQ(trained_with_a_stop(few, saved), straight);
}

// bf16 parameters without a second copy: rounded at random they train as with fp32 main parameters,
// with the same bits in every stage, and after a stop.
TEST_F(ZeroTest, MainParametersInBf16TrainAsInFp32) {
  const Flags wide = golden_flags()
                         .with("--bf16")
                         .with("--use-distributed-optimizer")
                         .with("--use-precision-aware-optimizer")
                         .with("--exp-avg-dtype", "bf16")
                         .with("--eval-iters", "0")
                         .with("--train-iters", "200")
                         .with("--lr-decay-style", "constant");
  const Flags narrow = wide.with("--main-params-dtype", "bf16");
  const std::vector<Metrics> want = trained(wide, {}, "wide");
  const std::vector<Metrics> got = trained(narrow, {}, "narrow");
  ASSERT_EQ(got.size(), 200U);
  EXPECT_NE(got, want);
  EXPECT_LT(mean_of_last(want), want.front().at("lm loss") - 1);
  EXPECT_NEAR(mean_of_last(got), mean_of_last(want), 0.02 * mean_of_last(want));

  const Flags few = narrow.with("--train-iters", "20");
  const std::vector<Metrics> straight = trained(few, {}, "straight");
  EXPECT_EQ(trained(few.with("--optimizer-cpu-offload"), {}, "offloaded"), straight);
  EXPECT_EQ(trained(few, {.zero_stage = 2}, "second"), straight);
  EXPECT_EQ(trained(few, {.zero_stage = 3}, "third"), straight);
  // A number may become the other neighbour if the sums of gradients differ.
  for (const Layout& layout :
       {Layout{.dp = 2}, Layout{.dp = 2, .zero_stage = 3}, Layout{.tp = 2}, Layout{.pp = 2}}) {
    const std::vector<Metrics> divided = trained(few, layout, "divided" + name_of(layout));
    ASSERT_EQ(divided.size(), straight.size());
    for (size_t i = 0; i < straight.size(); ++i) {
      const double loss = straight[i].at("lm loss");
      EXPECT_NEAR(divided[i].at("lm loss"), loss, 5e-3 * loss) << name_of(layout) << i;
    }
  }
  const std::string saved = path("saved").string();
  EXPECT_EQ(trained_with_a_stop(few, saved), straight);
  // A run with fp32 main parameters goes on from it, and the other way round.
  EXPECT_EQ(trained(wide.with("--train-iters", "20").with("--load", saved), {}, "widened").size(),
            10U);
  const std::string other = path("other").string();
  trained(until_ten(wide.with("--train-iters", "20"), other), {}, "wide_saved");
  EXPECT_EQ(trained(few.with("--load", other), {}, "narrowed").size(), 10U);
}

TEST_F(ZeroTest, AFileOfDeepSpeedDividesAsTheFlags) {
  const Layout layout{.dp = 2, .zero_stage = 3};
  const std::vector<Metrics> want =
      trained(model(false).with("--optimizer-cpu-offload"), layout, "flags");
  std::ofstream(path("ds.json")) << R"({
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})";
  const Flags flags = model(false)
                          .with("--deepspeed")
                          .with("--deepspeed_config", path("ds.json").string())
                          .with("--ddp-bucket-size", "20000");
  EXPECT_EQ(trained(flags, {.dp = 2}, "file"), want);
}

// An overflow under the loss scale is skipped on all ranks.
TEST_F(ZeroTest, SixteenBitsFollowTheDistributedOptimizer) {
  for (const char* const dtype : {"--bf16", "--fp16"}) {
    const Flags flags = model(false).with(dtype);
    const std::vector<Metrics> want =
        trained(flags, {.dp = 2, .distributed_optimizer = true}, std::string(dtype) + "1");
    for (const int stage : {2, 3}) {
      const std::vector<Metrics> got =
          trained(flags, {.dp = 2, .zero_stage = stage}, dtype + std::to_string(stage));
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        for (const auto& [key, value] : want[i]) {  // gradients are rounded at other places
          EXPECT_NEAR(got[i].at(key), value, 5e-3 * std::abs(value)) << dtype << key << i;
        }
      }
    }
  }
}

TEST_F(ZeroTest, OtherModelsTrainAsOneRank) {
  const Flags sentences =
      golden_flags()
          .without("--merge-file")
          .with("--tokenizer-type", "BertWordPieceLowerCase")
          .with("--padded-vocab-size", "512")
          .with("--vocab-file", golden("megatron/data/bert-vocab.txt").string())
          .with("--data-path", golden("megatron/data/sentences_text_sentence").string())
          .with("--micro-batch-size", "2")
          .with("--hidden-dropout", "0.1");
  const Flags t5 = sentences.with("--vocab-extra-ids", "100")
                       .with("--num-layers", "2")
                       .with("--decoder-num-layers", "2")
                       .with("--decoder-seq-length", "16");
  for (const auto& [command, flags] :
       {std::pair{std::string("pretrain-bert"), sentences}, {std::string("pretrain-t5"), t5}}) {
    const std::vector<Metrics> want = trained(flags, {}, command, command);
    for (const int stage : {2, 3}) {
      const Layout layout{.dp = 2, .zero_stage = stage};
      const std::string name = command + name_of(layout);
      expect_equal(trained(flags, layout, name, command), want, name);
    }
  }
}

TEST_F(ZeroTest, ACheckpointIsGoneOnFromInAnyOtherStage) {
  const std::vector<Metrics> want = trained(model(true), {}, "straight");
  const std::vector<Layout> layouts = {
      {},
      {.dp = 2, .distributed_optimizer = true},
      {.dp = 2, .zero_stage = 2},
      {.dp = 4, .zero_stage = 3},
      {.tp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 3}};
  for (const Layout& saving : layouts) {
    const std::string folder = "saved_" + name_of(saving);
    const std::vector<Metrics> begun = trained(model(true)
                                                   .with("--save", path(folder).string())
                                                   .with("--save-interval", "1000")
                                                   .with("--exit-interval", "10"),
                                               saving, "begun_" + name_of(saving));
    for (const Layout& loading : layouts) {
      const std::string name = name_of(saving) + "_to_" + name_of(loading);
      std::vector<Metrics> all = begun;
      const Flags flags = model(true).with("--load", path(folder).string());
      for (const Metrics& line : trained(flags, loading, name)) all.push_back(line);
      expect_equal(all, want, name);
    }
  }
}

// A rank that dies costs the iterations since the last checkpoint, and no bit.
TEST_F(ZeroTest, AKilledRankGoesOnWithTheSameBits) {
  for (const int stage : {2, 3}) {
    const Layout layout{.tp = 2, .dp = 2, .zero_stage = stage};
    const std::string name = "killed" + std::to_string(stage);
    const Flags flags = laid_out(model(false)
                                     .with("--train-iters", "200")
                                     .with("--lr-decay-iters", "200")
                                     .with("--eval-iters", "0")
                                     .with("--optimizer-cpu-offload")
                                     .with("--distributed-timeout-seconds-after-init", "3"),
                                 layout);
    const auto launched = [&](const Flags& job, const std::string& ranks) {
      Words words = {"--nproc-per-node", "4", "--ranks", ranks, "pretrain-gpt"};
      for (const std::string& word : job.words()) words.push_back(word);
      return words;
    };
    const auto metrics = [&](const std::string& of) { return path(of + ".jsonl").string(); };
    const Flags saving = flags.with("--save", path(name).string())
                             .with("--save-interval", "10")
                             .with("--metrics-jsonl", metrics(name));
    Running running("launch", launched(saving, "processes"));
    ASSERT_TRUE(running.wait_for(" iteration       25/"));
    ASSERT_EQ(::kill(descendant_with(running.pid(), "RANK=1"), SIGKILL), 0);
    EXPECT_EQ(running.finish().exit_code, 128 + SIGKILL);
    const Outcome resumed =
        run("launch", launched(saving.with("--load", path(name).string()), "threads"));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_THAT(resumed.out, HasSubstr("successfully loaded checkpoint"));
    const Outcome straight = run(
        "launch", launched(flags.with("--metrics-jsonl", metrics("straight" + name)), "threads"));
    EXPECT_EQ(straight.exit_code, 0) << straight.err;
    std::map<double, Metrics> last;
    for (const Metrics& line : metrics_of(metrics(name))) last[line.at("iteration")] = line;
    const std::vector<Metrics> want = metrics_of(metrics("straight" + name));
    ASSERT_EQ(last.size(), want.size());
    for (const Metrics& line : want) EXPECT_EQ(last[line.at("iteration")], line);
  }
}

TEST_F(ZeroTest, WhatExcludesDividingIsASentence) {
  const auto errors = [&](const Layout& layout, const Words& more) {
    Words words = {"--nproc-per-node", "4", "pretrain-gpt"};
    for (const std::string& word : laid_out(model(false), layout).words()) words.push_back(word);
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run("launch", words);
    EXPECT_EQ(outcome.exit_code, 2);
    return errors_of(outcome);
  };
  EXPECT_THAT(errors({.pp = 2, .dp = 2, .zero_stage = 2}, {}),
              testing::Contains(HasSubstr("--zero-stage 2 excludes --pipeline-model-parallel-size "
                                          "2, because a pipeline needs its gradients")));
  EXPECT_THAT(errors({.dp = 4}, {"--zero-stage", "4"}),
              testing::Contains(HasSubstr("--zero-stage 4 must be 0, 1, 2 or 3")));
  EXPECT_THAT(errors({.dp = 4, .zero_stage = 3}, {"--fp8-format", "hybrid"}),
              testing::Contains(HasSubstr("so --zero-stage 3 would save no memory; use "
                                          "--zero-stage 2")));
}

}  // namespace
}  // namespace megatron::program
