#include "annex/corpus/clean.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "annex/corpus/english.h"
#include "megatron/core/error.h"
#include "megatron/tokenizers/gpt2_bpe_tokenizer.h"
#include "megatron/tokenizers/unicode_text.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron::corpus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const char* const kEnglish = "It was the best of times, and they knew that it would not last. ";
const char* const kGerman = "Es war die beste aller Zeiten, und in der Stadt was los: alle so an. ";

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

std::string line(const std::string& text) { return nlohmann::json{{"text", text}}.dump() + "\n"; }

bool english(std::string_view text) { return is_english(code_points(text)); }

TEST(IsEnglish, GoesByFrequentWordsAndLetters) {
  EXPECT_TRUE(english("The cat sat on the mat."));
  EXPECT_TRUE(english(repeated(kEnglish, 10)));
  EXPECT_TRUE(english("Do you like na\xC3\xAFve caf\xC3\xA9s?"));
  for (const char* const other :
       {kGerman, "Le chat est sur la table, et il ne veut pas descendre de l\xC3\xA0.",
        "El perro no quiere salir de la casa porque llueve en la calle.",
        "De kat zit op de mat en wil er niet af, of het nu regent in de stad is of niet.",
        "O gato est\xC3\xA1 no telhado e as crian\xC3\xA7"
        "as querem v\xC3\xAA-lo de perto.",
        "Il gatto era sul tetto e non voleva scendere per la pioggia.",
        "\xD0\x9A\xD0\xBE\xD1\x82 the \xD1\x81\xD0\xB8\xD0\xB4\xD0\xB8\xD1\x82 "
        "\xD0\xBD\xD0\xB0 \xD0\xBA\xD1\x80\xD1\x8B\xD1\x88\xD0\xB5",
        "\xE4\xBD\xA0\xE5\xA5\xBD", "", "12 34"}) {
    EXPECT_FALSE(english(other)) << other;
  }
  EXPECT_FALSE(english(repeated(kGerman, 9) + "and the rest"));
}

class CleanTest : public testing::Test {
 protected:
  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }

  TemporaryDirectory folder_;
};

TEST_F(CleanTest, RepairsAndDropsDocuments) {
  const std::string golden = source_path("tests/golden/megatron/data/");
  const Gpt2BpeTokenizer tokenizer(golden + "vocab.json", golden + "merges.txt");
  const std::string good = repeated(kEnglish, 20);               // 1280 characters
  const std::string short_one = repeated(kEnglish, 1);           // and few tokens
  const std::string dense = repeated("the \xE4\xBD\xA0 ", 100);  // 600 characters, many tokens
  const auto input = folder_.write("in", "{\"n\": 1, \"text\": \"caf\\u00c3\\u00a9 " + good +
                                             "\"}\n" + line(short_one) + line(dense) +
                                             line(repeated(kGerman, 20)) + "{}\nbad\n");
  const CleanCounts counts = clean_documents(input, path("out"), tokenizer, {.threads = 2});
  EXPECT_EQ(read_text(path("out")), "{\"n\": 1, \"text\": \"caf\xC3\xA9 " + good + "\"}\n");
  EXPECT_EQ(counts.lines.lines, 6);
  EXPECT_EQ(counts.lines.written, 1);
  EXPECT_EQ(counts.lines.bad, 2);
  EXPECT_EQ(counts.repaired, 1);
  EXPECT_EQ(counts.short_texts, 1);
  EXPECT_EQ(counts.not_english, 2);
}

TEST_F(CleanTest, ManyTokensMakeUpForFewCharacters) {
  const std::string golden = source_path("tests/golden/megatron/data/");
  const Gpt2BpeTokenizer tokenizer(golden + "vocab.json", golden + "merges.txt");
  std::string numbers = "the ";
  for (int i = 0; i < 60; ++i) numbers += "7 the , ";
  const auto input = folder_.write("in", line(numbers) + line("the cat"));
  ASSERT_LT(numbers.size(), 1024u);
  EXPECT_EQ(clean_documents(input, path("out"), tokenizer, {}).lines.written, 1);
}

TEST_F(CleanTest, TheFirstTaskThatAppliesIsTheOnlyOne) {
  const std::string long_text = repeated(kEnglish, 10) + "two  blanks caf\xC3\x83\xC2\xA9";
  const auto input =
      folder_.write("in.json", line("Enable JavaScript!  Now") + line(repeated(kGerman, 6)) +
                                   line(long_text) + line("the  end.\n\nNew\n line") + "bad\n");
  const std::vector<FixTask> drops = {FixTask::kGeneralCleaning, FixTask::kRemove512NonEnglish,
                                      FixTask::kRemove256Javascript};
  FixCounts counts = fix_documents(input, folder_.path(), drops, {.threads = 2});
  EXPECT_EQ(
      read_text(path("in_filtered.json")),
      "{\"text\": \"Enable JavaScript!  Now\"}\n{\"text\": \"" + repeated(kGerman, 6) + "\"}\n");
  EXPECT_EQ(read_text(path("in_cleaned.json")), "{\"text\": \"" + repeated(kEnglish, 10) +
                                                    "two blanks caf\xC3\x83\xC2\xA9\"}\n" +
                                                    "{\"text\": \"the end.\\n\\nNew line\"}\n");
  EXPECT_THAT(counts.by_task, ElementsAre(0, 1, 1, 0, 2));
  EXPECT_EQ(counts.lines.written, 2);
  EXPECT_EQ(counts.lines.bad, 1);

  counts =
      fix_documents(input, folder_.path(),
                    {FixTask::kGeneralCleaning, FixTask::kFtfyFixText, FixTask::kRemove512}, {});
  EXPECT_THAT(counts.by_task, ElementsAre(3, 0, 0, 1, 0));
  EXPECT_THAT(read_text(path("in_cleaned.json")), HasSubstr("two  blanks caf\xC3\xA9"));
}

TEST_F(CleanTest, TasksHaveNames) {
  EXPECT_EQ(fix_task_named("remove_512"), FixTask::kRemove512);
  EXPECT_EQ(fix_task_named("general_cleaning"), FixTask::kGeneralCleaning);
  EXPECT_THAT(message_of<ConfigError>([] { fix_task_named("polish"); }),
              HasSubstr("--tasks polish is not known; use remove_512, remove_256_javascript, "));
}

TEST(WithSingleBlanks, ReplacesBlanksAndLineEndsBehindWords) {
  EXPECT_EQ(with_single_blanks(U"a  b   c d"), U"a b c d");
  EXPECT_EQ(with_single_blanks(U"a\nb\n\n c.\nd\n  e"), U"a b c.\nd  e");
  EXPECT_EQ(with_single_blanks(U"\na\n"), U"\na ");
  EXPECT_EQ(with_single_blanks(U"\u00E9\n_\n1\n?\n"), U"\u00E9 _ 1 ?\n");
  EXPECT_EQ(with_single_blanks(U""), U"");
}

}  // namespace
}  // namespace megatron::corpus
