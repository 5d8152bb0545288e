#include "megatron/tasks/classification_data.h"

#include <gmock/gmock.h>

#include <fstream>
#include <numeric>

#include "megatron/core/error.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using Kind = ClassificationTaskKind;

TEST(CleanTextTest, JoinsWhiteSpaceAndStops) {
  EXPECT_EQ(clean_text("a\n\tb  c"), "a b c");
  EXPECT_EQ(clean_text("One . Two . . Three"), "One. Two.. Three");
  EXPECT_EQ(clean_text("a . . . b"), "a. .. b") << "the second blank of a match belongs to it";
  EXPECT_EQ(clean_text("a\xC2\xA0z"), "a z");
  EXPECT_EQ(clean_text(""), "");
}

constexpr PairIds kIds = {.cls = 90, .sep = 91, .pad = 0};

std::vector<int32_t> numbers(int32_t first, int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

TEST(EncodedPairTest, PadsBehindTheSecondText) {
  const EncodedPair pair = encoded_pair({1, 2}, {3}, 8, kIds);
  EXPECT_THAT(pair.tokens, ElementsAre(90, 1, 2, 91, 3, 91, 0, 0));
  EXPECT_THAT(pair.types, ElementsAre(0, 0, 0, 0, 1, 1, 0, 0));
  EXPECT_EQ(pair.length, 6);
}

TEST(EncodedPairTest, CutsAtTheEnd) {
  // 7 ids before the last [SEP] fill 8 places; an eighth is cut.
  const EncodedPair full = encoded_pair({1, 2}, {3, 4, 5}, 8, kIds);
  EXPECT_THAT(full.tokens, ElementsAre(90, 1, 2, 91, 3, 4, 5, 91));
  const EncodedPair long_b = encoded_pair({1, 2}, numbers(3, 9), 8, kIds);
  EXPECT_EQ(long_b.tokens, full.tokens);
  EXPECT_EQ(long_b.types, full.types);
  const EncodedPair long_a = encoded_pair(numbers(1, 20), {50}, 8, kIds);
  EXPECT_THAT(long_a.tokens, ElementsAre(90, 1, 2, 3, 4, 5, 6, 91));
  EXPECT_THAT(long_a.types, ElementsAre(0, 0, 0, 0, 0, 0, 0, 1));
  EXPECT_EQ(long_a.length, 8);
}

class ClassificationFileTest : public testing::Test {
 protected:
  std::filesystem::path written(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = directory_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path;
  }
  std::string error_of(Kind kind, const std::string& name, const std::string& text) const {
    const std::filesystem::path path = written(name, text);
    return message_of<Error>([&] { classification_texts(kind, path); });
  }
  std::filesystem::path folder() const { return directory_.path(); }

 private:
  const TemporaryDirectory directory_;
};

const std::string kMnliHeader = "index\tp\tq\tg\tb1\tb2\ts1\ts2\tsentence1\tsentence2";
const std::string kMnliRow = "\t.\t.\t.\t.\t.\t.\t.\t";

TEST_F(ClassificationFileTest, ReadsMnli) {
  const auto texts = classification_texts(
      Kind::kMnli, written("train.tsv", kMnliHeader + "\tlabel1\tgold_label\n" + "7" + kMnliRow +
                                            "A  man . Sleeps\tA man\tneutral\tentailment\n" + "8" +
                                            kMnliRow + "x\ty\tneutral\tcontradiction\n"));
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[0].uid, 7);
  EXPECT_EQ(texts[0].label, 1);
  EXPECT_THAT(texts[0].pairs, ElementsAre(Pair("A man. Sleeps", "A man")));
  EXPECT_EQ(texts[1].label, 0);
}

TEST_F(ClassificationFileTest, KnowsATestFileByItsHeader) {
  const auto mnli = classification_texts(
      Kind::kMnli, written("test.tsv", kMnliHeader + "\n3" + kMnliRow + "a\tb\n"));
  EXPECT_EQ(mnli.at(0).label, 0);
  EXPECT_THAT(mnli[0].pairs, ElementsAre(Pair("a", "b")));
  const auto qqp = classification_texts(
      Kind::kQqp, written("qqp.tsv", "id\tquestion1\tquestion2\n5\thow?\twhy?\n"));
  EXPECT_EQ(qqp.at(0).uid, 5);
  EXPECT_THAT(qqp[0].pairs, ElementsAre(Pair("how?", "why?")));
}

TEST_F(ClassificationFileTest, SkipsLinesOfQqpThatLackAField) {
  CapturedStderr captured_err;
  const auto texts = classification_texts(
      Kind::kQqp, written("train.tsv",
                          "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta\tb\t1\n"
                          "2\t2\t3\tno second\t0\n4\t5\t6\tc\td\t0\n"));
  EXPECT_THAT(captured_err.text(), HasSubstr("1 lines"));
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[0].label, 1);
  EXPECT_EQ(texts[1].uid, 4);
}

TEST_F(ClassificationFileTest, ReadsRace) {
  written("RACE/train/middle/2.txt",
          R"({"article": "Late .", "questions": ["q"], "options": [["a","b","c","d"]],)"
          R"( "answers": ["A"]})");
  written("RACE/train/middle/1.txt",
          R"({"article": "A hen\nis lost .", "questions": ["Who is _ ? _ !", "Where"],)"
          R"( "options": [["x","y","z","w"],["a","b","c","d"]], "answers": ["C","D"]})");
  const auto texts = classification_texts(Kind::kRace, folder() / "RACE/train/middle");
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_EQ(texts[0].label, 2);
  EXPECT_THAT(texts[0].pairs[1], Pair("Who is y ? y !", "A hen is lost ."));
  EXPECT_THAT(texts[1].pairs[3], Pair("Where d", "A hen is lost ."));
  EXPECT_EQ(texts[2].uid, 2) << "files are read in the order of their names";
}

TEST_F(ClassificationFileTest, NamesTheLineThatIsWrong) {
  EXPECT_THAT(error_of(Kind::kMnli, "m.tsv", kMnliHeader + "\tgold_label\n1\t2\n"),
              AllOf(HasSubstr("m.tsv line 2"), HasSubstr("2 fields")));
  EXPECT_THAT(
      error_of(Kind::kMnli, "m.tsv", kMnliHeader + "\tgold_label\n1" + kMnliRow + "a\tb\tmaybe\n"),
      HasSubstr("the label maybe must be contradiction, entailment or neutral"));
  EXPECT_THAT(error_of(Kind::kMnli, "m.tsv",
                       kMnliHeader + "\tgold_label\n-1" + kMnliRow + "a\tb\tneutral\n"),
              HasSubstr("the id -1"));
  EXPECT_THAT(error_of(Kind::kQqp, "q.tsv",
                       "id\ta\tb\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta\tb\tyes\n"),
              HasSubstr("the label yes must be 0 or 1"));
  written("race/1.txt", "{\"article\": \"a\"}\n");
  EXPECT_THAT(message_of<Error>([&] { classification_texts(Kind::kRace, folder() / "race"); }),
              AllOf(HasSubstr("1.txt line 1"), HasSubstr("questions")));
  EXPECT_THAT(message_of<Error>([&] { classification_texts(Kind::kRace, folder() / "none"); }),
              HasSubstr("has no files *.txt"));
}

}  // namespace
}  // namespace megatron
