#include <filesystem>

#include "tests/program/exact_resume.h"

// Groups of --valid-weighted-split-paths: each is evaluated as if it were the only one.
namespace megatron::program {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ValidationGroupsTest : public ExactResumeTest {
 protected:
  static constexpr const char* kValid = "--valid-weighted-split-paths";

  // A group of two parts of the golden corpus, the second of them twice as heavy.
  static std::string group(const std::string& name, const std::string& part,
                           const std::string& other) {
    const std::string prefix = (golden("megatron/data") / "corpus_text_document").string();
    return name + ": 1 " + part + " " + prefix + ", 2 " + other + " " + prefix;
  }

  Flags flags() const {
    return golden_flags()
        .without("--data-path")
        .without("--split")
        .with("--train-weighted-split-paths", group("TRAIN", "0:0.5", "0.5:0.8"))
        .with(kValid, group("late", "0.8:0.9", "0.9:1"), group("early", "0:0.1", "0.1:0.3"));
  }

  // The losses of a group, by iteration.
  std::map<double, double> losses(const std::string& file, const std::string& name) const {
    std::map<double, double> found;
    for (const Metrics& row : metrics_of(path(file))) {
      const auto loss = row.find("lm-loss-validation/" + name + "/lm loss validation");
      if (loss != row.end()) found[row.at("iteration")] = loss->second;
    }
    return found;
  }
};

TEST_F(ValidationGroupsTest, EachIsEvaluatedOnItsOwn) {
  const auto short_run = [&](const std::string& file) {
    return flags()
        .with("--train-iters", "6")
        .with("--eval-interval", "3")
        .with("--metrics-jsonl", path(file).string());
  };
  const Outcome both =
      train(short_run("both.jsonl")
                .with("--test-weighted-split-paths", group("held", "0.9:1", "0.8:0.9"),
                      group("own", "0:1", "0:1")));
  EXPECT_THAT(both.out,
              AllOf(HasSubstr("\n late loss at iteration 3 | lm loss value: "),
                    HasSubstr("\n early loss at iteration 6 | lm loss value: "),
                    HasSubstr("\n held loss at iteration 6 on test set | lm loss value: "),
                    HasSubstr("\n own loss at iteration 6 on test set | lm loss value: ")));
  train(short_run("late.jsonl").with(kValid, group("late", "0.8:0.9", "0.9:1")));
  train(short_run("early.jsonl").with(kValid, group("early", "0:0.1", "0.1:0.3")));
  for (const std::string name : {"late", "early"}) {
    EXPECT_EQ(losses("both.jsonl", name), losses(name + ".jsonl", name));
    EXPECT_EQ(losses("both.jsonl", name).size(), 2u);
  }
  EXPECT_NE(losses("both.jsonl", "late"), losses("both.jsonl", "early"));
}

TEST_F(ValidationGroupsTest, DatasetsAreEvaluatedApart) {
  for (const char* name : {"a", "b"}) {
    for (const char* end : {".bin", ".idx"}) {
      std::filesystem::copy(golden("megatron/data") / (std::string("corpus_text_document") + end),
                            path(std::string(name) + end));
    }
  }
  const std::string a = path("a").string();
  const std::string b = path("b").string();
  const Flags short_run = golden_flags()
                              .without("--data-path")
                              .without("--split")
                              .with("--train-data-path", a)
                              .with("--train-iters", "4")
                              .with("--eval-interval", "2");
  const Outcome both = train(short_run.with("--metrics-jsonl", path("both.jsonl").string())
                                 .with("--valid-data-path", a, b)
                                 .with("--multiple-validation-sets")
                                 .with("--validation-set-names", "web", "code"));
  EXPECT_THAT(both.out, HasSubstr("\n web loss at iteration 2 | lm loss value: "));
  EXPECT_THAT(both.out, HasSubstr("\n code loss at iteration 4 | lm loss value: "));
  train(short_run.with("--metrics-jsonl", path("alone.jsonl").string())
            .with("--valid-data-path", b)
            .with("--multiple-validation-sets"));
  EXPECT_EQ(losses("both.jsonl", "code").size(), 2u);
  EXPECT_EQ(losses("both.jsonl", "code"), losses("alone.jsonl", "b"));
}

TEST_F(ValidationGroupsTest, ResumeReadsOnInEachGroup) {
  const std::string prefix = (golden("megatron/data") / "corpus_text_document").string();
  expect_exact_resume(flags().with("--eval-interval", "5").with("--test-data-path", prefix), 10);
}

}  // namespace
}  // namespace megatron::program
