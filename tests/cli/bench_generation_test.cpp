#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "megatron/cli/bench.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::cli {
namespace {

using testing::HasSubstr;

std::vector<std::string> words_with(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"--workload",      "tiny", "--device",        "cpu",
                                    "--vocab-size",    "200",  "--generate-rows", "3",
                                    "--prompt-tokens", "5",    "--new-tokens",    "4"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(BenchGenerationTest, ReportsTimesAndRates) {
  CapturedStdout captured_out;
  EXPECT_EQ(bench(words_with({"--requests", "7"}), {}), 0);
  const auto report = nlohmann::json::parse(captured_out.text());
  EXPECT_EQ(report.at("rows"), 3);
  EXPECT_EQ(report.at("requests"), 7);
  EXPECT_GT(report.at("first_token_ms_p50"), 0);
  EXPECT_GT(report.at("between_tokens_ms_p50"), 0);
  EXPECT_GE(report.at("between_tokens_ms_p95"), report.at("between_tokens_ms_p50"));
  EXPECT_GT(report.at("output_tokens_per_second"), 0);
}

TEST(BenchGenerationTest, KeepsKeysAndValuesInFp8) {
  const auto peak_of = [](const char* type) {
    CapturedStdout captured_out;
    EXPECT_EQ(bench(words_with({"--kv-cache-dtype", type, "--cache-tokens", "60000"}), {}), 0);
    const auto report = nlohmann::json::parse(captured_out.text());
    EXPECT_EQ(report.at("kv_cache"), type);
    return report.at("peak_allocated_mib").get<double>();
  };
  const double rounded = peak_of("fp8");      // first: it is the peak of the process
  EXPECT_LT(rounded, 0.5 * peak_of("auto"));  // of fp32
}

TEST(BenchGenerationTest, CountsDrafts) {
  CapturedStdout captured_out;
  EXPECT_EQ(bench(words_with({"--mtp-num-layers", "1", "--num-speculative-tokens", "1",
                              "--speculative-method", "mtp"}),
                  {}),
            0);
  const auto report = nlohmann::json::parse(captured_out.text());
  EXPECT_EQ(report.at("speculative_method"), "mtp");
  EXPECT_EQ(report.at("num_speculative_tokens"), 1);
  EXPECT_GT(report.at("draft_tokens"), 0);
  EXPECT_LE(report.at("accepted_draft_tokens"), report.at("draft_tokens"));
  EXPECT_GT(report.at("between_tokens_ms_p50"), 0);
  EXPECT_THAT(
      message_of<ConfigError>([&] {
        bench(words_with({"--num-speculative-tokens", "1", "--speculative-method", "mtp"}), {});
      }),
      HasSubstr("--speculative-method mtp needs a model with multi-token prediction"));
}

TEST(BenchGenerationTest, MeasuresWhileTextsArrive) {
  CapturedStdout captured_out;
  EXPECT_EQ(bench(words_with({"--arriving-requests", "6", "--max-step-tokens", "8"}), {}), 0);
  const auto report = nlohmann::json::parse(captured_out.text());
  EXPECT_EQ(report.at("rows"), 3);
  EXPECT_EQ(report.at("requests"), 9);
  EXPECT_EQ(report.at("arriving_requests"), 6);
  EXPECT_TRUE(report.at("first_token_ms_p50").is_null());
  EXPECT_GT(report.at("between_tokens_ms_p50"), 0);
  EXPECT_GE(report.at("between_tokens_ms_p95"), report.at("between_tokens_ms_p50"));
  EXPECT_GT(report.at("output_tokens_per_second"), 0);
  EXPECT_GT(report.at("prompt_tokens_per_second"), 0);
  EXPECT_EQ(report.at("preemptions"), 0);
}

TEST(BenchGenerationTest, ASmallCacheMakesTextsWait) {
  CapturedStdout captured_out;
  EXPECT_EQ(bench(words_with({"--requests", "7", "--prompt-tokens", "20", "--new-tokens", "20",
                              "--cache-tokens", "80"}),
                  {}),
            0);
  const auto report = nlohmann::json::parse(captured_out.text());
  EXPECT_GT(report.at("preemptions"), 0);
  EXPECT_TRUE(report.at("prompt_tokens_per_second").is_null());
}

TEST(BenchGenerationTest, TimesAT5) {
  CapturedStdout captured_out;
  std::vector<std::string> words = words_with({"--num-layers", "2", "--decoder-num-layers", "2",
                                               "--hidden-size", "32", "--num-attention-heads", "4",
                                               "--seq-length", "16", "--decoder-seq-length", "16"});
  words[1] = "t5-large";
  EXPECT_EQ(bench(words, {}), 0);
  const auto report = nlohmann::json::parse(captured_out.text());
  EXPECT_EQ(report.at("rows"), 3);
  EXPECT_GT(report.at("output_tokens_per_second"), 0);
}

TEST(BenchGenerationTest, EachRunIsALineOfTheTable) {
  const TemporaryDirectory directory;
  const std::string table = (directory.path() / "runs.csv").string();
  CapturedStdout captured_out;
  for (int run = 0; run < 2; ++run) EXPECT_EQ(bench(words_with({"--csv", table}), {}), 0);
  const std::string printed = captured_out.text();
  const auto report = nlohmann::ordered_json::parse(printed.substr(0, printed.find('\n')));
  std::istringstream lines(read_text(table));
  std::string names;
  std::string first;
  std::string second;
  std::string none;
  std::getline(lines, names), std::getline(lines, first), std::getline(lines, second);
  EXPECT_FALSE(std::getline(lines, none));
  EXPECT_THAT(names, HasSubstr("output_tokens_per_second"));
  EXPECT_THAT(first, HasSubstr(report.at("output_tokens_per_second").dump()));
  for (const std::string& line : {first, second}) {
    EXPECT_EQ(std::ranges::count(line, ','), std::ranges::count(names, ','));
  }
}

TEST(BenchGenerationTest, ATableWithOtherColumnsIsLeftAlone) {
  const TemporaryDirectory directory;
  const std::string table = (directory.path() / "runs.csv").string();
  const std::string before = "system,loss\n\"megatron.cpp\",2.5\n";
  write_text_atomically(table, before);
  testing::internal::CaptureStdout();
  const std::string refusal = message_of<ConfigError>([&] {
    bench(words_with({"--csv", table}), {});
  });
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("output_tokens_per_second"));
  EXPECT_THAT(refusal, HasSubstr("--csv " + table + ": has the columns system,loss, and this run"));
  EXPECT_THAT(refusal, HasSubstr("Name another file"));
  EXPECT_EQ(read_text(table), before);
}

TEST(BenchGenerationTest, NamesFlagsThatNoTextCanHave) {
  const auto refusal = [](const std::vector<std::string>& more) {
    return message_of<ConfigError>([&] { bench(words_with(more), {}); });
  };
  EXPECT_THAT(refusal({"--requests", "2"}), HasSubstr("--requests 2 must be at least 3"));
  EXPECT_THAT(refusal({"--requests", "7", "--arriving-requests", "6"}),
              HasSubstr("with --arriving-requests there are 3 + 6: remove it"));
  EXPECT_THAT(refusal({"--arriving-requests", "-1"}), HasSubstr("must be at least 0"));
  EXPECT_THAT(refusal({"--arriving-requests", "1", "--prompt-tokens", "1", "--new-tokens", "2",
                       "--max-step-tokens", "1"}),
              HasSubstr("--arriving-requests 1 have all arrived before --generate-rows 3"));
  EXPECT_THAT(refusal({"--num-speculative-tokens", "-1"}), HasSubstr("must be 0 or more"));
  EXPECT_THAT(refusal({"--num-speculative-tokens", "1", "--speculative-method", "draft_model",
                       "--speculative-model", "x"}),
              HasSubstr("--speculative-method draft_model: the benchmark's model has random"));
  EXPECT_THAT(refusal({"--new-tokens", "1"}), HasSubstr("--new-tokens 1 must be at least 2"));
  EXPECT_THAT(refusal({"--new-tokens", "60"}), HasSubstr("more than the 64 positions"));
}

}  // namespace
}  // namespace megatron::cli
