#include "megatron/tokenizers/tik_tokenizer.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/tokenizers/base64_of.h"

namespace megatron {
namespace {

using Ids = std::vector<int32_t>;
using testing::HasSubstr;

// The bytes, then some words.
nlohmann::json token_list(const std::vector<std::string>& words) {
  nlohmann::json list = nlohmann::json::array();
  const auto add = [&](const std::string& bytes) {
    list.push_back({{"rank", list.size()}, {"token_bytes", base64_of(bytes)}, {"token_str", ""}});
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const std::string& word : words) add(word);
  return list;
}

// 7 special tokens, 256 bytes, and 263 "ab", 264 "bc", 265 "abc", 266 " ab", 267 "aaa".
TikTokenizer tik_tokenizer_small_tokenizer(
    const TemporaryDirectory& files, TikTokenizer::Pattern pattern = TikTokenizer::Pattern::kV2) {
  const nlohmann::json list = token_list({"ab", "bc", "abc", " ab", "aaa", "left out"});
  return {files.write("list.json", list.dump()),
          {.pattern = pattern, .num_special_tokens = 7, .vocab_size = 268}};
}

TEST(TikTokenizer, MergesByTheRankOfTheResult) {
  const TemporaryDirectory files;
  const TikTokenizer tokenizer = tik_tokenizer_small_tokenizer(files);
  EXPECT_EQ(tokenizer.vocab_size(), 268);
  EXPECT_EQ(tokenizer.encode("ab"), Ids({263}));
  EXPECT_EQ(tokenizer.encode("abc"), Ids({265}));
  EXPECT_EQ(tokenizer.encode("abcx"), Ids({265, 7 + 'x'}));
  EXPECT_EQ(tokenizer.encode("xbc"), Ids({7 + 'x', 264}));
  // A whole word that is a token counts, though no merges lead to it.
  EXPECT_EQ(tokenizer.encode("aaa"), Ids({267}));
  EXPECT_EQ(tokenizer.encode("aaaa"), Ids({7 + 'a', 7 + 'a', 7 + 'a', 7 + 'a'}));
  EXPECT_EQ(tokenizer.encode("ab ab"), Ids({263, 266}));
  EXPECT_EQ(tokenizer.encode(""), Ids());
}

TEST(TikTokenizer, SpecialTokensHaveTheFirstIdsAndAreFoundInText) {
  const TemporaryDirectory files;
  const TikTokenizer tokenizer = tik_tokenizer_small_tokenizer(files);
  EXPECT_EQ(tokenizer.encode("ab</s>ab<unk>"), Ids({263, 2, 263, 0}));
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kBos), 1);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kEos), 2);
  EXPECT_EQ(tokenizer.eod(), 2);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kMask), 3);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kPad), 4);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kCls), 5);
  EXPECT_EQ(tokenizer.required_id(SpecialToken::kSep), 6);
  EXPECT_EQ(tokenizer.decode(Ids{263, 2, 7 + 0xE2}), "ab</s>\uFFFD");
  EXPECT_EQ(tokenizer.piece(266), " ab");
  EXPECT_EQ(tokenizer.id_of(" ab"), 266);
  EXPECT_EQ(tokenizer.id_of("</s>"), 2);
  EXPECT_EQ(tokenizer.id_of("nothing"), std::nullopt);
}

TEST(TikTokenizer, PatternsCutWordsDifferently) {
  const TemporaryDirectory files;
  // "xA" is one word of v1; v2 begins a word with each capital letter.
  EXPECT_EQ(tik_tokenizer_small_tokenizer(files, TikTokenizer::Pattern::kV1).encode("xab").size(),
            2u);
  const nlohmann::json list = token_list({"xA"});
  const std::string file = files.write("list.json", list.dump());
  const auto encode = [&](TikTokenizer::Pattern pattern) {
    return TikTokenizer(file, {.pattern = pattern, .num_special_tokens = 7, .vocab_size = 264})
        .encode("xA");
  };
  EXPECT_EQ(encode(TikTokenizer::Pattern::kV1), Ids({263}));
  EXPECT_EQ(encode(TikTokenizer::Pattern::kV2), Ids({7 + 'x', 7 + 'A'}));
}

TEST(TikTokenizer, FillsUpTheSpecialTokens) {
  const TemporaryDirectory files;
  const TikTokenizer tokenizer(files.write("list.json", token_list({}).dump()),
                               {.num_special_tokens = 12, .vocab_size = 268});
  EXPECT_EQ(tokenizer.encode("<SPECIAL_7><SPECIAL_11>"), Ids({7, 11}));
  EXPECT_EQ(tokenizer.piece(10), "<SPECIAL_10>");
}

TEST(TikTokenizer, ErrorsNameTheRule) {
  const TemporaryDirectory files;
  const auto open = [&](const std::string& content, TikTokenizer::Options options) {
    return message_of([&] { TikTokenizer(files.write("list.json", content), options); });
  };
  const TikTokenizer::Options small = {.num_special_tokens = 7, .vocab_size = 263};
  EXPECT_THAT(open("{}", small), HasSubstr("list.json: expected a JSON array of at least 256"));
  EXPECT_THAT(open("[1", small), HasSubstr("found something else"));
  EXPECT_THAT(open("[{}]", small), HasSubstr("found 1"));
  nlohmann::json list = token_list({});
  list[3]["token_bytes"] = "!!!!";
  EXPECT_THAT(open(list.dump(), small), HasSubstr("entry 3 must have \"rank\" 3"));
  list = token_list({});
  list[9]["rank"] = 8;
  EXPECT_THAT(open(list.dump(), small), HasSubstr("entry 9 must have \"rank\" 9"));
  list[9] = 5;
  EXPECT_THAT(open(list.dump(), small), HasSubstr("entry 9 must have \"rank\" 9"));
  EXPECT_THAT(open("[]", {.num_special_tokens = 3}), HasSubstr("--tiktoken-num-special-tokens 3"));
  EXPECT_THAT(open("[]", {.special_tokens = {"<s>"}}), HasSubstr("lacks <unk>"));
  EXPECT_THAT(open("[]", {.special_tokens = {"<s>", "<s>"}}), HasSubstr("names a token twice"));
}

}  // namespace
}  // namespace megatron
