#include "annex/corpus/filter_ngrams.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/tokenizers/unicode_text.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::corpus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// "<word>0 <word>1 ... ".
std::string numbered(const std::string& word, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i > 0 ? " " : "") + word + std::to_string(i);
  return text;
}

std::vector<std::string> pieces(const NgramDictionary& dictionary, const FilterNgramsConfig& config,
                                const std::string& text) {
  std::vector<std::string> found;
  for (const std::u32string& piece : pieces_without(dictionary, config, code_points(text))) {
    found.push_back(to_utf8(piece));
  }
  return found;
}

TEST(WordsOf, AreLettersNumbersAndUnderscoresInLowerCase) {
  const Words words = words_of(code_points("Don't \xC3\x89T\xC3\x89_2, \xE4\xBD\xA0!"));
  EXPECT_THAT(words.texts, ElementsAre("don", "t", "\xC3\xA9t\xC3\xA9_2", "\xE4\xBD\xA0"));
  EXPECT_THAT(words.begins, ElementsAre(0, 4, 6, 13));
  EXPECT_EQ(words.joined(1, 2), "t \xC3\xA9t\xC3\xA9_2");
  EXPECT_EQ(words.joined_length(1, 2), 7);
  EXPECT_THAT(words_of(U" .!").texts, IsEmpty());
}

TEST(NgramDictionary, TakesAllSequencesOrAWholeShortText) {
  NgramDictionary dictionary;
  dictionary.add_text(numbered("w", 7), 8, 13);
  EXPECT_EQ(dictionary.size(), 0);
  dictionary.add_text(numbered("w", 8), 8, 13);
  EXPECT_TRUE(dictionary.contains(numbered("w", 8)));
  EXPECT_EQ(dictionary.size(), 1);
  dictionary.add_text(numbered("W", 15), 8, 13);
  EXPECT_EQ(dictionary.size(), 4);
  EXPECT_THAT(dictionary.sizes(), ElementsAre(8, 13));
  EXPECT_TRUE(dictionary.contains(numbered("w", 13)));
}

TEST(NgramDictionary, DropsFrequentSequences) {
  const TemporaryDirectory folder;
  NgramDictionary dictionary;
  dictionary.add_text("a b", 1, 3);
  dictionary.add_text("c \xC3\xA9 d", 1, 3);
  for (int i = 0; i < 2; ++i) dictionary.count("a b");
  dictionary.count("c \xC3\xA9 d");
  dictionary.save(folder.path() / "all");
  EXPECT_EQ(read_text(folder.path() / "all"),
            "{\"ngram\": \"a b\", \"count\": 2}\n{\"ngram\": \"c \xC3\xA9 d\", \"count\": 1}\n");
  EXPECT_EQ(dictionary.drop_frequent(2), 1);
  EXPECT_THAT(dictionary.sizes(), ElementsAre(3));
  NgramDictionary loaded;
  loaded.load(folder.path() / "all");
  EXPECT_EQ(loaded.size(), 2);
  EXPECT_EQ(loaded.drop_frequent(2), 1);
  for (const char* const bad :
       {"{}", "nonsense", "{\"ngram\": \"a\"}", "{\"ngram\": \"?\",\"count\":1}"}) {
    const auto file = folder.write("bad", bad);
    EXPECT_THAT(message_of<FormatError>([&] { loaded.load(file); }), HasSubstr("bad:1: expected"))
        << bad;
  }
}

class PiecesTest : public testing::Test {
 protected:
  PiecesTest() {
    config_.max_ngram_size = 4;
    config_.min_ngram_size = 2;
    config_.filter_text_char_len = 5;
    config_.remove_char_each_side = 10;
    dictionary_.add_text("one two three four", 2, 4);
    dictionary_.add_text("red blue", 2, 4);
  }
  std::vector<std::string> cut(const std::string& text) const {
    return pieces(dictionary_, config_, text);
  }

  FilterNgramsConfig config_;
  NgramDictionary dictionary_;
};

TEST_F(PiecesTest, LieBehindAndInFrontOfEndsOfSentences) {
  EXPECT_THAT(cut("Left stays! This goes away. One, two three four; 0123456789 goes. Right stays."),
              ElementsAre("Left stays!", " Right stays."));
  // The tenth character in front of the match is the mark, and the tenth behind its end.
  EXPECT_THAT(cut("Left stays?123456789one two three four0123456789!Right."),
              ElementsAre("Left stays?123456789one two three four0123456789!Right."));
  EXPECT_THAT(cut("Left stays?12345678 one two three four 123456789!Right."),
              ElementsAre("Left stays?", "Right."));
}

