#pragma once

#include "tests/program/program_test.h"

namespace megatron::program {

inline Flags with_dropout(const Flags& flags) {
  return flags.with("--attention-dropout", "0.1").with("--hidden-dropout", "0.1");
}

// Delayed scaling with a short history.
inline Flags in_fp8(const Flags& flags) {
  return flags.with("--fp8-format", "hybrid")
      .with("--fp8-amax-history-len", "4")
      .with("--fp8-amax-compute-algo", "max");
}

// A scale for each block.
inline Flags in_blocks(const Flags& flags) {
  return flags.with("--fp8-format", "hybrid").with("--fp8-recipe", "blockwise");
}

// Checks that a run that stops and resumes equals the run that does not, bit for bit.
class ExactResumeTest : public ProgramTest {
 protected:
  // `flags` train for 20 iterations; the second run stops after `stop_at` of them.
  void expect_exact_resume(const Flags& flags, int stop_at,
                           const std::string& command = "pretrain-gpt") const {
    const std::string stop = std::to_string(stop_at);
    const auto saving = [&](const std::string& name) {
      return flags.with("--save", path(name).string())
          .with("--save-interval", "1000")
          .with("--metrics-jsonl", path(name + ".jsonl").string());
    };

    const Outcome straight = train(saving("straight"), {}, command);
    const Outcome begun = train(saving("stopped").with("--exit-interval", stop), {}, command);
    EXPECT_THAT(begun.out, testing::HasSubstr("exiting program at iteration " + stop));
    const Outcome resumed =
        train(saving("stopped").with("--load", path("stopped").string()), {}, command);
    EXPECT_THAT(resumed.out, testing::HasSubstr(" at iteration " + stop));

    const std::vector<IterationText> want = iterations_of(straight.out);
    std::vector<IterationText> got = iterations_of(begun.out);
    ASSERT_EQ(got.size(), static_cast<size_t>(stop_at));
    for (const IterationText& iteration : iterations_of(resumed.out)) got.push_back(iteration);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].line, want[i].line);
    EXPECT_EQ(metrics_of(path("stopped.jsonl")), metrics_of(path("straight.jsonl")));
    EXPECT_EQ(validations_of(resumed.out).at("iteration 20 on test set"),
              validations_of(straight.out).at("iteration 20 on test set"));

    expect_identical(read_saved_run(iteration_in(path("stopped"), 20)),
                     read_saved_run(iteration_in(path("straight"), 20)));
  }
};

}  // namespace megatron::program
