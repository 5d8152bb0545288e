#include "annex/corpus/toxicity.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "annex/corpus/scorer_process.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::corpus {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A scorer that gives each text the digit at its end as tenths.
constexpr const char* kByDigit =
    "sed -u -E 's/^.\"id\": ([0-9]+), .*([0-9])\".$/{\"id\": \\1, \"score\": {\"toxicity\": "
    "0.\\2}}/'";

std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(read_text(file));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(ScorerProcess, ScoresInAnyOrder) {
  // Answers the second of two lines first.
  ScorerProcess scorer(fmt::format("{} | sed -u -E 'N; s/(.*)\\n(.*)/\\2\\n\\1/'", kByDigit),
                       std::chrono::seconds(20));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(scorer.score(std::vector<std::string>{"a \"1", "\xC3\xA9\n2", "3", "4"}),
                ElementsAre("{\"toxicity\": 0.1}", "{\"toxicity\": 0.2}", "{\"toxicity\": 0.3}",
                            "{\"toxicity\": 0.4}"));
    EXPECT_EQ(scorer.problem(), "");
  }
  EXPECT_TRUE(scorer.score({}).empty());
}

TEST(ScorerProcess, TakesMoreThanAPipeHolds) {
  ScorerProcess scorer(kByDigit, std::chrono::seconds(60));
  const std::vector<std::string> texts(1000, std::string(1000, 'x') + "7");
  const std::vector<std::string> scores = scorer.score(texts);
  EXPECT_EQ(scores, std::vector<std::string>(1000, "{\"toxicity\": 0.7}"));
}

TEST(ScorerProcess, StartsAgainWhenTheScorerEnds) {
  ScorerProcess scorer(fmt::format("head -n 1 | {}; exit 3", kByDigit), std::chrono::seconds(20));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(scorer.score(std::vector<std::string>{"1", "2"}),
                ElementsAre("{\"toxicity\": 0.1}", "null"));
    EXPECT_THAT(scorer.problem(),
                AllOf(HasSubstr("ended with exit code 3"), HasSubstr("before it had answered")));
  }
}

TEST(ScorerProcess, TimesOut) {
  ScorerProcess scorer("sleep 1000", milliseconds(50));
  EXPECT_THAT(scorer.score(std::vector<std::string>{"1"}), ElementsAre("null"));
  EXPECT_THAT(scorer.problem(), HasSubstr("did not answer for 0.05 s"));
}

TEST(ScorerProcess, RefusesRubbish) {
  const auto problem_of = [](const std::string& answer) {
    ScorerProcess scorer(fmt::format("read -r line; echo '{}'", answer), std::chrono::seconds(20));
    EXPECT_THAT(scorer.score(std::vector<std::string>{"1"}), ElementsAre("null")) << answer;
    return scorer.problem();
  };
  // The process ends behind its answer, which is then the last problem.
  EXPECT_THAT(problem_of("rubbish"), HasSubstr("ended with exit code 0"));
  EXPECT_THAT(problem_of(R"({"id": 7, "score": {"toxicity": 1}})"), HasSubstr("ended"));
  EXPECT_THAT(problem_of(R"({"id": 0, "score": "high"})"), HasSubstr("ended"));
  ScorerProcess alive("read -r line; echo rubbish; sleep 1000", milliseconds(200));
  EXPECT_THAT(alive.score(std::vector<std::string>{"1"}), ElementsAre("null"));
}

class AnnotateToxicity : public testing::Test {
 protected:
  AnnotateCounts annotate(const std::string& text, const std::string& scorer,
                          const RunOptions& options = {}) {
    return annotate_toxicity(folder_.write("in", text), out_, options,
                             {.scorer = scorer, .timeout = std::chrono::seconds(20)});
  }

  const TemporaryDirectory folder_;
  const std::filesystem::path out_ = folder_.path() / "out";
};

TEST_F(AnnotateToxicity, AddsScoresInOrder) {
  std::string text;
  for (int i = 0; i < 20000; ++i) {
    text += fmt::format("{{\"id\": {}, \"text\": \"{} {}\", \"x\": 1.50}}\n", i,
                        std::string(40, 'y'), i % 10);
  }
  const AnnotateCounts counts = annotate(text, kByDigit, {.threads = 4});
  EXPECT_EQ(counts.lines.written, 20000);
  EXPECT_EQ(counts.unscored, 0);
  const std::vector<nlohmann::json> lines = lines_of(out_);
  ASSERT_EQ(lines.size(), 20000u);
  for (int i = 0; i < 20000; ++i) {
    ASSERT_EQ(lines[static_cast<size_t>(i)].at("id"), i);
    ASSERT_NEAR(lines[static_cast<size_t>(i)].at("score").at("toxicity"), i % 10 / 10.0, 1e-12);
  }
  EXPECT_THAT(read_text(out_), HasSubstr("\"x\": 1.50, \"score\": {\"toxicity\": 0.0}}\n"));
}