TEST_F(PiecesTest, OfFewCharactersVanish) {
  EXPECT_THAT(cut("Left. 0123456789 one two three four 0123456789 a. Five5"),
              ElementsAre(" Five5"));
  EXPECT_THAT(cut("Left. 0123456789 one two three four 0123456789 a.Five5"), IsEmpty());
  EXPECT_THAT(cut("one two three four"), IsEmpty());
  EXPECT_THAT(cut("short"), ElementsAre("short"));
}

TEST_F(PiecesTest, RightPiecesAreSearchedAgain) {
  EXPECT_THAT(cut("First. 0123456789 one two three four 0123456789. Second one. 0123456789 one two "
                  "three four 0123456789. Third part is the last of all."),
              ElementsAre("First.", " Second one.", " Third part is the last of all."));
}

TEST_F(PiecesTest, ShorterSequencesNeedTheWordsOfALongOne) {
  // Four words or more follow, or it is among the last four words of more than four.
  EXPECT_THAT(cut("Left stays! 0123456789 red blue a b c 0123456789. Right stays."),
              ElementsAre("Left stays!", " Right stays."));
  EXPECT_THAT(cut("Left stays! 0123456789 red blue"), ElementsAre("Left stays!"));
  EXPECT_THAT(cut("a b red blue"), ElementsAre("a b red blue"));
  EXPECT_THAT(cut("red blue"), ElementsAre("red blue"));
  EXPECT_THAT(cut("red blue b c"), IsEmpty());
}

TEST_F(PiecesTest, PlacesAreCharactersNotBytes) {
  const std::string e = "\xC3\xA9";
  EXPECT_THAT(cut("Caf" + e + " reste! 0" + e + e + e + e + e + e + e + e + " one two three four " +
                  e + "12345678. Fin" + e + "e"),
              ElementsAre("Caf" + e + " reste!", " Fin" + e + "e"));
}

class FilterNgramsTest : public testing::Test {
 protected:
  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    return folder_.write(name, content);
  }
  static std::string line(const std::string& text) {
    return nlohmann::json{{"text", text}}.dump() + "\n";
  }
  std::vector<std::pair<std::string, std::string>> written() const {
    std::vector<std::pair<std::string, std::string>> found;
    std::ifstream file(path("out"));
    for (std::string text; std::getline(file, text);) {
      const auto object = nlohmann::json::parse(text);
      found.emplace_back(object.at("split_id"), object.at("text"));
    }
    return found;
  }
  FilterNgramsConfig config() const {
    FilterNgramsConfig config;
    config.tasks = {"squad", "lambada"};
    config.task_files = {{"squad", path("squad"), ""}, {"lambada", path("lambada"), "text"}};
    config.dedup_dataset = path("data");
    config.key = "text";
    config.output = path("out");
    return config;
  }

  TemporaryDirectory folder_;
};

TEST_F(FilterNgramsTest, PlantedContaminationGivesExactPiecesAndIds) {
  const std::string question =
      "What is the name of the river that flows through Paris and Rouen, sir?";
  const std::string last_words = numbered("word", 9);
  write("squad", nlohmann::json{{"question", question}}.dump() + "\n");
  write("lambada", line(last_words));
  const std::string left = std::string(240, 'l') + ".";
  const std::string right = std::string(250, 'r') + "!";
  const std::string gap = std::string(199, 'x');
  const std::string clean = "A document without any of it.";
  write("data", line(clean) + line(left + gap + " " + question + " " + gap + "." + right) +
                    "{\"text\": \"" + left + gap + " " + last_words + " tail tail tail tail\", " +
                    "\"split_id\": \"old\"}\nbad\n" + line("Only. " + question));
  const FilterNgramsCounts counts = filter_ngrams(config(), {.threads = 3});
  EXPECT_THAT(written(), ElementsAre(std::pair("squad-lambada-0000000001-0000", clean),
                                     std::pair("squad-lambada-0000000002-0000", left),
                                     std::pair("squad-lambada-0000000002-0001", right),
                                     std::pair("old-squad-lambada-0000000003-0000", left)));
  EXPECT_EQ(counts.ngrams, 3);  // 14 words make two sequences
  EXPECT_EQ(counts.frequent, 0);
  EXPECT_EQ(counts.documents, 4);
  EXPECT_EQ(counts.bad_lines, 1);
  EXPECT_EQ(counts.written, 4);
  EXPECT_EQ(counts.split, 1);
  EXPECT_EQ(counts.trimmed, 1);
  EXPECT_EQ(counts.ignored, 1);
  EXPECT_EQ(counts.over_threshold, 0);
}

