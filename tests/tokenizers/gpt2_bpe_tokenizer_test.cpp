#include "megatron/tokenizers/gpt2_bpe_tokenizer.h"

#include <gmock/gmock.h>

#include <thread>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_data.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"
#include "tests/tokenizers/json_lines.h"

namespace megatron {
namespace {

using Ids = std::vector<int32_t>;
using testing::HasSubstr;

const std::string kGolden = source_path("tests/golden/megatron/data/");

Gpt2BpeTokenizer small_tokenizer() { return {kGolden + "vocab.json", kGolden + "merges.txt"}; }

TEST(Gpt2BpeTokenizer, EveryDocumentSurvivesARoundTrip) {
  const Gpt2BpeTokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 502);
  EXPECT_EQ(tokenizer.eod(), 501);
  for (const nlohmann::json& document : read_json_lines(kGolden + "corpus.jsonl")) {
    const std::string text = document["text"];
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Gpt2BpeTokenizer, EncodesEveryByteAndTheEmptyText) {
  const Gpt2BpeTokenizer tokenizer = small_tokenizer();
  EXPECT_THAT(tokenizer.encode(""), testing::ElementsAre());
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  EXPECT_FALSE(tokenizer.encode(bytes).empty());
  std::string ascii = bytes.substr(0, 128);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(ascii)), ascii);
}

TEST(Gpt2BpeTokenizer, AnEncoderWithAWarmCacheGivesTheSameIds) {
  const Gpt2BpeTokenizer tokenizer = small_tokenizer();
  const std::unique_ptr<Encoder> encoder = tokenizer.make_encoder();
  // Words of every length around the limits of the cache, twice.
  for (int round = 0; round < 2; ++round) {
    for (size_t length = 1; length < 300; ++length) {
      std::string text = "the " + std::string(length, 'q') + " of " + std::string(length, 'a');
      Ids ids;
      encoder->append(text, ids);
      ASSERT_EQ(ids, tokenizer.encode(text)) << length;
    }
  }
}

TEST(Gpt2BpeTokenizer, MayBeUsedByManyThreads) {
  const Gpt2BpeTokenizer tokenizer = small_tokenizer();
  const std::string text = read_json_lines(kGolden + "corpus.jsonl")[0]["text"];
  const Ids want = tokenizer.encode(text);
  std::vector<Ids> got(4);
  std::vector<std::thread> threads;
  for (Ids& ids : got) threads.emplace_back([&] { ids = tokenizer.encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, want);
}

TEST(Gpt2BpeTokenizer, DescribesItselfAsMegatronDoes) {
  const TokenizerDescription description = small_tokenizer().description();
  EXPECT_EQ(description.class_name, "_GPT2BPETokenizer");
  ASSERT_EQ(description.tokenizer_path.size(), 2u);
  EXPECT_EQ(description.tokenizer_path[0], kGolden + "vocab.json");
  EXPECT_EQ(description.tokenizer_path[1], kGolden + "merges.txt");
  EXPECT_TRUE(description.options.empty());
}

// Vocabulary: a=0, b=1, ab=2, <|endoftext|>=3.
const std::string kTinyVocab = R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})";

TEST(Gpt2BpeTokenizer, MegatronsMergeFileRulesDropTheLastLineWithoutNewline) {
  const TemporaryDirectory files;
  const std::string vocab = files.write("vocab.json", kTinyVocab);
  const std::string merges = files.write("merges.txt", "#version: 0.2\nb b\na b");
  EXPECT_EQ(Gpt2BpeTokenizer(vocab, merges).encode("ab"), Ids({0, 1}));
  EXPECT_EQ(Gpt2BpeTokenizer::from_directory(files.path())->encode("ab"), Ids({2}));
}

TEST(Gpt2BpeTokenizer, MegatronsMergeFileRulesDropTheFirstLine) {
  const TemporaryDirectory files;
  const std::string vocab = files.write("vocab.json", kTinyVocab);
  const std::string merges = files.write("merges.txt", "a b\r\nb b\r\n");
  EXPECT_EQ(Gpt2BpeTokenizer(vocab, merges).encode("ab"), Ids({0, 1}));
  EXPECT_EQ(Gpt2BpeTokenizer::from_directory(files.path())->encode("ab"), Ids({2}));
}

