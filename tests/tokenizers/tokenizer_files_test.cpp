#include "megatron/tokenizers/tokenizer_files.h"

#include <gmock/gmock.h>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

const std::string kTokenizerFilesGolden = source_path("tests/golden/megatron/data/");
const std::string kTokenizerFilesWords = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n";

// Saves the tokenizer, moves the folder, and compares what it gives there.
void expect_travels(const TokenizerConfig& config, const std::string& text) {
  const TemporaryDirectory place;
  save_tokenizer(config, place.path() / "tokenizer");
  fs::rename(place.path() / "tokenizer", place.path() / "moved");
  const std::optional<TokenizerConfig> saved = saved_tokenizer(place.path() / "moved");
  ASSERT_TRUE(saved);
  const auto there = make_tokenizer(*saved);
  const auto here = make_tokenizer(config);
  EXPECT_EQ(there->type(), here->type());
  EXPECT_EQ(there->vocab_size(), here->vocab_size());
  EXPECT_EQ(there->encode(text), here->encode(text));
  for (const TokenizerFile& file : tokenizer_files(*saved)) {
    EXPECT_THAT(file.path.string(), HasSubstr((place.path() / "moved").string()));
  }
}

TEST(TokenizerFiles, ACopyWorksFromAnyFolder) {
  const TemporaryDirectory files;
  const std::string words = files.write("my words", kTokenizerFilesWords);
  expect_travels({.tokenizer_type = "GPT2BPETokenizer",
                  .vocab_file = kTokenizerFilesGolden + "vocab.json",
                  .merge_file = kTokenizerFilesGolden + "merges.txt"},
                 "The cat");
  expect_travels({.tokenizer_type = "GPT2BPETokenizer", .tokenizer_model = kTokenizerFilesGolden},
                 "The cat");
  expect_travels(
      {.tokenizer_type = "BertWordPieceLowerCase", .vocab_file = words, .vocab_extra_ids = 7},
      "The cat");
  expect_travels({.tokenizer_type = "NullTokenizer", .vocab_size = 12}, "1 2");
  expect_travels({.tokenizer_type = "HuggingFaceTokenizer",
                  .tokenizer_model = source_path("tests/cases/tokenizers/wordpiece.json"),
                  .tokenizer_hf_include_special_tokens = false},
                 "The cat");
}

TEST(TokenizerFiles, OfAFolderAllFilesTravel) {
  const TemporaryDirectory files;
  files.write("tokenizer.json",
              R"({"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}})");
  files.write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  files.write("model.safetensors", "not of the tokenizer");
  const TokenizerConfig config = {.tokenizer_type = "PretrainedFromHF",
                                  .tokenizer_model = files.path().string()};
  EXPECT_EQ(tokenizer_files(config).size(), 2u);
  expect_travels(config, "a<end>");
  // The same by the name of the file.
  TokenizerConfig by_file = config;
  by_file.tokenizer_model = (files.path() / "tokenizer.json").string();
  EXPECT_EQ(tokenizer_files(by_file).size(), 2u);
  expect_travels(by_file, "a<end>");
}

TEST(TokenizerFiles, ChatTemplatesTravel) {
  const TemporaryDirectory files;
  files.write("tokenizer.json",
              R"({"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}})");
  files.write("chat_template.jinja", "{{ one }}");
  fs::create_directory(files.path() / "additional_chat_templates");
  files.write("additional_chat_templates/rag.jinja", "{{ two }}");
  const TemporaryDirectory place;
  save_tokenizer({.tokenizer_type = "HuggingFaceTokenizer", .tokenizer_model = files.path()},
                 place.path() / "tokenizer");
  EXPECT_EQ(read_text(place.path() / "tokenizer/chat_template.jinja"), "{{ one }}");
  EXPECT_EQ(read_text(place.path() / "tokenizer/additional_chat_templates/rag.jinja"), "{{ two }}");
}

TEST(TokenizerFiles, LargeFilesStayWhereTheyAre) {
  const TemporaryDirectory place;
  const TokenizerConfig config = {.tokenizer_type = "GPT2BPETokenizer",
                                  .tokenizer_model = kTokenizerFilesGolden};
  save_tokenizer(config, place.path() / "tokenizer", 10);
  EXPECT_FALSE(fs::exists(place.path() / "tokenizer" / "vocab.json"));
  const std::optional<TokenizerConfig> saved = saved_tokenizer(place.path() / "tokenizer");
  ASSERT_TRUE(saved);
  EXPECT_TRUE(fs::path(saved->tokenizer_model).is_absolute());
  EXPECT_EQ(make_tokenizer(*saved)->vocab_size(), 502);
}

