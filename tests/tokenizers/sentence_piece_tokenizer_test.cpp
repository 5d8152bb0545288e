#include "megatron/tokenizers/sentence_piece_tokenizer.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <thread>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/tokenizers/sentence_piece_settings.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/tokenizers/json_lines.h"

namespace megatron {
namespace {

using Ids = std::vector<int32_t>;
using Kind = SentencePieceTokenizer::Kind;
using testing::HasSubstr;

class RealModels : public testing::Test {
 protected:
  void SetUp() override { MG_NEEDS_SHARED("data/sentencepiece/llama2-tokenizer.model"); }

  static SentencePieceTokenizer open(const std::string& name, Kind kind, int64_t extra_ids = 0) {
    return {shared_data("data/sentencepiece/" + name).string(),
            {.kind = kind, .vocab_extra_ids = extra_ids}};
  }
  static void expect_golden(const SentencePieceTokenizer& tokenizer, const std::string& name) {
    for (const nlohmann::json& line : read_json_lines(shared_data("data/golden/" + name))) {
      const std::string text = line["text"];
      EXPECT_EQ(tokenizer.encode(text), line["ids"].get<Ids>()) << text;
    }
  }
};

TEST_F(RealModels, GoldenIds) {
  expect_golden(open("llama2-tokenizer.model", Kind::kPlain), "llama2.jsonl");
  expect_golden(open("t5-seqio-26.model", Kind::kPlain), "t5-seqio-26.jsonl");
  expect_golden(open("en-unigram-1000.model", Kind::kPlain), "en-unigram-1000.jsonl");
}

TEST_F(RealModels, TokensHaveBytesOfTheirOwn) {
  const SentencePieceTokenizer tokenizer = open("llama2-tokenizer.model", Kind::kPlain);
  const std::string text = "the river \U0001F438";
  std::string bytes;
  for (const int32_t id : tokenizer.encode(text)) bytes += tokenizer.token_bytes(id);
  EXPECT_EQ(bytes, " " + text);
  EXPECT_EQ(tokenizer.token_bytes(*tokenizer.id_of("<0x9F>")), "\x9F");
  EXPECT_EQ(tokenizer.token_bytes(tokenizer.eod()), "");  // as decode() writes it
}

TEST_F(RealModels, Llama2BeginsEachTextWithBos) {
  const SentencePieceTokenizer tokenizer = open("llama2-tokenizer.model", Kind::kLlama2);
  const std::vector<nlohmann::json> texts = read_json_lines(shared_data("data/nasty/nasty.jsonl"));
  const std::vector<nlohmann::json> ids =
      read_json_lines(shared_data("data/nasty/nasty.ids.jsonl"));
  ASSERT_EQ(texts.size(), 200u);
  for (size_t i = 0; i < texts.size(); ++i) {
    Ids want = {1};
    for (const int32_t id : ids[i]["llama2"].get<Ids>()) want.push_back(id);
    EXPECT_EQ(tokenizer.encode(texts[i]["text"].get<std::string>()), want) << i;
  }
  EXPECT_EQ(tokenizer.encode(""), Ids({1}));
  EXPECT_EQ(tokenizer.eod(), 2);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kBos), 1);
  EXPECT_EQ(tokenizer.special_id(SpecialToken::kPad), std::nullopt);
  EXPECT_EQ(tokenizer.vocab_size(), 32000);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("Hello\nworld \u00E9")), "Hello\nworld \u00E9");
  EXPECT_EQ(tokenizer.piece(13), "<0x0A>");
  EXPECT_EQ(tokenizer.id_of("<0x0A>"), 13);
  EXPECT_EQ(tokenizer.id_of("no such piece"), std::nullopt);
}

