#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/program/inference_test.h"

namespace megatron::program {

struct InferenceLayout {
  int tp = 1;
  int pp = 1;
  int first_stage_layers = 0;  // 0: as many as the others
  const char* device = "cpu";

  int ranks() const { return tp * pp; }
};

inline const InferenceLayout kOne;
inline const std::vector<Ids> kPrompts = {
    {5, 17, 99}, {1}, {64, 3, 3, 120, 7, 88, 21, 30, 2, 11}, {9, 8}};
// Their shortest is read at once, by an odd number of tokens.
inline const std::vector<Ids> kLongPrompts = {{5, 17, 99, 4, 4}, {1, 2, 3, 4, 5, 6, 7, 8, 9}};

class ParallelInferenceTest : public InferenceTest {
 protected:
  static std::vector<nlohmann::json> printed(const std::string& command,
                                             const std::filesystem::path& model,
                                             const InferenceLayout& layout, const Flags& flags,
                                             const std::vector<Ids>& rows) {
    Flags all = flags.with("--load", model.string())
                    .with("--device", layout.device)
                    .with("--tensor-model-parallel-size", std::to_string(layout.tp))
                    .with("--pipeline-model-parallel-size", std::to_string(layout.pp));
    if (layout.first_stage_layers > 0) {
      all = all.with("--decoder-first-pipeline-num-layers",
                     std::to_string(layout.first_stage_layers));
    }
    Words words = {"--nproc-per-node", std::to_string(layout.ranks()), command};
    for (const std::string& word : all.words()) words.push_back(word);
    const Outcome outcome = run("launch", words, {.input = json_lines(rows)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return parsed_lines(outcome.out);
  }
  static std::vector<nlohmann::json> generated(const std::filesystem::path& model,
                                               const InferenceLayout& layout, const Flags& flags,
                                               const std::vector<Ids>& prompts) {
    return printed("generate", model, layout,
                   flags.with("--prompt-file", "-").with("--json").with("--logprobs"), prompts);
  }

  // The same objects; numbers of a list within 1e-5.
  static void expect_same(const std::vector<nlohmann::json>& got,
                          const std::vector<nlohmann::json>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      for (const auto& [key, value] : want[i].items()) {
        if (key == "loss") {
          EXPECT_NEAR(got[i].at(key).get<double>(), value.get<double>(), 1e-5);
        } else if (key == "logprobs") {
          const auto a = got[i].at(key).get<std::vector<double>>();
          const auto b = value.get<std::vector<double>>();
          ASSERT_EQ(a.size(), b.size());
          for (size_t k = 0; k < b.size(); ++k) EXPECT_NEAR(a[k], b[k], 1e-5) << i << ", " << k;
        } else {
          EXPECT_EQ(got[i].at(key), value) << key << " of row " << i;
        }
      }
    }
  }

  // Texts come and go, so that steps are of many numbers of rows and lengths; penalties read the
  // texts where tokens are drawn.
  static void expect_many_texts_as_one_rank(const std::filesystem::path& model,
                                            const InferenceLayout& layout,
                                            const InferenceLayout& one = kOne) {
    std::vector<Ids> prompts;
    for (int i = 0; i < 24; ++i) prompts.emplace_back(static_cast<size_t>(1 + i % 7), 1 + i);
    const Flags flags = Flags()
                            .with("--seed", "7")
                            .with("--top-k", "20")
                            .with("--repetition-penalty", "1.2")
                            .with("--max-new-tokens", "24");
    expect_same(generated(model, layout, flags, prompts), generated(model, one, flags, prompts));
  }

  static void expect_as_one_rank(const std::filesystem::path& model,
                                 const std::vector<InferenceLayout>& layouts,
                                 const InferenceLayout& one = kOne) {
    const Flags greedy = Flags().with("--greedy").with("--max-new-tokens", "8");
    const Flags sampled =
        Flags().with("--seed", "3").with("--top-p", "0.9").with("--max-new-tokens", "8");
    const std::vector<nlohmann::json> want_greedy = generated(model, one, greedy, kPrompts);
    const std::vector<nlohmann::json> want_sampled = generated(model, one, sampled, kLongPrompts);
    const std::vector<nlohmann::json> want_scores = printed("score", model, one, {}, kLongPrompts);
    for (const InferenceLayout& layout : layouts) {
      SCOPED_TRACE("tp" + std::to_string(layout.tp) + "pp" + std::to_string(layout.pp));
      expect_same(generated(model, layout, greedy, kPrompts), want_greedy);
      expect_same(generated(model, layout, sampled, kLongPrompts), want_sampled);
      expect_same(printed("score", model, layout, {}, kLongPrompts), want_scores);
    }
  }
};

}  // namespace megatron::program
