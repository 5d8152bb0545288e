#include "annex/retro/tasks/answer_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TokenScores scores_of(const std::string& guess, const std::vector<std::string>& answers) {
  return token_scores(std::vector{guess}, std::vector<std::vector<std::string>>{answers});
}
double match_of(const std::string& guess, const std::vector<std::string>& answers) {
  return exact_match(std::vector{guess}, std::vector<std::vector<std::string>>{answers});
}

TEST(TokenScoresTest, CountSharedWords) {
  const TokenScores scores = scores_of("The cat, a cat sat!", {"cat sat on THE mat", "unread"});
  EXPECT_DOUBLE_EQ(scores.precision, 2.0 / 3);  // cat cat sat
  EXPECT_DOUBLE_EQ(scores.recall, 2.0 / 4);     // cat sat on mat
  EXPECT_DOUBLE_EQ(scores.f1, 4.0 / 7);
}

TEST(TokenScoresTest, PunctuationEndsAWord) {
  EXPECT_DOUBLE_EQ(scores_of("it's", {"it s"}).f1, 1);
  EXPECT_DOUBLE_EQ(scores_of("x-ray of\tan \"Apple\"", {"X ray of apple"}).f1, 1);
  EXPECT_DOUBLE_EQ(scores_of("theory", {"the ory"}).f1, 0);
  EXPECT_DOUBLE_EQ(scores_of("\xc3\x89t\xc3\xa9", {"\xc3\xa9t\xc3\xa9"}).f1, 1);  // Ete, accented
}

TEST(TokenScoresTest, EmptyAnswersDoNotCountAndEmptyGuessesAreWrong) {
  const std::vector<std::string> guesses = {"one", "two", "three", ""};
  const std::vector<std::vector<std::string>> answers = {
      {"one"}, {""}, {"no_passages_used"}, {"four"}};
  EXPECT_DOUBLE_EQ(token_scores(guesses, answers).f1, 0.5);
  EXPECT_TRUE(std::isnan(scores_of("x", {}).f1));
}

TEST(ExactMatchTest, DeletesPunctuation) {
  EXPECT_EQ(match_of("It's the U.S.", {"other", "its us"}), 1);  // any answer
  EXPECT_EQ(match_of("it s", {"its"}), 0);
  EXPECT_EQ(match_of("Answer: a  dog", {"Dog."}), 1);
  EXPECT_EQ(match_of("A: 42", {"42"}), 1);
  EXPECT_EQ(match_of("the dogs", {"dog"}), 0);
  EXPECT_EQ(exact_match(std::vector<std::string>{"a b", "c"},
                        std::vector<std::vector<std::string>>{{"b"}, {"d"}}),
            0.5);
}

TEST(AnswerFilesTest, AreRead) {
  const TemporaryDirectory directory;
  directory.write("p.txt", " one <|endoftext|>\n\nthree");
  EXPECT_THAT(read_guesses(directory.path() / "p.txt"), ElementsAre("one", "", "three"));
  directory.write("q.json",
                  R"([{"answers": ["x", "y"]}, {"answer": {"text": "z"}}, {"answer": 4},
                      {"answers": [{"text": "u"}]}, {"answers": []}])");
  EXPECT_THAT(read_answers(directory.path() / "q.json"),
              ElementsAre(ElementsAre("x", "y"), ElementsAre("z"), ElementsAre("4"),
                          ElementsAre("u"), ElementsAre()));
  directory.write("q.txt", "{\"answer\": \"x\"}\n{\"answers\": [\"y\"]}\n");
  EXPECT_THAT(read_answers(directory.path() / "q.txt"),
              ElementsAre(ElementsAre("x"), ElementsAre("y")));
  directory.write("bad.jsonl", "{\"answer\": \"x\"}\n{\"question\": \"?\"}\n");
  EXPECT_THAT(message_of([&] { read_answers(directory.path() / "bad.jsonl"); }),
              HasSubstr("question 1 has no \"answers\""));
  directory.write("no.json", "[1,");
  EXPECT_THAT(message_of([&] { read_answers(directory.path() / "no.json"); }),
              HasSubstr("is not JSON"));
}

}  // namespace
}  // namespace megatron
