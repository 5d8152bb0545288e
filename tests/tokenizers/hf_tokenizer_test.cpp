#include "megatron/tokenizers/hf/hf_tokenizer.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <thread>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/parts.h"
#include "megatron/tokenizers/unicode_text.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_data.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"
#include "tests/tokenizers/json_lines.h"

namespace megatron::hf {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(source_path("tests/cases/tokenizers"))) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A small tokenizer.json with the ids that the library of that format gives.
class HfCases : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!kHasPcre2 && read_text(file(".json")).find("\"Regex\"") != std::string::npos) {
      GTEST_SKIP() << "needs MG_PCRE2";
    }
  }
  static std::string file(const std::string& extension) {
    return source_path("tests/cases/tokenizers/" + GetParam() + extension);
  }
};

TEST_P(HfCases, IdsAndTextsAreThoseOfTheLibrary) {
  const HfTokenizer tokenizer(file(".json"), {});
  const HfTokenizer plain(file(".json"), {.include_special_tokens = false});
  const std::unique_ptr<Encoder> encoder = tokenizer.make_encoder();
  const std::vector<Json> lines = read_json_lines(file(".txt"));
  ASSERT_GT(lines.size(), 20u);
  for (const Json& line : lines) {
    const std::string text = line["text"];
    const Ids ids = line["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.encode(text), ids) << line;
    EXPECT_EQ(plain.encode(text), line["plain"].get<Ids>()) << line;
    EXPECT_EQ(tokenizer.decode(ids), line["decoded"].get<std::string>()) << line;
    Ids warm;
    encoder->append(text, warm);
    EXPECT_EQ(warm, ids) << line;
  }
}

TEST_P(HfCases, PiecesHaveTheirIds) {
  const HfTokenizer tokenizer(file(".json"), {});
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    EXPECT_EQ(tokenizer.id_of(tokenizer.piece(id)), id);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, HfCases, testing::ValuesIn(case_names()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Files of real models, unpacked where they are compressed.
class RealHf : public testing::Test {
 protected:
  void SetUp() override {
    MG_NEEDS_SHARED("data/tokenizer-json/bpe-bytelevel-roberta-base.json");
    MG_NEEDS_XZ();
  }

  std::string unpacked(const std::string& name, const std::string& as = "tokenizer.json") {
    const std::string from = shared_data("data/tokenizer-json/" + name).string();
    const std::string to = (fs::path(files_.path()) / as).string();
    const bool is_packed = from.ends_with(".xz");
    const std::string command = (is_packed ? "xz -dkc " : "cat ") + from + " > " + to;
    EXPECT_EQ(std::system(command.c_str()), 0);
    return to;
  }
  static void expect_golden(const Tokenizer& tokenizer, const std::string& name) {
    for (const Json& line : read_json_lines(shared_data("data/golden/" + name))) {
      const std::string text = line["text"];
      EXPECT_EQ(tokenizer.encode(text), line["ids"].get<Ids>()) << text;
    }
  }
  // But texts for which `is_left_out` holds.
  template <class LeftOut>
  static void expect_nasty(const Tokenizer& tokenizer, const std::string& column,
                           const LeftOut& is_left_out) {
    const std::vector<Json> texts = read_json_lines(shared_data("data/nasty/nasty.jsonl"));
    const std::vector<Json> ids = read_json_lines(shared_data("data/nasty/nasty.ids.jsonl"));
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string text = texts[i]["text"];
      if (is_left_out(text)) continue;
      EXPECT_EQ(tokenizer.encode(text), ids[i][column].get<Ids>()) << i;
    }
  }

  TemporaryDirectory files_;
};

TEST_F(RealHf, Llama2) {
  const std::string file = unpacked("bpe-bytefallback-llama2.json.xz");
  const HfTokenizer plain(file, {.include_special_tokens = false});
  expect_golden(plain, "llama2.jsonl");
  expect_nasty(plain, "llama2",
               [&](const std::string& text) { return text.find("s>") != std::string::npos; });
  unpacked("bpe-bytefallback-llama2.tokenizer_config.json", "tokenizer_config.json");
  unpacked("bpe-bytefallback-llama2.special_tokens_map.json", "special_tokens_map.json");
  const HfTokenizer folder(files_.path().string(), {});
  EXPECT_EQ(folder.encode("Hello"), Ids({1, 15043}));
  EXPECT_EQ(folder.encode("a </s>b"), Ids({1, 263, 2, 29890}));
  EXPECT_EQ(folder.eod(), 2);
  EXPECT_EQ(folder.required_id(SpecialToken::kBos), 1);
  EXPECT_EQ(folder.special_id(SpecialToken::kPad), std::nullopt);
  EXPECT_EQ(folder.vocab_size(), 32000);
  EXPECT_EQ(folder.decode(plain.encode("Hello\n w\u00F6rld \u4E2D")), "Hello\n w\u00F6rld \u4E2D");
}

TEST_F(RealHf, Phi2GivesTheIdsOfGpt2) {
  const HfTokenizer tokenizer(unpacked("bpe-bytelevel-phi-2.json.xz"), {});
  const auto has_added_token = [](const std::string& text) {
    return text.find("  ") != std::string::npos || text.find("\t\t") != std::string::npos ||
           text.find("<|endoftext|>") != std::string::npos;
  };
  for (const Json& line : read_json_lines(shared_data("data/golden/gpt2.jsonl"))) {
    const std::string text = line["text"];
    if (has_added_token(text)) continue;
    EXPECT_EQ(tokenizer.encode(text), line["ids"].get<Ids>()) << text;
  }
  expect_nasty(tokenizer, "gpt2", has_added_token);
  EXPECT_EQ(tokenizer.encode("a<|endoftext|>"), Ids({64, 50256}));
  EXPECT_EQ(tokenizer.eod(), 50256);
  EXPECT_EQ(tokenizer.vocab_size(), 50295);
}

TEST_F(RealHf, BertUncased) {
  const std::string file = unpacked("wordpiece-bert-base-uncased.json.xz");
  expect_golden(HfTokenizer(file, {.include_special_tokens = false}), "bert-uncased.jsonl");
  const HfTokenizer tokenizer(file, {});
  EXPECT_EQ(tokenizer.encode("hello [MASK]"), Ids({101, 7592, 103, 102}));
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kMask), 103);
}

