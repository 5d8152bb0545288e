#include "megatron/tokenizers/bert_tokenizer.h"

#include <gmock/gmock.h>

#include "megatron/core/error.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/tokenizers/json_lines.h"

namespace megatron {
namespace {

using Ids = std::vector<int32_t>;
using testing::HasSubstr;

const std::string kWords =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\nhello\n,\nworld\n!\nthe\n\xE4\xB8\xAD\n"
    "\xE5\x9B\xBD\ncafe\n##s\n[\n]\nmask\n'\ns\na\n";

BertTokenizer tokenizer_of(const TemporaryDirectory& files, bool lower_case, int64_t extra_ids = 2,
                           const std::string& words = kWords) {
  return {files.write("vocab.txt", words),
          {.lower_case = lower_case, .vocab_extra_ids = extra_ids}};
}

struct Case {
  std::string text;
  Ids lower;
  Ids cased;
};

const std::vector<Case> kCases = {
    {"UNAFFABLE unaffable", {5, 6, 7, 5, 6, 7}, {1, 5, 6, 7}},
    {"Hello, world!", {8, 9, 10, 11}, {1, 9, 10, 11}},
    {"hello\u00AD world\u200B!", {8, 10, 11}, {8, 10, 11}},
    {"\u4E2D\u56FD", {13, 14}, {13, 14}},
    {"Caf\u00E9 caf\u00E9s", {15, 15, 16}, {1, 1}},
    {"[MASK]", {17, 19, 18}, {17, 1, 18}},
    {"a\u2028a\u0085a\u001Ca\u3000a", {22, 1, 22}, {22, 1, 22}},
    {"unaffablex", {1}, {1}},
    {std::string(201, 'a'), {1}, {1}},
    {"\uFFFDhello" + std::string(1, '\0'), {8}, {8}},
    {"", {}, {}},
    {" \t\r\n\u00A0", {}, {}},
    {"hello\vworld", {1}, {1}},  // a vertical tab is removed
    {"a\u4E2Da", {22, 13, 22}, {22, 13, 22}},
    {"a,\u00E9,a", {22, 9, 1, 9, 22}, {22, 9, 1, 9, 22}},
    {"a\u037Ea", {22, 1, 22}, {22, 1, 22}},  // its canonical form is a semicolon
};

TEST(BertTokenizer, KnownIds) {
  const TemporaryDirectory files;
  const BertTokenizer lower = tokenizer_of(files, true);
  const BertTokenizer cased = tokenizer_of(files, false);
  EXPECT_EQ(lower.vocab_size(), 27);
  for (const Case& c : kCases) {
    EXPECT_EQ(lower.encode(c.text), c.lower) << c.text;
    EXPECT_EQ(cased.encode(c.text), c.cased) << c.text;
  }
  EXPECT_EQ(lower.decode(lower.encode("Hello, world! unaffable the 's")),
            "hello, world! unaffable the's");
}

TEST(BertTokenizer, AnEncoderWithAWarmCacheGivesTheSameIds) {
  const TemporaryDirectory files;
  const BertTokenizer tokenizer = tokenizer_of(files, true);
  const std::unique_ptr<Encoder> encoder = tokenizer.make_encoder();
  for (int round = 0; round < 2; ++round) {
    for (const Case& c : kCases) {
      Ids ids = {7};
      encoder->append(c.text, ids);
      Ids want = {7};
      want.insert(want.end(), c.lower.begin(), c.lower.end());
      EXPECT_EQ(ids, want) << c.text;
    }
  }
}

TEST(BertTokenizer, LowerCaseKnowsTheFinalSigmaAndTheDottedI) {
  const TemporaryDirectory files;
  // Final sigma, sigma, i.
  const BertTokenizer tokenizer = tokenizer_of(
      files, true, 0,
      "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\u03C2\n\u03C3\n\u03B1\n##\u03C2\n##\u03C3\n"
      "##\u03B1\n.\ni\n");
  EXPECT_EQ(tokenizer.encode("\u0391\u03A3"), Ids({7, 8}));
  EXPECT_EQ(tokenizer.encode("\u0391\u03A3\u0391"), Ids({7, 9, 10}));
  EXPECT_EQ(tokenizer.encode("\u0391\u03A3."), Ids({7, 8, 11}));
  // The point is no end of the word, as a letter follows.
  EXPECT_EQ(tokenizer.encode("\u0391\u03A3.\u0391"), Ids({7, 9, 11, 7}));
  EXPECT_EQ(tokenizer.encode("\u03A3"), Ids({6}));
  EXPECT_EQ(tokenizer.encode("\u0130"), Ids({12}));
}

TEST(BertTokenizer, SpecialTokensFollowTheVocabularyUnlessItHasThem) {
  const TemporaryDirectory files;
  const BertTokenizer tokenizer = tokenizer_of(files, true);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kPad), 0);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kCls), 2);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kSep), 3);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kMask), 4);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kBos), 23);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kEos), 24);
  EXPECT_EQ(tokenizer.eod(), 24);
  EXPECT_EQ(tokenizer.sentinel_ids(), Ids({25, 26}));
  EXPECT_EQ(tokenizer.piece(26), "<extra_id_1>");
  EXPECT_EQ(tokenizer.piece(6), "##aff");
  EXPECT_EQ(tokenizer.id_of("##aff"), 6);
  EXPECT_EQ(tokenizer.id_of("aff"), std::nullopt);
  EXPECT_EQ(tokenizer_of(files, true, 0, kWords + "[EOS]\n").required_id(SpecialToken::kEos), 23);
}