TEST_F(RealModels, SpecialsFollowThePiecesAndAreSpecialInText) {
  const SentencePieceTokenizer tokenizer = open("llama2-tokenizer.model", Kind::kWithSpecials, 3);
  // <CLS> 32000, <SEP>, <EOD>, <MASK>, <PAD>; bos and eos are pieces; the sentinels are last.
  EXPECT_EQ(tokenizer.vocab_size(), 32008);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kCls), 32000);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kSep), 32001);
  EXPECT_EQ(tokenizer.eod(), 32002);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kMask), 32003);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kPad), 32004);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kBos), 1);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kEos), 2);
  EXPECT_EQ(tokenizer.sentinel_ids(), Ids({32005, 32006, 32007}));
  // Each part is encoded by itself, so that "Hello" and "world" both get the blank in front.
  EXPECT_EQ(tokenizer.encode("Hello<MASK>world<s><extra_id_1>"),
            Ids({15043, 32003, 3186, 1, 32006}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("hello<MASK> world<EOD>")),
            "hello <MASK>  world <EOD> ");
  EXPECT_EQ(tokenizer.piece(32006), "<extra_id_1>");
  EXPECT_EQ(tokenizer.id_of("<extra_id_1>"), 32006);
}

TEST_F(RealModels, ModelsKeepTheirOwnSpecialIds) {
  const SentencePieceTokenizer t5 = open("t5-seqio-26.model", Kind::kWithSpecials, 2);
  EXPECT_EQ(t5.required_id(SpecialToken::kPad), 0);
  EXPECT_EQ(t5.required_id(SpecialToken::kEos), 1);
  EXPECT_EQ(t5.required_id(SpecialToken::kBos), 30);  // <BOS>, behind four specials
  EXPECT_EQ(t5.vocab_size(), 33);
  const SentencePieceTokenizer nmt = open("nmt-unigram-32000.model", Kind::kPlain);
  EXPECT_EQ(nmt.eod(), 0);
  EXPECT_EQ(nmt.special_id(SpecialToken::kBos), std::nullopt);
}

TEST_F(RealModels, TextSurvivesARoundTrip) {
  const SentencePieceTokenizer tokenizer = open("en-unigram-1000.model", Kind::kPlain);
  for (const nlohmann::json& line :
       read_json_lines(shared_data("data/golden/en-unigram-1000.jsonl"))) {
    const Ids ids = line["ids"].get<Ids>();
    const bool has_unknown = std::find(ids.begin(), ids.end(), 0) != ids.end();
    if (has_unknown) continue;
    EXPECT_EQ(tokenizer.encode(tokenizer.decode(ids)), ids);
  }
}