TEST(TokenizerFiles, AnOlderFolderIsReplaced) {
  const TemporaryDirectory place;
  const fs::path folder = place.path() / "tokenizer";
  const TokenizerConfig gpt2 = {.tokenizer_type = "GPT2BPETokenizer",
                                .tokenizer_model = kTokenizerFilesGolden};
  save_tokenizer(gpt2, folder);
  save_tokenizer({.tokenizer_type = "NullTokenizer", .vocab_size = 12}, folder);
  EXPECT_EQ(saved_tokenizer(folder)->tokenizer_type, "NullTokenizer");
  EXPECT_FALSE(fs::exists(folder / "vocab.json"));
  // Nothing else is left beside it.
  EXPECT_EQ(std::distance(fs::directory_iterator(place.path()), fs::directory_iterator()), 1);
}

TEST(TokenizerFiles, OfACheckpointInsideOrBeside) {
  const TemporaryDirectory save;
  const fs::path checkpoint = save.path() / "iter_0000010";
  fs::create_directory(checkpoint);
  EXPECT_EQ(tokenizer_of_checkpoint(checkpoint), std::nullopt);
  save_tokenizer({.tokenizer_type = "NullTokenizer", .vocab_size = 5},
                 tokenizer_folder(save.path()));
  EXPECT_EQ(tokenizer_of_checkpoint(checkpoint)->vocab_size, 5);
  save_tokenizer({.tokenizer_type = "NullTokenizer", .vocab_size = 6},
                 tokenizer_folder(checkpoint));
  EXPECT_EQ(tokenizer_of_checkpoint(checkpoint)->vocab_size, 6);
}

TEST(TokenizerFiles, OfAModelFolder) {
  const TemporaryDirectory folder;
  EXPECT_EQ(tokenizer_of_model(folder.path()), std::nullopt);
  const auto type = [&] { return tokenizer_of_model(folder.path())->tokenizer_type; };
  folder.write("spiece.model", "");
  EXPECT_EQ(type(), "GPTSentencePieceTokenizer");
  folder.write("tokenizer.model", "");
  EXPECT_EQ(type(), "Llama2Tokenizer");
  folder.write("vocab.txt", "");
  EXPECT_EQ(type(), "HuggingFaceTokenizer");
  EXPECT_EQ(tokenizer_of_model(folder.path())->tokenizer_model, folder.path().string());
  folder.write("vocab.json", "");
  folder.write("merges.txt", "");
  EXPECT_EQ(type(), "GPT2BPETokenizer");
  folder.write("checksums.crc32c", "crc32c 00000000 0 merges.txt\n");
  EXPECT_EQ(type(), "GPT2BPETokenizer");
  folder.write("merges.txt", "a b\n");
  EXPECT_THAT(message_of<FormatError>([&] { type(); }), HasSubstr("merges.txt: has 4 bytes"));
  folder.write("checksums.crc32c", "crc32c 00000000 0 tokenizer_config.json\n");
  folder.write("tokenizer_config.json", "{}");  // people edit it
  EXPECT_EQ(type(), "GPT2BPETokenizer");
}

// A digit of an id, a letter of a merge: nothing else would notice.
TEST(TokenizerFiles, EveryChangedFileOfACopyIsRefused) {
  const TemporaryDirectory place;
  const fs::path folder = place.path() / "tokenizer";
  save_tokenizer({.tokenizer_type = "GPT2BPETokenizer", .tokenizer_model = kTokenizerFilesGolden},
                 folder);
  ASSERT_TRUE(saved_tokenizer(folder));
  for (const std::string name : {"vocab.json", "merges.txt", "tokenizer_flags.json"}) {
    const std::string text = read_text(folder / name);
    for (const size_t at : {text.size() / 3, text.size() / 2, text.size() - 2}) {
      std::string changed = text;
      changed[at] = static_cast<char>(changed[at] ^ 1);
      write_text_atomically(folder / name, changed);
      EXPECT_THAT(message_of<FormatError>([&] { saved_tokenizer(folder); }),
                  HasSubstr(name + ": has "))
          << at;
    }
    write_text_atomically(folder / name, text);
  }
  ASSERT_TRUE(saved_tokenizer(folder));
  fs::remove(folder / "checksums.crc32c");  // as of older versions
  EXPECT_TRUE(saved_tokenizer(folder));
}

TEST(TokenizerFiles, AbsenceAndDamage) {
  const TemporaryDirectory place;
  EXPECT_EQ(saved_tokenizer(place.path() / "tokenizer"), std::nullopt);
  place.write("tokenizer_flags.json", "{}");
  EXPECT_THAT(message_of([&] { saved_tokenizer(place.path()); }),
              HasSubstr("tokenizer_flags.json: "));
  EXPECT_THAT(message_of([] {
                save_tokenizer({.tokenizer_type = "NullTokenizer", .vocab_size = 1},
                               "/proc/nowhere/tokenizer");
              }),
              HasSubstr("cannot create the directory"));
}

}  // namespace
}  // namespace megatron
