#include "megatron/data/sentence_splitter.h"

#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_data.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Sentences = std::vector<std::string>;

Sentences split(const SentenceRules& rules, std::string_view text, bool keep_newlines = false) {
  SentenceSplitter splitter(rules, {.keep_newlines = keep_newlines});
  std::vector<std::string_view> found;
  splitter.split(text, found);
  return {found.begin(), found.end()};
}

Sentences english(std::string_view text) { return split(english_sentence_rules(), text); }

// The rules of the vectors that NLTK was asked for.
SentenceRules small_rules() {
  SentenceRules rules;
  rules.abbreviations = {"dr", "e.g"};
  rules.seen["the"] = 50;
  return rules;
}

TEST(SentenceSplitter, SplitsAsNltkDoes) {
  const SentenceRules rules = small_rules();
  EXPECT_THAT(split(rules, "Hello world.  How are you?\nFine."),
              ElementsAre("Hello world.", "How are you?", "Fine."));
  EXPECT_THAT(split(rules, "Dr. Smith left. The end."), ElementsAre("Dr. Smith left.", "The end."));
  EXPECT_THAT(split(rules, "(One.) Two!\n\nThree"), ElementsAre("(One.)", "Two!", "Three"));
  EXPECT_THAT(split(rules, "e.g. The cat"), ElementsAre("e.g.", "The cat"));
  EXPECT_THAT(split(rules, "Wait... what? Yes."), ElementsAre("Wait... what?", "Yes."));
  EXPECT_THAT(split(rules, " Lead. tail  "), ElementsAre(" Lead.", "tail"));
  EXPECT_THAT(split(rules, "Stop!!! Now"), ElementsAre("Stop!!!", "Now"));
  EXPECT_THAT(split(rules, "\xC3\x89t\xC3\xA9.\xC2\xA0\xE2\x80\x83Hiver."),
              ElementsAre("\xC3\x89t\xC3\xA9.", "Hiver."));
}

TEST(SentenceSplitter, KeepsWhiteSpaceBehindSentences) {
  const SentenceRules rules = small_rules();
  EXPECT_THAT(split(rules, "Hello world.  How are you?\nFine.", true),
              ElementsAre("Hello world.  ", "How are you?\n", "Fine."));
  EXPECT_THAT(split(rules, "Pi is 3.14. True!! ", true), ElementsAre("Pi is 3.14. ", "True!", "!"));
}

TEST(SentenceSplitter, TextsWithoutBordersStayWhole) {
  EXPECT_THAT(english(""), IsEmpty());
  EXPECT_THAT(english("  \n"), IsEmpty());
  EXPECT_THAT(english("no mark"), ElementsAre("no mark"));
  EXPECT_THAT(english("..."), ElementsAre("..."));
  EXPECT_THAT(english("?"), ElementsAre("?"));
}

TEST(SentenceSplitter, EnglishKnowsAbbreviationsInitialsAndNumbers) {
  EXPECT_THAT(english("Mr. J. R. Fox met Gov. Smith in Washington, D.C. They spoke at 5 p.m. on "
                      "Nov. 3. It rained."),
              ElementsAre("Mr. J. R. Fox met Gov. Smith in Washington, D.C.",
                          "They spoke at 5 p.m. on Nov. 3.", "It rained."));
  EXPECT_THAT(english("See No. 5, pp. 3-7. Did he say no? No. He did not."),
              ElementsAre("See No. 5, pp. 3-7.", "Did he say no?", "No.", "He did not."));
  EXPECT_THAT(english("\"Why?\" she asked. (Nobody knew.) \"Go.\" They went."),
              ElementsAre("\"Why?\"", "she asked.", "(Nobody knew.)", "\"Go.\"", "They went."));
}

TEST(SentenceSplitter, CutsLongTextsIntoChunks) {
  // The border falls behind the first 1,000,000 code points, two bytes each, of a word.
  std::string text;
  for (int i = 0; i < 1'000'003; ++i) text += "\xC3\xA9";
  const Sentences sentences = english(text);
  ASSERT_EQ(sentences.size(), 2u);
  EXPECT_EQ(sentences[0].size(), 2'000'000u);
  EXPECT_EQ(sentences[1].size(), 6u);
}