TEST(BertTokenizer, LinesAreStrippedAndTheLastOfEqualOnesCounts) {
  const TemporaryDirectory files;
  const BertTokenizer tokenizer =
      tokenizer_of(files, true, 0, "[PAD]\r\n [UNK] \r\n[CLS]\r\n[SEP]\r\n[MASK]\r\nx\r\nx\r\ny");
  EXPECT_EQ(tokenizer.encode("x y"), Ids({6, 7}));
  // Seven distinct lines: the added token takes an id that is in use, as in Megatron-LM.
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kBos), 7);
  EXPECT_EQ(tokenizer.vocab_size(), 9);
}

TEST(BertTokenizer, DescribesItselfAsMegatronDoes) {
  const TemporaryDirectory files;
  const TokenizerDescription description = tokenizer_of(files, true, 0).description();
  EXPECT_EQ(description.class_name, "_BertWordPieceTokenizer");
  EXPECT_EQ(description.options, (std::vector<std::pair<std::string, std::string>>{
                                     {"lower_case", "True"}, {"vocab_extra_ids", "0"}}));
}

TEST(BertTokenizer, ErrorsNameTheFileAndTheRemedy) {
  const TemporaryDirectory files;
  EXPECT_THAT(message_of([&] { tokenizer_of(files, true, 0, "[PAD]\n[UNK]\n[CLS]\n[SEP]\nx\n"); }),
              HasSubstr("vocab.txt: [MASK] is missing; a BERT vocabulary has one piece on each"));
  EXPECT_THAT(message_of([&] { tokenizer_of(files, true, 0, "{\"a\": 0}"); }),
              HasSubstr("[PAD], [UNK], [CLS], [SEP], [MASK] are missing"));
  const BertTokenizer tokenizer = tokenizer_of(files, true, 0);
  EXPECT_THAT(message_of([&] { (void)tokenizer.decode(Ids{25}); }),
              HasSubstr("no piece has id 25; ids go from 0 to 24"));
  EXPECT_THAT(
      message_of([&] { (void)tokenizer.required_sentinel_ids(100); }),
      HasSubstr("has 0 sentinel tokens <extra_id_0>, <extra_id_1>, ..., and 100 are needed; "
                "give --vocab-extra-ids 100"));
}

TEST(BertTokenizer, WarnsOfACasedVocabulary) {
  const TemporaryDirectory files;
  const auto warning_of = [&](bool lower_case, const std::string& words) {
    CapturedStderr captured_err;
    tokenizer_of(files, lower_case, 0, words);
    return captured_err.text();
  };
  const std::string cased = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nThe\n##s\n";
  EXPECT_THAT(warning_of(true, cased),
              HasSubstr("1 of 7 pieces have capital letters, which BertWordPieceLowerCase never "
                        "produces; use --tokenizer-type BertWordPieceCase"));
  EXPECT_EQ(warning_of(false, cased), "");
  EXPECT_EQ(warning_of(true, kWords), "");
}

TEST(BertTokenizer, WarnsOfAnUncasedVocabulary) {
  const TemporaryDirectory files;
  std::string uncased = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int i = 0; i < 1000; ++i) uncased += "word" + std::to_string(i) + "\n";
  const auto warning_of = [&](bool lower_case, const std::string& words) {
    CapturedStderr captured_err;
    tokenizer_of(files, lower_case, 0, words);
    return captured_err.text();
  };
  EXPECT_THAT(warning_of(false, uncased),
              HasSubstr("none of 1005 pieces has a capital letter, so BertWordPieceCase maps every "
                        "word with one to [UNK]; use --tokenizer-type BertWordPieceLowerCase"));
  EXPECT_EQ(warning_of(false, uncased + "Word\n"), "");
  EXPECT_EQ(warning_of(true, uncased), "");
}

struct RealFile {
  bool lower_case;
  std::string vocab_file;
  std::string column;  // of nasty.ids.jsonl
};

class RealBert : public testing::TestWithParam<RealFile> {
 protected:
  void SetUp() override {
    MG_NEEDS_SHARED(GetParam().vocab_file);
    tokenizer_ = std::make_unique<BertTokenizer>(
        shared_data(GetParam().vocab_file).string(),
        BertTokenizer::Options{.lower_case = GetParam().lower_case});
  }
  std::unique_ptr<BertTokenizer> tokenizer_;
};

TEST_P(RealBert, NastyIds) {
  const std::vector<nlohmann::json> texts = read_json_lines(shared_data("data/nasty/nasty.jsonl"));
  const std::vector<nlohmann::json> ids =
      read_json_lines(shared_data("data/nasty/nasty.ids.jsonl"));
  ASSERT_EQ(texts.size(), 200u);
  ASSERT_EQ(ids.size(), 200u);
  const std::unique_ptr<Encoder> encoder = tokenizer_->make_encoder();
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i]["text"];
    const Ids want = ids[i][GetParam().column].get<Ids>();
    EXPECT_EQ(tokenizer_->encode(text), want) << i;
    Ids warm;
    encoder->append(text, warm);
    EXPECT_EQ(warm, want) << i;
  }
}

TEST(RealBertUncased, GoldenIds) {
  MG_NEEDS_SHARED("data/bert/bert-base-uncased-vocab.txt");
  const BertTokenizer tokenizer(shared_data("data/bert/bert-base-uncased-vocab.txt").string(), {});
  for (const nlohmann::json& line :
       read_json_lines(shared_data("data/golden/bert-uncased.jsonl"))) {
    const std::string text = line["text"];
    EXPECT_EQ(tokenizer.encode(text), line["ids"].get<Ids>()) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files, RealBert,
    testing::Values(RealFile{true, "data/bert/bert-base-uncased-vocab.txt", "bert_uncased"},
                    RealFile{false, "data/bert/bert-base-cased-vocab.txt", "bert_cased"}));

}  // namespace
}  // namespace megatron