TEST_F(AnnotateToxicity, CleansWhatTheScorerSees) {
  // Answers with the number of bytes of the text.
  const std::string by_length =
      "export LC_ALL=C; while IFS= read -r line; do id=${line#*: }; text=${line#*text?: ?}; "
      "text=${text%??}; printf '{\"id\": %s, \"score\": {\"toxicity\": %s}}\\n' ${id%%,*} "
      "${#text}; done";
  std::string wide;  // of three bytes each: the cut lies inside the last one
  for (int i = 0; i < 7000; ++i) wide += "\xE2\x82\xAC";
  const AnnotateCounts counts = annotate(
      "{\"text\": \"ab<|endoftext|>\"}\n{\"text\": \" <|endoftext|>\\n\"}\n{\"text\": 1}\n[]\n"
      "{\"text\": \"" +
          wide + "\"}\n",
      by_length);
  EXPECT_EQ(counts.lines.lines, 5);
  EXPECT_EQ(counts.lines.written, 3);
  EXPECT_EQ(counts.lines.bad, 2);
  EXPECT_EQ(counts.blank, 1);
  const std::vector<nlohmann::json> lines = lines_of(out_);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].at("score").at("toxicity"), 2);
  EXPECT_TRUE(lines[1].at("score").is_null());
  EXPECT_EQ(lines[2].at("score").at("toxicity"), 20478);
}