TEST(Gpt2BpeTokenizer, AMissingTokenIsIdZeroWithAWarning) {
  const TemporaryDirectory files;
  const std::string vocab = files.write("vocab.json", kTinyVocab);
  const std::string merges = files.write("merges.txt", "#version: 0.2\na b\nb a\n");
  CapturedStderr captured_err;
  const Gpt2BpeTokenizer tokenizer(vocab, merges);
  EXPECT_THAT(captured_err.text(), HasSubstr("has no id for 255 tokens"));
  EXPECT_EQ(tokenizer.encode("ba"), Ids({0}));  // "ba" is not in the vocabulary
}

TEST(Gpt2BpeTokenizer, ErrorsNameTheFileAndTheRule) {
  const TemporaryDirectory files;
  const std::string vocab = files.write("vocab.json", kTinyVocab);
  const std::string merges = files.write("merges.txt", "#version: 0.2\na b\n");
  const auto load = [](const std::string& v, const std::string& m) {
    return message_of([&] { Gpt2BpeTokenizer(v, m); });
  };
  EXPECT_THAT(load("/nowhere/vocab.json", merges), HasSubstr("/nowhere/vocab.json: cannot open"));
  EXPECT_THAT(load(vocab, "/nowhere/merges.txt"), HasSubstr("/nowhere/merges.txt: cannot open"));
  EXPECT_THAT(load(merges, merges),
              HasSubstr("is not one JSON object token -> id; give the vocab.json"));
  EXPECT_THAT(load(files.write("list.json", "[1]"), merges), HasSubstr("is not one JSON object"));
  EXPECT_THAT(load(files.write("float.json", R"({"a": 1.5})"), merges),
              HasSubstr("the id of token \"a\" must be an integer in [0, 16777215]"));
  EXPECT_THAT(load(files.write("minus.json", R"({"a": -1})"), merges),
              HasSubstr("the id of token \"a\""));
  EXPECT_THAT(load(files.write("noeod.json", R"({"a": 0})"), merges),
              HasSubstr("token <|endoftext|> is missing"));
  EXPECT_THAT(load(files.write("gap.json", R"({"a": 0, "b": 3, "<|endoftext|>": 1})"), merges),
              HasSubstr("gap.json: token \"b\" has id 3, but the ids of 3 tokens go from 0 to 2"));
  EXPECT_THAT(load(files.write("twice.json", R"({"a": 0, "b": 0, "<|endoftext|>": 1})"), merges),
              HasSubstr("twice.json: tokens \"a\" and \"b\" have the same id 0"));
  EXPECT_THAT(load(vocab, files.write("three.txt", "#version: 0.2\na b\na b c\n")),
              HasSubstr("three.txt: line 3 is \"a b c\", expected two tokens"));
  EXPECT_THAT(load(vocab, files.write("one.txt", "#version: 0.2\nab\n")),
              HasSubstr("one.txt: line 2 is \"ab\", expected two tokens"));
}

TEST(Gpt2BpeTokenizer, RefusesAMergesFileWithoutMerges) {
  const TemporaryDirectory files;
  const std::string vocab = files.write("vocab.json", kTinyVocab);
  for (const std::string text : {"", "#version: 0.2\n", "{\"a\": 0}"}) {
    EXPECT_THAT(message_of([&] { Gpt2BpeTokenizer(vocab, files.write("none.txt", text)); }),
                HasSubstr("none.txt: no merges in it, but " + vocab +
                          " has tokens of several bytes, such as \"ab\"; give the merges.txt"));
  }
}

TEST(Gpt2BpeTokenizer, NamesAVocabularyOfBert) {
  const TemporaryDirectory files;
  const std::string merges = files.write("merges.txt", "#version: 0.2\na b\n");
  EXPECT_THAT(message_of([&] {
                Gpt2BpeTokenizer(files.write("vocab.txt", "[PAD]\n\"\n[UNK]\nthe\n"), merges);
              }),
              HasSubstr("vocab.txt: this is a list of words, such as the vocab.txt of a BERT"));
}

TEST(Gpt2BpeTokenizer, PiecesAreThoseOfTheVocabulary) {
  const Gpt2BpeTokenizer tokenizer = small_tokenizer();
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    EXPECT_EQ(tokenizer.id_of(tokenizer.piece(id)), id);
  }
  EXPECT_EQ(tokenizer.id_of("\xC4\xA0the").has_value(), true);
  EXPECT_EQ(tokenizer.id_of(" the"), std::nullopt);
}