TEST_F(RealHf, T5) {
  unpacked("unigram-t5-small.json");
  unpacked("unigram-t5-small.tokenizer_config.json", "tokenizer_config.json");
  const HfTokenizer tokenizer(files_.path().string(), {.type = "PretrainedFromHF"});
  EXPECT_EQ(tokenizer.encode("Hello world!"), Ids({8774, 296, 55, 1}));
  EXPECT_EQ(tokenizer.encode("The <extra_id_0> walks in <extra_id_1> park"),
            Ids({37, 32099, 10681, 16, 32098, 2447, 1}));
  EXPECT_EQ(tokenizer.sentinel_ids().size(), 100u);
  EXPECT_EQ(tokenizer.sentinel_ids()[1], 32098);
  EXPECT_EQ(tokenizer.eod(), 1);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kPad), 0);
  EXPECT_EQ(tokenizer.vocab_size(), 32100);
}

TEST(HfTokenizer, FoldersWithoutTokenizerJson) {
  const TemporaryDirectory bert;
  bert.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##able\nHello\nhello\n");
  const HfTokenizer lower(bert.path().string(), {});
  EXPECT_EQ(lower.encode("Hello unable [MASK]"), Ids({2, 8, 5, 6, 4, 3}));
  EXPECT_EQ(lower.decode(Ids{2, 8, 5, 6, 3}), "[CLS] hello unable [SEP]");
  bert.write("tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_EQ(HfTokenizer(bert.path().string(), {}).encode("Hello"), Ids({2, 7, 3}));

  const TemporaryDirectory gpt2;
  gpt2.write("vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})");
  gpt2.write("merges.txt", "#version: 0.2\na b\n");
  const HfTokenizer bpe(gpt2.path().string(), {});
  EXPECT_EQ(bpe.encode("abb<|endoftext|>"), Ids({2, 1, 3}));
  EXPECT_EQ(bpe.eod(), 3);
}

// A model of single characters.
const char* const kTiny = R"({"added_tokens": [
    {"id": 3, "content": "</s>", "special": true, "normalized": false}],
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";

TEST(HfTokenizer, SideFilesNameAndAddTokens) {
  const TemporaryDirectory files;
  files.write("tokenizer.json", kTiny);
  files.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"},
    "pad_token": null, "additional_special_tokens": ["<one>"],
    "added_tokens_decoder": {"4": {"content": "<two>", "special": true, "normalized": false}}})");
  files.write("special_tokens_map.json", R"({"mask_token": "<m>"})");
  const HfTokenizer tokenizer(files.path().string(), {.type = "PretrainedFromHF"});
  EXPECT_EQ(tokenizer.encode("ab</s><two><s><m><one>"), Ids({2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(tokenizer.eod(), 3);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kBos), 5);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kMask), 6);
  EXPECT_EQ(tokenizer.special_id(SpecialToken::kPad), std::nullopt);
  EXPECT_EQ(tokenizer.special_id(SpecialToken::kCls), std::nullopt);
  EXPECT_EQ(tokenizer.sentinel_ids(), Ids({7}));
  EXPECT_EQ(tokenizer.vocab_size(), 8);
  // bos stands for cls, and eos for sep.
  const HfTokenizer newer(files.path().string(), {});
  EXPECT_EQ(newer.required_id(SpecialToken::kCls), 5);
  EXPECT_EQ(newer.required_id(SpecialToken::kSep), 3);
}