TEST_F(RealModels, MayBeUsedByManyThreads) {
  const SentencePieceTokenizer tokenizer = open("llama2-tokenizer.model", Kind::kPlain);
  const std::string text = read_text(shared_data("data/wikitext-2/valid.txt")).substr(0, 20000);
  const Ids want = tokenizer.encode(text);
  std::vector<Ids> got(4);
  std::vector<std::thread> threads;
  for (Ids& ids : got) threads.emplace_back([&] { ids = tokenizer.encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, want);
}

TEST_F(RealModels, DescribeThemselvesAsMegatronDoes) {
  const auto name = [](Kind kind) {
    return open("t5-seqio-26.model", kind).description().class_name;
  };
  EXPECT_EQ(name(Kind::kWithSpecials), "_SentencePieceTokenizer");
  EXPECT_EQ(name(Kind::kPlain), "_GPTSentencePieceTokenizer");
}

TEST_F(RealModels, ErrorsNameTheFileAndTheRemedy) {
  EXPECT_THAT(
      message_of([] { open("t5-seqio-26.model", Kind::kLlama2); }),
      HasSubstr("t5-seqio-26.model: the model has no bos, with which Llama2Tokenizer begins"));
  EXPECT_THAT(message_of([] { open("t5-seqio-26.model", Kind::kPlain, 100); }),
              HasSubstr("--vocab-extra-ids 100 needs a tokenizer with sentinels, and "
                        "--tokenizer-type GPTSentencePieceTokenizer has none"));
  const SentencePieceTokenizer tokenizer = open("t5-seqio-26.model", Kind::kPlain);
  EXPECT_THAT(message_of([&] { (void)tokenizer.decode(Ids{26}); }),
              HasSubstr("no piece has id 26; ids go from 0 to 25"));
  EXPECT_THAT(message_of([&] { (void)tokenizer.decode(Ids{-1}); }),
              HasSubstr("no piece has id -1"));
}

// A model that has only rules: a trie of 256 units, and one replacement.
struct RulesOfModel {
  std::vector<uint32_t> units = std::vector<uint32_t>(256);
  uint32_t trie_bytes = 1024;
  std::string texts = std::string("x\0", 2);

  std::string bytes() const {
    std::string charsmap(reinterpret_cast<const char*>(&trie_bytes), 4);
    charsmap.append(reinterpret_cast<const char*>(units.data()), 4 * units.size());
    return field(3, field(2, charsmap + texts));  // of the normalizer, of the model
  }
  static std::string field(int number, const std::string& content) {
    std::string text(1, static_cast<char>(number << 3 | 2));
    text += static_cast<char>(0x80 | (content.size() & 0x7F));
    text += static_cast<char>(content.size() >> 7);
    return text + content;
  }
};

// The library reads wherever the rules point to, and crashes.
TEST(SentencePieceRules, MustNotPointOutsideOfTheFile) {
  EXPECT_TRUE(has_sound_rules(RulesOfModel().bytes()));
  constexpr uint32_t kOffset = 1u << 10;
  constexpr uint32_t kHasValue = 1u << 8;
  constexpr uint32_t kValue = 1u << 31;
  const auto with = [](std::initializer_list<uint32_t> units) {
    RulesOfModel rules;
    std::copy(units.begin(), units.end(), rules.units.begin());
    return rules.bytes();
  };
  EXPECT_TRUE(has_sound_rules(with({kHasValue | kOffset, kValue | 1})));
  EXPECT_FALSE(has_sound_rules(with({kHasValue | kOffset, kValue | 2})));  // behind the texts
  EXPECT_FALSE(has_sound_rules(with({256 * kOffset})));                    // behind the trie
  RulesOfModel cut;
  cut.texts = "x";  // does not end
  EXPECT_FALSE(has_sound_rules(cut.bytes()));
  for (const uint32_t size : {0u, 1022u, 1026u, 4096u, 0xFFFFFFFCu}) {
    RulesOfModel rules;
    rules.trie_bytes = size;
    EXPECT_FALSE(has_sound_rules(rules.bytes())) << size;
  }
  const TemporaryDirectory files;
  const std::string file = files.write("damaged.model", with({256 * kOffset}));
  EXPECT_THAT(message_of<FormatError>([&] { SentencePieceTokenizer(file, {}); }),
              HasSubstr("damaged.model: the SentencePiece model is damaged: the rules"));
}

TEST_F(RealModels, HaveSoundRules) {
  for (const char* const name :
       {"llama2-tokenizer.model", "t5-seqio-26.model", "en-unigram-1000.model",
        "ja-unigram-8000.model", "nmt-unigram-32000.model"}) {
    EXPECT_TRUE(has_sound_rules(read_text(shared_data(std::string("data/sentencepiece/") + name))))
        << name;
  }
}

TEST(SentencePieceTokenizer, RefusesOtherFiles) {
  const TemporaryDirectory files;
  for (const std::string& content :
       {std::string(), std::string("{\"a\": 0}"), std::string("\n\n")}) {
    const std::string file = files.write("some.model", content);
    EXPECT_THAT(message_of([&] { SentencePieceTokenizer(file, {}); }),
                HasSubstr("some.model: this is not a SentencePiece model"));
  }
  EXPECT_THAT(message_of([] { SentencePieceTokenizer("/nowhere/t.model", {}); }),
              HasSubstr("/nowhere/t.model: cannot open"));
}

}  // namespace
}  // namespace megatron
