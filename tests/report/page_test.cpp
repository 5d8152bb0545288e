#include "megatron/report/page.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/support/source_path.h"

namespace megatron::report {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

RunHistory history_of(int64_t records) {
  RunHistory history;
  for (int64_t i = 1; i <= records; ++i) {
    const auto x = static_cast<double>(i);
    history.begin_record(i);
    history.add("consumed_train_samples", 256 * x);
    history.add("elapsed_ms_per_iteration", 812.345 + std::sin(x));
    history.add("tokens_per_second", 1234567.8 + 1000 * std::sin(x * 7));
    history.add("learning_rate", 3e-4 * std::cos(x / 1e4));
    history.add("lm loss", 2 + 8 / std::sqrt(x) + 0.01 * std::sin(x * 3));
    history.add("grad_norm", 1 + std::abs(std::sin(x * 5)));
    history.add("mfu_percent", 40 + std::sin(x));
    history.add("loss_scale", 1);
    history.add("global_batch_size", 256);
    if (i % 100 == 0) history.add("lm loss validation", 2.1 + 8 / std::sqrt(x));
  }
  return history;
}

TEST(ReportPageTest, ARunIsJsonThatTheScriptDecodes) {
  RunHistory history;
  for (const int64_t iteration : {10, 20, 40}) {
    history.begin_record(iteration);
    history.add("lm loss", iteration == 20 ? std::nan("") : 1.0 / static_cast<double>(iteration));
    history.add("elapsed_ms_per_iteration", 1000);
  }
  history.settings["seed"] = "1234";
  const json run = json::parse(run_json("a", history, 1000));
  EXPECT_EQ(run["name"], "a");
  EXPECT_EQ(run["settings"]["seed"], "1234");
  EXPECT_EQ(run["progress"]["i"], json({10, 10, 20}));
  EXPECT_EQ(run["progress"]["seconds"], json({10, 20, 40}));
  EXPECT_EQ(run["progress"]["tokens"], json({nullptr, nullptr, nullptr}));
  const json& loss = run["series"]["lm loss"];
  EXPECT_EQ(loss["i"], json({10, 10, 20}));
  EXPECT_EQ(loss["v"], json({0.1, nullptr, 0.025}));
  EXPECT_EQ(loss["n"], 3);
  EXPECT_EQ(loss["bad"], 1);
  EXPECT_EQ(loss["last"], 0.025);
  EXPECT_EQ(loss["min"], 0.025);
  EXPECT_EQ(loss["max"], 0.1);
  EXPECT_EQ(loss["mean"], 0.0625);
}

TEST(ReportPageTest, ShowsTheLoadOfExpertsByLayer) {
  RunHistory history;
  for (int64_t i = 1; i <= 200; ++i) {
    history.begin_record(i);
    history.add("moe/load_layer_0_expert_0", 0.5);
    history.add("moe/load_layer_0_expert_1", i <= 100 ? 1.5 : 2.5);
    history.add("moe/load_layer_2_expert_0", 1);
    history.add("moe/load_layer_2_expert_1", 0.25);
    history.add("moe/z_loss_layer_0", 3);
  }
  const json run = json::parse(run_json("a", history, 1000));
  EXPECT_EQ(run["series"].size(), 1u);
  const json& experts = run["experts"];
  EXPECT_EQ(experts["layers"], json({0, 2}));
  EXPECT_EQ(experts["experts"], 2);
  EXPECT_EQ(experts["i"].size(), 60u);
  EXPECT_EQ(experts["most"][0].size(), 60u);
  EXPECT_EQ(experts["most"][0][0], 1.5);
  EXPECT_EQ(experts["most"][0][59], 2.5);
  EXPECT_EQ(experts["most"][1][59], 1);
  EXPECT_EQ(experts["last"], json({{0.5, 2.5}, {1, 0.25}}));
  EXPECT_TRUE(json::parse(run_json("a", history, 12))["experts"]["last"].empty());
}

TEST(ReportPageTest, ShowsThePipelineAndMemoryAndResults) {
  RunHistory history;
  history.pipeline[0] = {{"forward_step", 0, 0, 1.25, 3.5}, {"backward_step", 0, 0, 4, 9}};
  history.pipeline[3] = {{"forward_step", 1, 1, 2, 3}};
  history.planned_memory["optimizer"] = 1536;
  history.results["LAMBADA"]["ppl"] = 30.5;
  const json run = json::parse(run_json("a", history, 1000));
  EXPECT_EQ(run["pipeline"]["names"], json({"forward_step", "backward_step"}));
  EXPECT_EQ(run["pipeline"]["ranks"][0]["boxes"], json({{0, 0, 0, 1, 2}, {1, 0, 0, 4, 5}}));
  EXPECT_EQ(run["pipeline"]["ranks"][1]["rank"], 3);
  EXPECT_EQ(run["pipeline"]["left"], 0);
  EXPECT_EQ(run["plannedMemory"]["optimizer"], 1536);
  EXPECT_EQ(run["results"]["LAMBADA"]["ppl"], 30.5);
  EXPECT_EQ(json::parse(run_json("a", history, 8))["pipeline"]["left"], 1);
}

TEST(ReportPageTest, TheScriptComputesWhatItShows) {
  if (std::system("node --version >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "needs the program node: not run";
  const std::string command =
      "node " + source_path("tests/report/page_script.js") + " " + source_path("megatron/report");
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(ReportPageTest, NamesCannotLeaveTheirPlace) {
  const std::string evil = "</script><img src=x onerror=alert(1)>\"&{{data}}\xff";
  RunHistory history;
  history.begin_record(1);
  history.add(evil, 2);
  history.settings[evil] = evil;
  const std::vector<std::string> runs = {run_json(evil, history, 100)};
  const std::string page = page_of(evil, runs);
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, HasSubstr("<title>&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;&quot;&amp;"
                              "{{data}}\xff</title>"));
  const std::string begin = "id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  const json data = json::parse(page.substr(at, page.find("</script>", at) - at));
  const std::string shown = evil.substr(0, evil.size() - 1) + "\xef\xbf\xbd";  // not UTF-8: U+FFFD
  EXPECT_EQ(data["runs"][0]["name"], shown);
  EXPECT_TRUE(data["runs"][0]["series"].contains(shown));
}

TEST(ReportPageTest, NeedsNothingFromTheNetwork) {
  const std::vector<std::string> runs = {run_json("a", history_of(3), 100)};
  std::string page = page_of("t", runs);
  const std::string name = "http://www.w3.org/2000/svg";  // of a namespace: nothing is loaded
  page.erase(page.find(name), name.size());
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* const reference : {"http:", "https:", "src=\"", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(reference)));
  }
  EXPECT_THAT(page, Not(HasSubstr("{{")));
}

TEST(ReportPageTest, AHundredLongRunsAreBelowFiveMegabytes) {
  const std::string run =
      run_json("a run with a name of ordinary length", history_of(10000), kPagePoints / 100);
  const std::vector<std::string> runs(100, run);
  const std::string page = page_of("t", runs);
  EXPECT_LT(page.size(), 5'000'000u);
  const json data = json::parse(run);
  EXPECT_GE(data["series"]["lm loss"]["v"].size(), 200u);
}

TEST(ReportPageTest, ALongRunAloneKeepsThePointsOfAScreen) {
  const json run = json::parse(run_json("a", history_of(10000), kPagePoints));
  EXPECT_GE(run["series"]["lm loss"]["v"].size(), 1900u);
  EXPECT_LE(run["series"]["lm loss"]["v"].size(), 3000u);
  EXPECT_EQ(run["series"]["lm loss"]["n"], 10000);
}

}  // namespace
}  // namespace megatron::report
