#include "tests/program/program_test.h"

namespace megatron::program {
namespace {

class ReproducibleTest : public ProgramTest {
 protected:
  // Trains with everything random on; what it says and saves under `name`.
  Outcome train_as(const std::string& name, const Flags& flags) const {
    return train(flags.with("--attention-dropout", "0.1")
                     .with("--hidden-dropout", "0.1")
                     .with("--save", path(name).string())
                     .with("--save-interval", "20")
                     .with("--metrics-jsonl", path(name + ".jsonl").string()));
  }
  void expect_same(const std::string& a, const Outcome& of_a, const std::string& b,
                   const Outcome& of_b) const {
    const std::vector<IterationText> left = iterations_of(of_a.out);
    const std::vector<IterationText> right = iterations_of(of_b.out);
    ASSERT_EQ(left.size(), 20u);
    ASSERT_EQ(right.size(), 20u);
    for (size_t i = 0; i < left.size(); ++i) EXPECT_EQ(left[i].line, right[i].line);
    EXPECT_EQ(metrics_of(path(a + ".jsonl")), metrics_of(path(b + ".jsonl")));
    expect_identical(read_saved_run(iteration_in(path(a), 20)),
                     read_saved_run(iteration_in(path(b), 20)));
  }
};

TEST_F(ReproducibleTest, EqualRunsAreIdentical) {
  const Outcome a = train_as("a", golden_flags());
  const Outcome b = train_as("b", golden_flags());  // the index caches are there now
  expect_same("a", a, "b", b);
}

TEST_F(ReproducibleTest, NumberOfThreadsDoesNotMatter) {
  for (const char* precision : {"fp32", "bf16"}) {
    const Flags flags = std::string(precision) == "bf16"
                            ? llama_style(golden_flags()).with("--bf16")
                            : golden_flags();
    const std::string one = std::string("one-") + precision;
    const std::string three = std::string("three-") + precision;
    const Outcome a = train_as(one, flags.with("--num-threads", "1"));
    const Outcome b = train_as(three, flags.with("--num-threads", "3"));
    expect_same(one, a, three, b);
  }
}

TEST_F(ReproducibleTest, NumberOfLoaderThreadsDoesNotMatter) {
  const Outcome a = train_as("a", golden_flags().with("--num-workers", "0"));
  const Outcome b = train_as("b", golden_flags().with("--num-workers", "3"));
  expect_same("a", a, "b", b);
}

TEST_F(ReproducibleTest, AnotherSeedIsAnotherRun) {
  const Outcome a = train_as("a", golden_flags());
  const Outcome b = train_as("b", golden_flags().with("--seed", "4321"));
  EXPECT_NE(iterations_of(a.out).front().line, iterations_of(b.out).front().line);
}

}  // namespace
}  // namespace megatron::program