TEST(Gpt2BpeTokenizer, DecodeRefusesWhatIsNoToken) {
  const TemporaryDirectory files;
  const std::string vocab = files.write("vocab.json", R"({"a": 0, "a b": 1, "<|endoftext|>": 2})");
  const Gpt2BpeTokenizer tokenizer(vocab, files.write("merges.txt", "#version: 0.2\n"));
  const auto decode = [&](int32_t id) {
    return message_of([&] { (void)tokenizer.decode(Ids{id}); });
  };
  EXPECT_EQ(tokenizer.decode(Ids{0, 2}), "a<|endoftext|>");
  for (const int32_t id : {-1, 3, 5}) {
    EXPECT_THAT(decode(id), HasSubstr("no token has id " + std::to_string(id) + "; ids go from 0"));
  }
  EXPECT_THAT(decode(1), HasSubstr("token 1 \"a b\" has a character that stands for no byte"));
}

class RealGpt2 : public testing::Test {
 protected:
  void SetUp() override {
    MG_NEEDS_SHARED("data/gpt2/gpt2-vocab.json");
    tokenizer_ =
        std::make_unique<Gpt2BpeTokenizer>(shared_data("data/gpt2/gpt2-vocab.json").string(),
                                           shared_data("data/gpt2/gpt2-merges.txt").string());
  }
  std::unique_ptr<Gpt2BpeTokenizer> tokenizer_;
};

TEST_F(RealGpt2, KnownIds) {
  const std::vector<std::pair<std::string, Ids>> cases = {
      {"The quick brown fox", {464, 2068, 7586, 21831}},
      {"jumps over the lazy dog", {73, 8142, 625, 262, 16931, 3290}},
      {"Hello world", {15496, 995}},
      {"I'm we'LL", {40, 1101, 356, 6, 3069}},
      {" a  b\n\nc ", {257, 220, 275, 198, 198, 66, 220}},
      {"tabs\tand  spaces   ", {8658, 82, 197, 392, 220, 9029, 220, 220, 220}},
      {"2023-01", {1238, 1954, 12, 486}},
      {"\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80", {2634, 40792, 47249, 222}},
      {"<|endoftext|>", {27, 91, 437, 1659, 5239, 91, 29}},
      {"\xC2\xA0x", {1849, 87}},
      {std::string(1, '\0'), {188}},
      {"", {}},
      {"\xE2\x80\x99", {447, 247}},
      {"don't", {9099, 470}},
      {"na\xC3\xAFve caf\xC3\xA9", {2616, 38776, 40304}},
  };
  for (const auto& [text, ids] : cases) EXPECT_EQ(tokenizer_->encode(text), ids) << text;
  EXPECT_EQ(tokenizer_->decode(Ids{447}), "\xEF\xBF\xBD");
  EXPECT_EQ(tokenizer_->eod(), 50256);
  EXPECT_EQ(tokenizer_->vocab_size(), 50257);
}

TEST_F(RealGpt2, GoldenIds) {
  for (const nlohmann::json& line : read_json_lines(shared_data("data/golden/gpt2.jsonl"))) {
    const std::string text = line["text"];
    EXPECT_EQ(tokenizer_->encode(text), line["ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer_->decode(line["ids"].get<Ids>()), text);
  }
}

TEST_F(RealGpt2, NastyIds) {
  const std::vector<nlohmann::json> texts = read_json_lines(shared_data("data/nasty/nasty.jsonl"));
  const std::vector<nlohmann::json> ids =
      read_json_lines(shared_data("data/nasty/nasty.ids.jsonl"));
  ASSERT_EQ(texts.size(), ids.size());
  ASSERT_EQ(texts.size(), 200u);
  const std::unique_ptr<Encoder> encoder = tokenizer_->make_encoder();
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string text = texts[i]["text"];
      Ids got;
      encoder->append(text, got);
      ASSERT_EQ(got, ids[i]["gpt2"].get<Ids>()) << "text " << i;
      ASSERT_EQ(tokenizer_->decode(got), text) << "text " << i;
    }
  }
}

TEST_F(RealGpt2, ShakespeareHasTheKnownNumberOfTokens) {
  MG_NEEDS_SHARED("data/shakespeare/input.txt");
  EXPECT_EQ(tokenizer_->encode(read_text(shared_data("data/shakespeare/input.txt"))).size(),
            338025u);
}

}  // namespace
}  // namespace megatron