TEST(HfTokenizer, ExtraIdsFollowTheVocabularyUnlessItHasThem) {
  const TemporaryDirectory files;
  const std::string file = files.write("tokenizer.json", kTiny);
  const HfTokenizer tokenizer(file, {.vocab_extra_ids = 2, .special_tokens = {"<new>"}});
  EXPECT_EQ(tokenizer.encode("a<extra_id_1><new>"), Ids({0, 6, 4}));
  EXPECT_EQ(tokenizer.sentinel_ids(), Ids({5, 6}));
  EXPECT_EQ(tokenizer.vocab_size(), 7);
}

TEST(HfTokenizer, ClassesOfLlamaMakeTheSurroundingsAnew) {
  const TemporaryDirectory files;
  files.write("tokenizer.json", kTiny);
  files.write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizerFast",
    "add_bos_token": false, "add_eos_token": true, "eos_token": "</s>"})");
  EXPECT_EQ(HfTokenizer(files.path().string(), {}).encode("ab"), Ids({2, 3}));
}

TEST(HfTokenizer, CleanUpOfBlanksIsUsedOnlyIfTheFilesAskForIt) {
  const TemporaryDirectory files;
  files.write("tokenizer.json",
              R"({"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, ".": 1}}})");
  EXPECT_EQ(HfTokenizer(files.path().string(), {}).decode(Ids{0, 1}), "a .");
  files.write("tokenizer_config.json", R"({"clean_up_tokenization_spaces": true})");
  EXPECT_EQ(HfTokenizer(files.path().string(), {}).decode(Ids{0, 1, 17}), "a.");
}

TEST(HfTokenizer, AddedTokensAreDecodedAsTheyWereLookedFor) {
  const TemporaryDirectory files;
  const HfTokenizer tokenizer(files.write("tokenizer.json", R"({"normalizer": {"type": "Lowercase"},
    "added_tokens": [{"id": 1, "content": "[X]", "normalized": true},
                     {"id": 2, "content": "[Y]", "normalized": false}],
    "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}})"),
                              {});
  EXPECT_EQ(tokenizer.encode("A[X][x][Y][y]"), Ids({0, 1, 1, 2, 0}));
  EXPECT_EQ(tokenizer.decode(Ids{0, 1, 2}), "a [x] [Y]");
  EXPECT_EQ(tokenizer.piece(1), "[X]");
}

// The bytes of tokens, one after the other, are those of the text.
TEST(HfTokenizer, TokensHaveBytesOfTheirOwn) {
  const std::string text = "The river, a\u20AC \U0001F438 x";
  for (const std::string name : {"bpe-llama3", "bpe-byte-fallback"}) {
    const HfTokenizer tokenizer(source_path("tests/cases/tokenizers/" + name + ".json"),
                                {.include_special_tokens = false});
    std::string bytes;
    bool has_part = false;
    for (const int32_t id : tokenizer.encode(text)) {
      const std::string own = tokenizer.token_bytes(id);
      has_part = has_part || !is_valid_utf8(own);
      bytes += own;
    }
    EXPECT_TRUE(has_part) << name;
    if (bytes.starts_with(' ')) bytes.erase(0, 1);  // at the beginning of a text it is left out
    EXPECT_EQ(bytes, text) << name;
  }
  const HfTokenizer words(source_path("tests/cases/tokenizers/wordpiece.json"), {});
  for (const char* piece : {"##s", "the", "[SEP]"}) {
    const std::string want = piece[0] == '#' ? "s" : std::string(" ") + piece;
    ASSERT_TRUE(words.id_of(piece)) << piece;
    EXPECT_EQ(words.token_bytes(*words.id_of(piece)), want);
  }
  EXPECT_EQ(words.token_bytes(1 << 20), "");  // decode() leaves it out, too
}