TEST_F(FilterNgramsTest, FrequentSequencesAreNoContamination) {
  write("squad", "");
  write("lambada", line(numbered("word", 13)) + line(numbered("rare", 13)));
  const std::string common = numbered("word", 13);
  write("data", line(common + ", " + common) + line(common) + line(numbered("rare", 13)));
  FilterNgramsConfig often = config();
  often.key_threshold = 3;
  often.save_dictionary = path("dictionary");
  FilterNgramsCounts counts = filter_ngrams(often, {.threads = 2});
  EXPECT_EQ(counts.frequent, 1);
  EXPECT_EQ(counts.written, 2);
  EXPECT_EQ(counts.ignored, 1);
  EXPECT_EQ(read_text(path("dictionary")),
            "{\"ngram\": \"" + numbered("rare", 13) + "\", \"count\": 1}\n");

  const std::string want = read_text(path("out"));
  FilterNgramsConfig loaded = config();
  loaded.task_files.clear();
  loaded.load_dictionary = path("dictionary");
  EXPECT_EQ(filter_ngrams(loaded, {}).ngrams, 1);
  EXPECT_EQ(read_text(path("out")), want);

  often.key_threshold = 4;  // three occurrences: contamination after all
  EXPECT_EQ(filter_ngrams(often, {}).written, 0);
}

TEST_F(FilterNgramsTest, DocumentsInTooManyPiecesAreDropped) {
  write("squad", "");
  write("lambada", line(numbered("word", 13)));
  std::string text;
  for (int i = 0; i < 3; ++i) {
    text += std::string(250, 'a') + ". " + std::string(200, 'x') + " " + numbered("word", 13) +
            " " + std::string(200, 'x') + ".";
  }
  write("data", line(text));
  FilterNgramsConfig few = config();
  few.splits_count = 3;
  EXPECT_EQ(filter_ngrams(few, {}).written, 3);
  few.splits_count = 2;
  const FilterNgramsCounts counts = filter_ngrams(few, {});
  EXPECT_EQ(counts.written, 0);
  EXPECT_EQ(counts.over_threshold, 1);
  EXPECT_EQ(counts.split, 1);
}

TEST_F(FilterNgramsTest, TasksHaveTheirOwnMembers) {
  write("squad", R"({"question": "a b c d e f g h"})");
  write("lambada", R"({"text": ["i j k l m n o p", "q r s t u v w x"]})");
  write("data", line("text"));
  EXPECT_EQ(filter_ngrams(config(), {}).ngrams, 3);
  write("squad", "{\"question\": \"q\"}\n{\"text\": \"q\"}\n");
  EXPECT_THAT(message_of<FormatError>([&] { filter_ngrams(config(), {}); }),
              AllOf(HasSubstr("squad:2: "), HasSubstr("whose \"question\" is a text")));
  EXPECT_EQ(field_of_task("coqa"), "questions");
  EXPECT_EQ(field_of_task("piqa"), "goal");
  EXPECT_EQ(field_of_task("mine"), "text");
}

TEST_F(FilterNgramsTest, ConfigsAreChecked) {
  FilterNgramsConfig wrong;
  wrong.tasks = {"lambada", "squad"};
  wrong.task_files = {{"race", "race.json", ""}};
  wrong.min_ngram_size = 14;
  wrong.key_threshold = -1;
  EXPECT_THAT(
      problems(wrong),
      ElementsAre(HasSubstr("give --lambada-path FILE"), HasSubstr("give --task-file squad=FILE"),
                  HasSubstr("race.json is the file of race, which --tasks does not name"),
                  HasSubstr("--dedup-dataset is missing"), HasSubstr("--output is missing"),
                  HasSubstr("--min-ngram-size 14 must be in [1, --max-ngram-size 13]"),
                  HasSubstr("--key-threshold -1 must not be negative")));
  EXPECT_THAT(problems(FilterNgramsConfig{}), testing::Contains(HasSubstr("--tasks is missing")));
}

}  // namespace
}  // namespace megatron::corpus
