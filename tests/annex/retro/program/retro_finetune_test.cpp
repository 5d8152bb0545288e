#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "megatron/core/file.h"
#include "tests/program/layout_runs.h"

// `megatron retro-finetune`, `retro-generate` and `retro-eval` on a few questions.
namespace megatron::program {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kRetroFinetuneCommand = "retro-finetune";

class RetroFinetuneTest : public LayoutTest {
 protected:
  RetroFinetuneTest() {
    write_set("open_inst", "train", 12);
    write_set("open_inst", "dev", 4);
    write_set("nq", "train", 3);
  }
  void write_set(const std::string& name, const std::string& part, int64_t count) const {
    std::filesystem::create_directories(path("data") / name);
    json items = json::array();
    for (int64_t i = 0; i < count; ++i) {
      const std::string letter(1, static_cast<char>('a' + i));
      const std::string digits(8, static_cast<char>('0' + i));
      items.push_back({{"question", "Which letter is number " + digits + "?"},
                       {"answers", {"letter " + letter, "unused"}},
                       {"ctxs",
                        {{{"title", "Letters"}, {"text", letter + " is number " + letter}},
                         {{"title", "More"}, {"text", letter + letter}}}}});
    }
    write_text_atomically(file(name, part), items.dump());
  }
  std::filesystem::path file(const std::string& name, const std::string& part) const {
    return path("data") / name / (name + "_QA_" + part + ".json");
  }