TEST(HfTokenizer, MayBeUsedByManyThreads) {
  const HfTokenizer tokenizer(source_path("tests/cases/tokenizers/bpe-llama3.json"), {});
  const std::string text =
      "The quick brown fox jumps over 12345 lazy dogs. \u4E2D\u56FD\n\n <mask> x";
  const Ids want = tokenizer.encode(text);
  std::vector<Ids> got(4);
  std::vector<std::thread> threads;
  for (Ids& ids : got) threads.emplace_back([&] { ids = tokenizer.encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, want);
}

TEST(HfTokenizer, TakesTextThatIsNoUtf8) {
  const HfTokenizer tokenizer(source_path("tests/cases/tokenizers/bpe-llama3.json"), {});
  EXPECT_EQ(tokenizer.encode("a\xFF"
                             "b"),
            tokenizer.encode("a\uFFFD"
                             "b"));
}

TEST(HfTokenizer, ErrorsNameTheFileAndTheRemedy) {
  const TemporaryDirectory files;
  const auto open = [&](const std::string& content) {
    return message_of([&] { HfTokenizer(files.write("t.json", content), {}); });
  };
  EXPECT_THAT(message_of([] { HfTokenizer("/nowhere", {}); }),
              HasSubstr("/nowhere: no such file or folder; give a folder with tokenizer.json"));
  EXPECT_THAT(open("{"), HasSubstr("t.json: not valid JSON"));
  EXPECT_THAT(open("[]"), HasSubstr("t.json: there is no \"model\"; is this a tokenizer.json?"));
  EXPECT_THAT(open("{}"), HasSubstr("t.json: there is no \"model\""));
  EXPECT_THAT(open(R"({"model": {"type": "BPE"}})"), HasSubstr("t.json: the model has no vocab"));
  EXPECT_THAT(open(R"({"model": {"type": 3, "vocab": {}}})"),
              HasSubstr("a field of tokenizer.json is missing or of another type"));
  EXPECT_THAT(open(R"({"model": {"type": "Magic", "vocab": {}}})"),
              HasSubstr("the model Magic is not available; there are BPE, Unigram, WordPiece"));
  const auto with = [&](const std::string& part) {
    return open(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, )" + part + "}");
  };
  EXPECT_THAT(with(R"("normalizer": {"type": "X"})"),
              HasSubstr("the normalizer X is not available"));
  EXPECT_THAT(with(R"("pre_tokenizer": {"type": "X"})"),
              HasSubstr("the pre_tokenizer X is not available"));
  EXPECT_THAT(with(R"("post_processor": {"type": "X"})"),
              HasSubstr("the post_processor X is not available"));
  EXPECT_THAT(with(R"("decoder": {"type": "X"})"), HasSubstr("the decoder X is not available"));
  EXPECT_THAT(with(R"("normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"})"),
              HasSubstr("precompiled_charsmap has 3 bytes"));
  EXPECT_THAT(with(R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("},
                      "behavior": "Isolated"})"),
              HasSubstr(kHasPcre2 ? "the regular expression \"(\" cannot be read"
                                  : "the regular expression ( is not in this build"));
  EXPECT_THAT(open(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}})"),
              HasSubstr("the vocab of the model has no piece \"b\", which is its part of merge 0"));
  EXPECT_THAT(open(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}})"),
              HasSubstr("merge 0 is \"a\", expected two pieces with one blank between them"));
  EXPECT_THAT(open(R"({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}})"),
              HasSubstr("the id of piece \"a\" is -1, must be an integer in [0, 16777215]"));
  EXPECT_THAT(open(R"({"model": {"type": "BPE", "dropout": 0.1, "vocab": {}, "merges": []}})"),
              HasSubstr("the model has dropout 0.1"));
  EXPECT_THAT(open(R"({"model": {"type": "WordPiece", "vocab": {"a": 0}}})"),
              HasSubstr("has no piece \"[UNK]\", which is its unk_token"));
  EXPECT_THAT(open(R"({"model": {"type": "Unigram", "vocab": [["a"]]}})"),
              HasSubstr("entry 0 of vocab is [\"a\"], expected [piece, score]"));
  EXPECT_THAT(open(R"({"model": {"type": "Unigram", "unk_id": 3, "vocab": [["a", 0]]}})"),
              HasSubstr("unk_id 3 must be in [0, 1)"));
  const TemporaryDirectory empty;
  EXPECT_THAT(message_of([&] { HfTokenizer(empty.path().string(), {}); }),
              HasSubstr("the folder has no tokenizer.json, no vocab.json with merges.txt and no"));
  empty.write("spiece.model", "x");
  EXPECT_THAT(message_of([&] { HfTokenizer(empty.path().string(), {}); }),
              HasSubstr("only the SentencePiece model spiece.model; use --tokenizer-type"));
  const HfTokenizer tokenizer(files.write("ok.json", kTiny), {});
  EXPECT_THAT(message_of([&] { (void)tokenizer.piece(17); }), HasSubstr("no token has id 17"));
  EXPECT_THAT(message_of([&] { (void)tokenizer.required_id(SpecialToken::kMask); }),
              HasSubstr("--tokenizer-type HuggingFaceTokenizer has no mask token in "));
}

}  // namespace
}  // namespace megatron::hf
