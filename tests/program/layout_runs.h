#pragma once

#include <cmath>

#include "tests/program/layout.h"
#include "tests/program/program_test.h"

namespace megatron::program {

// Runs of a model in several layouts.
class LayoutTest : public ProgramTest {
 protected:
  Flags model(bool is_llama_style) const { return layout_model(golden_flags(), is_llama_style); }

  // For `launch`: bench of a small model on several ranks, with further flags.
  static Words tiny_bench(int ranks, const Words& more) {
    Words words = {"--nproc-per-node",
                   std::to_string(ranks),
                   "bench",
                   "--workload",
                   "tiny",
                   "--vocab-size",
                   "500"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  std::vector<Metrics> trained(const Flags& flags, const Layout& layout, const std::string& name,
                               const std::string& command = "pretrain-gpt",
                               const std::string& ranks = "threads") {
    const std::string metrics = path(name + ".jsonl").string();
    Words words = {"--ranks", ranks, "--nproc-per-node", std::to_string(layout.ranks()), command};
    // Ranks compare their copies: healthy runs give no alarm.
    const Flags checked = flags.with("--metrics-jsonl", metrics)
                              .with("--check-weight-hash-across-dp-replicas-interval", "5");
    for (const std::string& word : laid_out(checked, layout).words()) words.push_back(word);
    // Ranks that share a GPU with those of other tests wait long for their turns.
    const Outcome outcome = run("launch", words, {.limit_seconds = 300});
    EXPECT_EQ(outcome.exit_code, 0) << name << outcome.err << outcome.out;
    return metrics_of(metrics);
  }

  // The same bits, but for the last places of norms, which buffers sum in another order.
  static void expect_same_bits(const std::vector<Metrics>& got, const std::vector<Metrics>& want,
                               const std::string& name) {
    ASSERT_EQ(got.size(), want.size()) << name;
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i].size(), want[i].size()) << name;
      for (const auto& [key, value] : want[i]) {
        const bool is_norm = key.ends_with("_norm");
        EXPECT_NEAR(got[i].at(key), value, is_norm ? 1e-12 * value : 0)
            << name << ", " << key << " in line " << i;
      }
    }
  }

  static void expect_equal(const std::vector<Metrics>& got, const std::vector<Metrics>& want,
                           const std::string& name) {
    ASSERT_EQ(got.size(), want.size()) << name;
    for (size_t i = 0; i < want.size(); ++i) {
      for (const auto& [key, value] : want[i]) {
        EXPECT_NEAR(got[i].at(key), value, 1e-5 * std::abs(value)) << name << ", " << key;
      }
    }
  }
};

}  // namespace megatron::program
