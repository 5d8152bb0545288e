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

  // The flags of a run that saves iteration 10 and ends.
  static Flags until_ten(const Flags& flags, const std::string& save) {
    return flags.with("--save", save).with("--save-interval", "10").with("--exit-interval", "10");
  }

  // The whole golden run, GPT and Llama style, with evaluations.
  void expect_trains_as_one_rank(const std::vector<Layout>& layouts) {
    for (const bool is_llama_style : {false, true}) {
      const Flags flags =
          model(is_llama_style).with("--eval-interval", "8").with("--eval-iters", "2");
      const std::string style = is_llama_style ? "llama_" : "gpt_";
      const std::vector<Metrics> want = trained(flags, {}, style + "one");
      ASSERT_GE(want.size(), 20u);
      for (const Layout& layout : layouts) {
        const std::string name = style + name_of(layout);
        expect_equal(trained(flags, layout, name), want, name);
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