  // A small Retro with two layers that read neighbours, tuned for 20 iterations of 8.
  Flags tuning() const {
    return golden_flags()
        .without("--data-path")
        .without("--split")
        .with("--data-folder", path("data").string())
        .with("--data-path", "1.0", "open_inst")
        .with("--num-layers", "3")
        .with("--seq-length", "288")
        .with("--max-position-embeddings", "288")
        .with("--attention-dropout", "0")
        .with("--hidden-dropout", "0")
        .with("--answer-loss-only")
        // The mean of a micro-batch depends on the samples that it has.
        .with("--micro-batch-size", "1")
        .with("--dataloader-type", "cyclic")
        .with("--no-data-sharding")
        .with("--eval-interval", "20")
        .with("--eval-iters", "1");
  }
  static Flags retro(const Flags& flags, const std::string& gate = "0") {
    return flags.with("--retro-add-retriever")
        .with("--retro-layer-numbers", "2", "3")
        .with("--retro-gpt-chunk-length", "4")
        .with("--retro-attention-gate", gate);
  }
  // The losses of a tuning, by iteration.
  std::vector<Metrics> tuned(const Flags& flags, const Layout& layout = {},
                             const std::string& name = "one") {
    return trained(flags, layout, name, kRetroFinetuneCommand);
  }
};

TEST_F(RetroFinetuneTest, LearnsAnswersInEveryLayout) {
  const std::vector<Metrics> want = tuned(retro(tuning()));
  ASSERT_GE(want.size(), 20u);
  EXPECT_LT(want[19].at("lm loss"), want.front().at("lm loss") - 0.5);
  expect_equal(tuned(retro(tuning()), {.tp = 2}, "tp"), want, "tp");
  expect_equal(tuned(retro(tuning()), {.dp = 2}, "dp"), want, "dp");
  // A closed gate tunes the GPT, if both are asked alike.
  const Flags gpt = tuning().with("--retro-prompt-variant", "retro");
  EXPECT_NEAR(tuned(gpt, {}, "gpt").front().at("lm loss"), want.front().at("lm loss"), 1e-5);
  EXPECT_NE(tuned(tuning(), {}, "plain").front().at("lm loss"), want.front().at("lm loss"));
  // The prompt counts, too, without --answer-loss-only.
  EXPECT_NE(tuned(retro(tuning()).without("--answer-loss-only"), {}, "all").front().at("lm loss"),
            want.front().at("lm loss"));
}

TEST_F(RetroFinetuneTest, AnOpenGateReadsTheContexts) {
  const Flags open = retro(tuning(), "1").with("--use-retrieved-neighbours").with("--reuse-top");
  const std::vector<Metrics> want = tuned(open, {}, "open");
  expect_equal(tuned(open, {.tp = 2, .dp = 2}, "tp"), want, "tp");
  EXPECT_NE(tuned(open.without("--reuse-top"), {}, "behind").front().at("lm loss"),
            want.front().at("lm loss"));
}

TEST_F(RetroFinetuneTest, BlendsDataSets) {
  const Flags blended = retro(tuning())
                            .with("--data-path", "0.7", "open_inst", "0.3", "nq")
                            .with("--use-retrieved-neighbours")
                            .with("--eval-iters", "0");
  const std::vector<Metrics> want = trained(blended, {}, "blend", "tools/retro/sft/sft_retro.py");
  EXPECT_LT(want[19].at("lm loss"), want.front().at("lm loss") - 0.5);
  EXPECT_NE(want.front().at("lm loss"), tuned(retro(tuning())).front().at("lm loss"));
}

// Tunes until the answers are known, writes them, and scores them.
TEST_F(RetroFinetuneTest, WritesWhatItHasLearned) {
  const std::string save = path("tuned").string();
  const Flags flags = retro(tuning())
                          .with("--train-iters", "240")
                          .with("--lr", "5e-3")
                          .with("--min-lr", "1e-3")
                          .with("--lr-decay-iters", "240")
                          .with("--data-path", "1.0", "nq")
                          .with("--global-batch-size", "3")
                          .with("--micro-batch-size", "3")
                          .with("--eval-iters", "0")
                          .with("--retro-prompt-variant", "retro")
                          .with("--save", save)
                          .with("--save-interval", "240");
  train(flags, {}, kRetroFinetuneCommand);
  const std::string answers = path("answers.txt").string();
  const Flags ask = Flags()
                        .with("--load", save)
                        .with("--task", "nq")
                        .with("--sample-input-file", file("nq", "train").string())
                        .with("--sample-output-file", answers)
                        .with("--retro-prompt-variant", "retro")
                        .with("--top_k", "1")
                        .with("--out-seq-length", "8")
                        .with("--retro-add-retriever")
                        .with("--micro-batch-size", "1")
                        .with("--device", "cpu");
  const Outcome written = run("retro-generate", ask.words());
  ASSERT_EQ(written.exit_code, 0) << written.err;
  EXPECT_THAT(written.out, HasSubstr("3 answers are in " + answers));
  const Outcome scores =
      run("retro-eval", {"--pred", answers, "--gold", file("nq", "train").string()});
  EXPECT_THAT(scores.out, HasSubstr("Exact Match: 1.0000;")) << read_text(answers);
  const std::string all = read_text(answers);

  // Two ranks, and a part of the questions, by the name of Megatron-LM's script.
  Words words = {"--nproc-per-node", "2", "tools/retro/text_generation/retro_text_generation.py"};
  for (const std::string& word : ask.with("--tensor-model-parallel-size", "2")
                                     .with("--gen-start-idx", "1")
                                     .with("--num-gen", "2")
                                     .words()) {
    words.push_back(word);
  }
  EXPECT_EQ(run("launch", words).exit_code, 0);
  const std::string part = read_text(answers);
  EXPECT_THAT(all, HasSubstr("\n" + part));
  EXPECT_EQ(std::ranges::count(part, '\n'), 2);

  // With the gate open neighbours, which were not tuned, change what is written.
  const Outcome opened = run("retro-generate", ask.with("--retro-attention-gate", "8")
                                                   .with("--retro-num-neighbors", "1")
                                                   .with("--use-retrieved-neighbours")
                                                   .with("--reuse-top")
                                                   .words());
  EXPECT_EQ(opened.exit_code, 0) << opened.err;
  EXPECT_NE(read_text(answers), all);
}

TEST_F(RetroFinetuneTest, NamesWhatIsWrong) {
  const auto errors = [&](const std::string& command, const Flags& flags) {
    const Outcome outcome = run(command, flags.words());
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  const std::string several =
      errors(kRetroFinetuneCommand,
             retro(tuning()).without("--data-folder").with("--ft_neighbours", "-1"));
  EXPECT_THAT(several, HasSubstr("--data-folder is required"));
  EXPECT_THAT(several, HasSubstr("--ft_neighbours -1 must be 0 or more"));
  EXPECT_THAT(errors(kRetroFinetuneCommand, retro(tuning()).with("--data-path", "none")),
              HasSubstr("none_QA_train.json"));
  EXPECT_THAT(errors("retro-generate", Flags().with("--load", "x")),
              HasSubstr("--sample-input-file is required"));
}

}  // namespace
}  // namespace megatron::program