TEST_F(AnnotateToxicity, WritesNothingIfTheScorerNeverWorks) {
  EXPECT_THAT(message_of([&] { annotate("{\"text\": \"1\"}\n", "no_such_scorer_here"); }),
              AllOf(HasSubstr("no_such_scorer_here"), HasSubstr("exit code 127"),
                    HasSubstr("it scored no text")));
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(AnnotateToxicity, CountsTextsWithoutAScore) {
  const AnnotateCounts counts =
      annotate("{\"text\": \"1\"}\n{\"text\": \"2\"}\n", fmt::format("head -n 1 | {}", kByDigit));
  EXPECT_EQ(counts.unscored, 1);
  EXPECT_THAT(counts.problem, HasSubstr("before it had answered"));
  EXPECT_TRUE(lines_of(out_).at(1).at("score").is_null());
}

std::string scored(int id, const std::string& toxicity) {
  return fmt::format("{{\"id\": {}, \"score\": {{\"toxicity\": {}, \"threat\": 0.5}}}}\n", id,
                     toxicity);
}

TEST(KeepLeastToxic, KeepsHalfOfAllLines) {
  const TemporaryDirectory folder;
  // Seven lines, one bad and one without a score: three are kept.
  const auto input = folder.write("in", scored(0, "0.9") + scored(1, "0.2") + "rubbish\n" +
                                            "{\"id\": 2, \"score\": null}\n" + scored(3, "0.6") +
                                            scored(4, "0.1") + scored(5, "0.2"));
  const auto kept_ids = [&](double fraction, uint32_t seed) {
    const LeastToxic result =
        keep_least_toxic(input, folder.path() / "out", fraction, seed, {.threads = 2});
    EXPECT_EQ(result.lines.lines, 7);
    EXPECT_EQ(result.lines.bad, 1);
    EXPECT_EQ(result.scored.texts, 5);
    EXPECT_NEAR(result.scored.mean, 0.4, 1e-12);
    EXPECT_NEAR(result.scored.toxic_share, 0.4, 1e-12);
    std::vector<int> ids;
    for (const nlohmann::json& line : lines_of(folder.path() / "out")) ids.push_back(line.at("id"));
    EXPECT_EQ(result.lines.written, std::ssize(ids));
    return ids;
  };
  EXPECT_THAT(kept_ids(0.5, 1), testing::UnorderedElementsAre(1, 4, 5));
  EXPECT_EQ(kept_ids(0.5, 1), kept_ids(0.5, 1));
  EXPECT_THAT(kept_ids(0.3, 1), testing::UnorderedElementsAre(4, 1));  // of equal ones the first
  EXPECT_EQ(kept_ids(1, 1).size(), 5u);
  std::set<std::vector<int>> orders;
  for (uint32_t seed = 0; seed < 20; ++seed) orders.insert(kept_ids(0.5, seed));
  EXPECT_GT(orders.size(), 3u);
  EXPECT_THAT(message_of([&] { kept_ids(0, 1); }), HasSubstr("must lie above 0"));
}

TEST(MeasureToxicity, IsTheHandComputedOne) {
  const TemporaryDirectory folder;
  // Three prompts of two continuations: maxima 0.8, 0.3 and -1.
  const std::string text = scored(0, "0.2") + scored(1, "0.8") + scored(2, "0.3") +
                           scored(3, "0.1") + "{\"score\": null}\n{\"score\": null}\n";
  const auto input = folder.write("in", text);
  const auto prompts = folder.write(
      "prompts",
      "{\"prompt\": {\"text\": \"a\", \"toxicity\": 0.51}}\n{\"prompt\": {\"text\": \"b\", "
      "\"toxicity\": 0.5}}\n{\"prompt\": {\"text\": \"c\"}}\n");
  const ToxicityReport report = measure_toxicity(input, prompts, 2, {});
  EXPECT_EQ(report.lines, 6);
  EXPECT_EQ(report.unscored, 2);
  EXPECT_EQ(report.all.prompts, 3);
  EXPECT_NEAR(report.all.expected_maximum, 0.1 / 3, 1e-12);
  EXPECT_NEAR(report.all.deviation, std::sqrt((0.64 + 0.09 + 1) / 3 - 0.01 / 9), 1e-12);
  EXPECT_NEAR(report.all.probability, 1.0 / 3, 1e-12);
  ASSERT_TRUE(report.toxic && report.nontoxic);
  EXPECT_EQ(report.toxic->prompts, 1);
  EXPECT_NEAR(report.toxic->expected_maximum, 0.8, 1e-12);
  EXPECT_EQ(report.nontoxic->prompts, 1);
  EXPECT_NEAR(report.nontoxic->expected_maximum, 0.3, 1e-12);
  EXPECT_EQ(report.nontoxic->probability, 0);
  EXPECT_NEAR(report.means.at("toxicity"), 0.35, 1e-12);
  EXPECT_NEAR(report.means.at("threat"), 0.5, 1e-12);

  EXPECT_FALSE(measure_toxicity(input, "", 3, {}).toxic);
  EXPECT_THAT(message_of([&] { measure_toxicity(input, "", 4, {}); }),
              HasSubstr("6 lines are not a multiple of the 4"));
  EXPECT_THAT(message_of([&] { measure_toxicity(input, prompts, 3, {}); }),
              HasSubstr("3 prompts, but"));
  EXPECT_THAT(message_of([&] { measure_toxicity(prompts, "", 1, {}); }),
              HasSubstr("no \"score\"; annotate the file first"));
}

TEST(WordScorer, MultipliesWeights) {
  const TemporaryDirectory folder;
  const WordScorer scorer(
      folder.write("words", "# weights\nbad\t0.5\n\nAwful\t0.2\nbad\t0.1\tprofanity\n"));
  const auto score = [&](const std::string& text) {
    return nlohmann::json::parse(scorer.score(text));
  };
  EXPECT_EQ(score("good, badly").at("toxicity"), 0);
  EXPECT_NEAR(score("Bad: AWFUL; bad!").at("toxicity"), 1 - 0.5 * 0.5 * 0.8, 1e-12);
  EXPECT_NEAR(score("Bad: AWFUL; bad!").at("profanity"), 1 - 0.9 * 0.9, 1e-12);
  EXPECT_EQ(scorer.answer("{\"id\": 3, \"text\": \"\"}"),
            "{\"id\": 3, \"score\": {\"toxicity\":0.0,\"profanity\":0.0}}");
  EXPECT_THAT(message_of([&] { scorer.answer("rubbish"); }), HasSubstr("rubbish"));
  const auto refusal = [&](const std::string& line) {
    return message_of([&] { WordScorer(folder.write("words", "fine\t1\n" + line)); });
  };
  EXPECT_THAT(refusal("bad 0.5"), AllOf(HasSubstr("words:2: the line has 1 columns")));
  EXPECT_THAT(refusal("bad\t1.5"), HasSubstr("the weight 1.5 is no number in 0..1"));
  EXPECT_THAT(refusal("very bad\t1"), HasSubstr("very bad is not one word"));
}

}  // namespace
}  // namespace megatron::corpus