// Borders within a text as the bytes before them.
std::set<size_t> borders(std::string_view text) {
  SentenceSplitter splitter(english_sentence_rules(), {});
  std::vector<std::string_view> sentences;
  splitter.split(text, sentences);
  std::set<size_t> ends;
  for (const std::string_view s : sentences) {
    ends.insert(static_cast<size_t>(s.data() + s.size() - text.data()));
  }
  return ends;
}

TEST(SentenceSplitter, EnglishFindsTheBordersOfNltk) {
  MG_NEEDS_SHARED("data/loose-json/wiki2.valid.jsonl");
  std::map<std::string, std::vector<std::string>> files;
  std::ifstream golden(source_path("tests/golden/sentences/english.jsonl"));
  double of_nltk = 0;
  double own = 0;
  double common = 0;
  for (std::string line; std::getline(golden, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    std::vector<std::string>& lines = files[row["file"]];
    if (lines.empty()) {
      std::ifstream file(shared_data("data/" + row["file"].get<std::string>()));
      for (std::string text; std::getline(file, text);) lines.push_back(text);
    }
    const size_t index = row["line"].get<size_t>() - 1;
    std::string text = nlohmann::json::parse(lines.at(index))["text"];
    std::erase(text, '\0');
    const std::set<size_t> found = borders(text);
    own += static_cast<double>(found.size());
    size_t end = 0;
    for (const size_t length : row["lengths"]) {
      end += length;
      ++of_nltk;
      common += found.contains(end) ? 1 : 0;
    }
  }
  ASSERT_GT(of_nltk, 8000);
  EXPECT_GE(common / of_nltk, 0.99);
  EXPECT_GE(common / own, 0.995);
}

class SentenceRulesTest : public testing::Test {
 protected:
  // A model of NLTK for a language, in which "bzw." is an abbreviation.
  void write_model(const std::string& language, const std::string& seen = "das\t32\n") const {
    const std::filesystem::path folder = directory_.path() / "tokenizers" / "punkt_tab" / language;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "abbrev_types.txt") << "bzw\nz.b\n";
    std::ofstream(folder / "sent_starters.txt") << "der\n";
    std::ofstream(folder / "collocations.tab") << "##number##\tmai\n";
    std::ofstream(folder / "ortho_context.tab") << seen;
  }
  TemporaryDirectory directory_;
};

TEST_F(SentenceRulesTest, OtherLanguagesComeFromFilesOfNltk) {
  write_model("german");
  const SentenceRules rules = sentence_rules("german", {"/nowhere", directory_.path()});
  EXPECT_THAT(split(rules, "Am 1. Mai kam er bzw. sie. Das war z.B. Das Ende. Gut so."),
              ElementsAre("Am 1. Mai kam er bzw. sie.", "Das war z.B.", "Das Ende.", "Gut so."));
}

TEST_F(SentenceRulesTest, EnglishNeedsNoFiles) {
  EXPECT_TRUE(sentence_rules("english", {}).abbreviations.contains("mr"));
  write_model("english");
  EXPECT_FALSE(sentence_rules("english", {directory_.path()}).abbreviations.contains("mr"));
}

TEST_F(SentenceRulesTest, NamesWhatIsMissingOrBroken) {
  EXPECT_THAT(message_of([&] { sentence_rules("german", {directory_.path()}); }),
              AllOf(HasSubstr("--lang german has no built-in rules"), HasSubstr("NLTK_DATA")));
  EXPECT_THAT(message_of([&] { sentence_rules("../german", {}); }),
              HasSubstr("\"../german\" is not a language"));
  write_model("dutch", "das 32\n");
  EXPECT_THAT(message_of([&] { sentence_rules("dutch", {directory_.path()}); }),
              HasSubstr("ortho_context.tab:1: the line needs two columns"));
  write_model("dutch", "das\tviel\n");
  EXPECT_THAT(message_of([&] { sentence_rules("dutch", {directory_.path()}); }),
              HasSubstr("\"viel\" behind the word \"das\" is not a whole number"));
}

}  // namespace
}  // namespace megatron
