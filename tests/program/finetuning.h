#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/program/program_test.h"

namespace megatron::program {

// Runs of `megatron finetune`, like those of tests/golden/finetune.
class FinetuningTest : public ProgramTest {
 protected:
  Flags finetuning(const std::string& output) const {
    return Flags()
        .with("--per_device_train_batch_size", "4")
        .with("--gradient_accumulation_steps", "2")
        .with("--num_train_epochs", "2")
        .with("--learning_rate", "1e-3")
        .with("--num_warmup_steps", "2")
        .with("--weight_decay", "0.1")
        .with("--seed", "42")
        .with("--hidden-dropout", "0")
        .with("--attention-dropout", "0")
        .with("--log-interval", "1")
        .with("--output_dir", path(output).string())
        .with("--metrics-jsonl", path(output + ".jsonl").string())
        .with("--device", "cpu")
        .with("--num-threads", "1");
  }
  static Outcome finetune(const Flags& flags, int ranks = 1) {
    Words words = flags.words();
    if (ranks > 1) {
      words.insert(words.begin(), {"--nproc-per-node", std::to_string(ranks), "finetune"});
    }
    Outcome outcome = run(ranks > 1 ? "launch" : "finetune", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    return outcome;
  }

  // The numbers behind `mark` in the lines "epoch 0: accuracy: 0.5 eval_loss: 0.7".
  static std::vector<double> epochs_of(const std::string& output, const std::string& mark) {
    std::vector<double> values;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find(mark);
      if (!line.starts_with("epoch ") || at == std::string::npos) continue;
      values.push_back(std::stod(line.substr(at + mark.size())));
    }
    return values;
  }
  std::vector<double> column(const std::string& output, const std::string& name) const {
    std::vector<double> values;
    for (const Metrics& line : metrics_of(path(output + ".jsonl"))) {
      if (const auto found = line.find(name); found != line.end()) values.push_back(found->second);
    }
    return values;
  }
  static void expect_near(const std::vector<double>& got, const std::vector<double>& want,
                          double tolerance) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << i;
  }
};

}  // namespace megatron::program
