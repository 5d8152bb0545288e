#include "megatron/tokenizers/tokenizer.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/core/parts.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_data.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"
#include "tests/tokenizers/base64_of.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kTokenizerGolden = source_path("tests/golden/megatron/data/");

TEST(MakeTokenizer, MakesEachType) {
  MG_NEEDS_SHARED("data/sentencepiece/llama2-tokenizer.model");
  const std::string model = shared_data("data/sentencepiece/llama2-tokenizer.model").string();
  const TemporaryDirectory files;
  const std::string json = source_path("tests/cases/tokenizers/wordpiece.json");
  nlohmann::json bytes = nlohmann::json::array();
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = base64_of(std::string(1, static_cast<char>(byte)));
    bytes.push_back({{"rank", byte}, {"token_bytes", text}});
  }
  const std::string tik = files.write("list.json", bytes.dump());
  const std::string words = files.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n");
  const std::vector<TokenizerConfig> configs = {
      {.tokenizer_type = "BertWordPieceLowerCase", .vocab_file = words},
      {.tokenizer_type = "BertWordPieceCase", .vocab_file = words},
      {.tokenizer_type = "GPT2BPETokenizer",
       .vocab_file = kTokenizerGolden + "vocab.json",
       .merge_file = kTokenizerGolden + "merges.txt"},
      {.tokenizer_type = "SentencePieceTokenizer", .tokenizer_model = model, .vocab_extra_ids = 1},
      {.tokenizer_type = "GPTSentencePieceTokenizer", .tokenizer_model = model},
      {.tokenizer_type = "Llama2Tokenizer", .tokenizer_model = model},
      {.tokenizer_type = "HuggingFaceTokenizer", .tokenizer_model = json},
      {.tokenizer_type = "PretrainedFromHF", .tokenizer_model = json},
      {.tokenizer_type = "TikTokenizer", .tokenizer_model = tik, .vocab_size = 1256},
      {.tokenizer_type = "NullTokenizer", .vocab_size = 100},
  };
  std::vector<std::string> types;
  for (const TokenizerConfig& config : configs) {
    if (!kHasSentencePiece && config.tokenizer_model == model) {
      EXPECT_THAT(message_of<Unsupported>([&] { make_tokenizer(config); }),
                  HasSubstr("is not in this build; configure with -DMG_SENTENCEPIECE=ON"));
    } else {
      EXPECT_EQ(make_tokenizer(config)->type(), config.tokenizer_type);
    }
    types.push_back(config.tokenizer_type);
  }
  EXPECT_EQ(types, known_tokenizer_types());
}

TEST(MakeTokenizer, TakesADirectoryForGpt2) {
  const auto tokenizer =
      make_tokenizer({.tokenizer_type = "GPT2BPETokenizer", .tokenizer_model = kTokenizerGolden});
  EXPECT_EQ(tokenizer->vocab_size(), 502);
}

TEST(MakeTokenizer, ErrorsTellWhatToGive) {
  const auto make = [](const TokenizerConfig& config) {
    return message_of([&] { make_tokenizer(config); });
  };
  EXPECT_THAT(
      make({.tokenizer_type = "Gpt2"}),
      HasSubstr("--tokenizer-type \"Gpt2\" is not known; use one of BertWordPieceLowerCase, "
                "BertWordPieceCase, "));
  EXPECT_THAT(make({.tokenizer_type = "GPT2BPETokenizer"}),
              HasSubstr("--vocab-file and --merge-file are missing"));
  EXPECT_THAT(make({.tokenizer_type = "GPT2BPETokenizer", .vocab_file = "v"}),
              HasSubstr("--merge-file is missing"));
  EXPECT_THAT(make({.tokenizer_type = "GPT2BPETokenizer", .merge_file = "m"}),
              HasSubstr("--vocab-file is missing"));
  EXPECT_THAT(make({.tokenizer_type = "NullTokenizer"}),
              HasSubstr("--vocab-size is 0, must be positive"));
}

TEST(NullTokenizer, TextIsIds) {
  const auto tokenizer = make_tokenizer({.tokenizer_type = "NullTokenizer", .vocab_size = 786});
  EXPECT_EQ(tokenizer->vocab_size(), 787);
  EXPECT_EQ(tokenizer->eod(), 786);
  EXPECT_THAT(tokenizer->encode("0 17 785"), ElementsAre(0, 17, 785));
  EXPECT_THAT(tokenizer->encode("5\n"), ElementsAre(5));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{0, 17}), "0 17");
  const TokenizerDescription description = tokenizer->description();
  EXPECT_EQ(description.class_name, "_NullTokenizer");
  EXPECT_EQ(description.tokenizer_path.at(0), std::nullopt);
  EXPECT_EQ(description.options.at(0),
            std::make_pair(std::string("vocab_size"), std::string("786")));
}

TEST(NullTokenizer, RefusesWhatIsNoId) {
  const auto tokenizer = make_tokenizer({.tokenizer_type = "NullTokenizer", .vocab_size = 786});
  for (const std::string text : {"", "1  2", "x", "1 2x", "-1", "787", "99999999999999999999"}) {
    EXPECT_THAT(message_of([&] { (void)tokenizer->encode(text); }),
                HasSubstr("is not an id in [0, 787); the text must be decimal ids"))
        << text;
  }
}

TEST(Tokenizer, AskingForATokenTheTypeLacksNamesBoth) {
  const auto tokenizer = make_tokenizer({.tokenizer_type = "NullTokenizer", .vocab_size = 786});
  const auto ask = [&](SpecialToken token) {
    return message_of([&] { (void)tokenizer->required_id(token); });
  };
  EXPECT_THAT(ask(SpecialToken::kMask), HasSubstr("--tokenizer-type NullTokenizer has no mask"));
  EXPECT_THAT(ask(SpecialToken::kCls), HasSubstr("has no cls token"));
  EXPECT_THAT(ask(SpecialToken::kSep), HasSubstr("has no sep token"));
  EXPECT_THAT(ask(SpecialToken::kPad), HasSubstr("has no pad token"));
  EXPECT_THAT(ask(SpecialToken::kBos), HasSubstr("has no bos token"));
  EXPECT_THAT(ask(SpecialToken::kEos), HasSubstr("has no eos token"));
  EXPECT_EQ(tokenizer->required_id(SpecialToken::kEod), 786);
}

TEST(PaddedVocabSize, IsTheNextMultiple) {
  EXPECT_EQ(padded_vocab_size(50257, 128, 1), 50304);
  EXPECT_EQ(padded_vocab_size(30524, 128, 1), 30592);
  EXPECT_EQ(padded_vocab_size(32000, 128, 1), 32000);
  EXPECT_EQ(padded_vocab_size(50257, 128, 8), 51200);
  EXPECT_THAT(message_of([] { padded_vocab_size(0, 128, 1); }), HasSubstr("must all be positive"));
}

}  // namespace
}  // namespace megatron
