// Random Unicode through every tokenizer. MG_FUZZ_STRINGS sets the number of texts for each.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <random>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/tokenizers/bert_words.h"
#include "megatron/tokenizers/blank_words.h"
#include "megatron/tokenizers/hf/model.h"
#include "megatron/tokenizers/hf/model_file.h"
#include "megatron/tokenizers/hf/normalizer.h"
#include "megatron/tokenizers/hf/text_cuts.h"
#include "megatron/tokenizers/regex.h"
#include "megatron/tokenizers/sentence_piece_model.h"
#include "megatron/tokenizers/sentence_piece_settings.h"
#include "megatron/tokenizers/sentence_piece_trainer.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/unicode_text.h"
#include "tests/support/rounds.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"
#include "tests/tokenizers/base64_of.h"
#include "tests/tokenizers/random_texts.h"

namespace megatron {
namespace {

int64_t num_strings() { return random_texts(2000); }

class RandomText : public testing::Test {
 protected:
  // The text comes back from a tokenizer that loses nothing.
  enum class Way { kOneWay, kThereAndBack };

  static void expect_sound(const TokenizerConfig& config, Way way = Way::kOneWay) {
    const auto tokenizer = make_tokenizer(config);
    const std::unique_ptr<Encoder> encoder = tokenizer->make_encoder();
    RandomTexts texts(7);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < num_strings(); ++i) {
      const std::string text = texts.next();
      ids.clear();
      encoder->append(text, ids);
      // A cold cache gives what a warm one gives.
      ASSERT_EQ(ids, tokenizer->encode(text)) << text;
      for (const int32_t id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer->vocab_size()) << id;
      const std::string back = tokenizer->decode(ids);
      ASSERT_TRUE(way == Way::kOneWay || back == text) << text << "\ncame back as\n" << back;
    }
  }
  // cut(text, emit) is the plain definition of words.
  template <class Cut>
  static void expect_equals_words(const Tokenizer& tokenizer, const Cut& cut) {
    const std::unique_ptr<Encoder> encoder = tokenizer.make_encoder();
    RandomTexts texts(13);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < num_strings(); ++i) {
      const std::string text = texts.next();
      std::vector<int32_t> want;
      cut(text, [&](const std::string& word) {
        const std::vector<int32_t> part = tokenizer.encode(word);
        want.insert(want.end(), part.begin(), part.end());
      });
      ids.clear();
      encoder->append(text, ids);
      ASSERT_EQ(ids, want) << text;
    }
  }
  static TokenizerConfig hugging_face(const std::string& name) {
    return {.tokenizer_type = "HuggingFaceTokenizer",
            .tokenizer_model = source_path("tests/cases/tokenizers/" + name + ".json"),
            .tokenizer_hf_include_special_tokens = false};
  }
  std::string sentence_piece(bool unigram) const {
    SentencePieceModelTrainer trainer;
    for (int i = 0; i < 30; ++i) trainer.add_text("the cat sat on the mat, and the dog did not\n");
    return files_.write("t.model", trainer.train({.unigram = unigram, .vocab_size = 275}));
  }

  TemporaryDirectory files_;
};

TEST_F(RandomText, Gpt2) {
  expect_sound({.tokenizer_type = "GPT2BPETokenizer",
                .tokenizer_model = source_path("tests/golden/megatron/data")},
               Way::kThereAndBack);
}

TEST_F(RandomText, Bert) {
  const std::string words = files_.write(
      "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##a\nb\n##b\nc\n##c\n.\n,\n!\n\u4E2D\n");
  expect_sound({.tokenizer_type = "BertWordPieceLowerCase", .vocab_file = words});
  expect_sound({.tokenizer_type = "BertWordPieceCase", .vocab_file = words});
}

// Words found one by one, each encoded alone, are what the fast path through a text gives.
TEST_F(RandomText, Gpt2EqualsItsWordsOneByOne) {
  const auto tokenizer =
      make_tokenizer({.tokenizer_type = "GPT2BPETokenizer",
                      .tokenizer_model = source_path("tests/golden/megatron/data")});
  const Regex pattern(
      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+");
  expect_equals_words(*tokenizer, [&](const std::string& text, const auto& emit) {
    std::vector<Regex::Match> words;
    pattern.find_all(text, words);
    for (const Regex::Match& word : words) emit(text.substr(word.begin, word.end - word.begin));
  });
}

TEST_F(RandomText, BertEqualsItsWordsOneByOne) {
  const std::string vocabulary = files_.write("vocab.txt",
                                              "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##a\nb\n##"
                                              "b\nB\ne\n##e\ns\n##s\n.\n,\n!\n'\n\u4E2D\n");
  for (const bool lower : {false, true}) {
    const auto tokenizer =
        make_tokenizer({.tokenizer_type = lower ? "BertWordPieceLowerCase" : "BertWordPieceCase",
                        .vocab_file = vocabulary});
    const BertWords words(lower);
    expect_equals_words(*tokenizer,
                        [&](const std::string& text, const auto& emit) { words.cut(text, emit); });
  }
}

TEST_F(RandomText, SentencePiece) {
  const std::string bpe = sentence_piece(false);
  expect_sound(
      {.tokenizer_type = "SentencePieceTokenizer", .tokenizer_model = bpe, .vocab_extra_ids = 3});
  expect_sound({.tokenizer_type = "Llama2Tokenizer", .tokenizer_model = bpe});
  expect_sound(
      {.tokenizer_type = "GPTSentencePieceTokenizer", .tokenizer_model = sentence_piece(true)});
}

// A text cut into words gives what the library makes of it in one go.
TEST_F(RandomText, SentencePieceWordsEqualTheWholeText) {
  const std::string trained = read_text(sentence_piece(false));
  // Two messages, one behind the other, are one: the normalizer (field 3) without a table of
  // characters (2), and with or without removal of blanks (4).
  for (const std::string& normalizer :
       {std::string("\x1A\x04\x12\x00\x20\x00", 6), std::string("\x1A\x04\x12\x00\x20\x01", 6)}) {
    const std::string file = files_.write("words.model", trained + normalizer);
    const SentencePieceModel model(file);
    const auto tokenizer =
        make_tokenizer({.tokenizer_type = "GPTSentencePieceTokenizer", .tokenizer_model = file});
    const std::unique_ptr<Encoder> encoder = tokenizer->make_encoder();
    ASSERT_TRUE(model.has_words("the cat"));
    EXPECT_FALSE(model.has_words("the \u2581cat"));
    RandomTexts texts(17);
    std::vector<int32_t> ids;
    std::vector<int32_t> want;
    for (int64_t i = 0; i < num_strings(); ++i) {
      const std::string text = texts.next() + (i % 3 == 0 ? "  the cat sat " : "");
      ids.clear();
      want.clear();
      encoder->append(text, ids);
      model.encode(text, want);
      ASSERT_EQ(ids, want) << text;
    }
  }
}

// The library rounds the score of a text so far, so a word may be divided in another way the later
// it comes; texts are long, and words of one letter have many divisions of equal score.
TEST_F(RandomText, SentencePieceUnigramWordsEqualTheWholeText) {
  EXPECT_FALSE(SentencePieceModel(sentence_piece(true)).has_words("the cat"));  // pieces of bytes
  SentencePieceModelTrainer trainer;
  std::mt19937_64 random(31);
  for (int line = 0; line < 300; ++line) {
    std::string sentence = "the cat";
    for (int i = 0; i < 40; ++i) sentence += "ehtnoacs  "[random() % 10];
    trainer.add_text(sentence + "\n");
  }
  const std::string file = files_.write(
      "words.model", trainer.train({.unigram = true, .vocab_size = 70, .byte_fallback = false}));
  const SentencePieceModel model(file);
  ASSERT_TRUE(model.has_words("the cat"));
  ASSERT_NE(model.unigram_words(), nullptr);
  const auto tokenizer =
      make_tokenizer({.tokenizer_type = "GPTSentencePieceTokenizer", .tokenizer_model = file});
  const std::unique_ptr<Encoder> encoder = tokenizer->make_encoder();
  const std::vector<std::string> bits = {" the cat sat on the mat",
                                         " tttt",
                                         " \n ",
                                         "  ",
                                         "\t",
                                         "\u00A8 \u0308",
                                         " aaaaaaaaa ",
                                         " ontheontheonthe",
                                         "\x80 ",
                                         " \xE4\xB8",
                                         "\u3000",
                                         "thethe dogdog ",
                                         std::string(1, '\0')};
  RandomTexts texts(29);
  std::vector<int32_t> ids;
  std::vector<int32_t> want;
  for (int64_t i = 0; i < num_strings(); ++i) {
    std::string text;
    for (int64_t parts = i % 100 == 0 ? 500 : i % 7; parts > 0; --parts) {
      text += texts.next() + bits[static_cast<size_t>(i + parts) % bits.size()];
    }
    ids.clear();
    want.clear();
    encoder->append(text, ids);
    model.encode(text, want);
    ASSERT_EQ(ids, want) << text;
  }
}

TEST_F(RandomText, HuggingFace) {
  expect_sound(hugging_face("bpe-llama3"), Way::kThereAndBack);
  for (const char* name : {"bpe-byte-fallback", "bpe-prefix", "bpe-suffix", "unigram", "wordpiece",
                           "split-bert", "split-bloom", "split-gpt4o", "split-lookahead",
                           "split-whitespace", "split-punctuation", "split-merged-with-next"}) {
    SCOPED_TRACE(name);
    expect_sound(hugging_face(name));
  }
}

// What is cut before it is normalised has the ids of the whole text, which a normalizer that is not
// known to work by words always gets.
TEST_F(RandomText, HuggingFacePartsEqualTheWholeText) {
  const auto expect_equal = [&](nlohmann::json json) {
    const auto model = hf::make_model(hf::read_model(json["model"].dump()));
    const hf::TextCuts cuts(json["normalizer"], json["pre_tokenizer"], *model, {});
    ASSERT_TRUE(cuts.may_cut("the cat"));
    const auto open = [&](const char* name) {
      return make_tokenizer({.tokenizer_type = "HuggingFaceTokenizer",
                             .tokenizer_model = files_.write(name, json.dump()),
                             .tokenizer_hf_include_special_tokens = false});
    };
    const auto by_parts = open("parts.json");
    nlohmann::json& normalizer = json["normalizer"];
    const nlohmann::json no_change = {
        {"type", "Replace"}, {"pattern", {{"String", "\uE123\uE124\uE125"}}}, {"content", ""}};
    nlohmann::json steps = nlohmann::json::array({no_change});
    if (!normalizer.is_null()) steps.insert(steps.begin(), normalizer);
    normalizer = {{"type", "Sequence"}, {"normalizers", steps}};
    const auto whole = open("whole.json");
    const std::unique_ptr<Encoder> encoder = by_parts->make_encoder();
    const std::vector<std::string> bits = {
        "\r\n",     " \u0301a", "\u0600 b", "  ",       "\n\n ",  "a \n",
        "\u2581",   " wordy",   "wordy ",   "<mask>",   "[MASK]", " the cat ",
        "e\u0301 ", "\u200D ",  " \uFE0F",  "\u00A8 x", "\u0903 "};
    RandomTexts texts(19);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < num_strings(); ++i) {
      const std::string& bit = bits[static_cast<size_t>(i) % bits.size()];
      const std::string text = texts.next() + bit + texts.next();
      ids.clear();
      encoder->append(text, ids);
      ASSERT_EQ(ids, whole->encode(text)) << text;
    }
  };
  const auto file = [](const char* name) {
    return nlohmann::json::parse(read_text(hugging_face(name).tokenizer_model));
  };
  expect_equal(file("wordpiece"));
  expect_equal(file("split-bert"));
  // As Llama-2 has it. The file has merges that reach into the next word.
  nlohmann::json llama2 = file("bpe-byte-fallback");
  const auto model = hf::make_model(hf::read_model(llama2["model"].dump()));
  EXPECT_FALSE(hf::TextCuts(llama2["normalizer"], nullptr, *model, {}).may_cut("the cat"));
  nlohmann::json merges = nlohmann::json::array();
  for (const nlohmann::json& merge : llama2["model"]["merges"]) {
    if (keeps_to_words(merge[0].get<std::string>() + merge[1].get<std::string>())) {
      merges.push_back(merge);
    }
  }
  llama2["model"]["merges"] = merges;
  expect_equal(llama2);
  // As T5 has it.
  nlohmann::json t5 = file("unigram");
  t5["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "WhitespaceSplit"}},
        {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}}}}};
  t5["normalizer"] = nullptr;
  expect_equal(t5);
  const std::string trained = read_text(sentence_piece(true));
  const std::string charsmap(read_sentence_piece_settings(trained).charsmap);
  t5["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", base64_of(charsmap)}};
  expect_equal(t5);
}

TEST(RandomTextNormalizer, NfcInPiecesIsNfcOfTheWhole) {
  const hf::Normalizer normalizer = hf::make_normalizer({{"type", "NFC"}});
  RandomTexts texts(23);
  const std::u32string marks = U"\u0301\u0323\u0345\u3099\u11A8\u1161\uAC00\u304B\u2126\u0344e";
  for (int64_t i = 0; i < num_strings(); ++i) {
    std::string text = texts.next();
    for (int64_t k = 0; k < i % 4; ++k) {
      append_utf8(text, marks[static_cast<size_t>(i / 4 + k * 7) % marks.size()]);
    }
    text += texts.next();
    const std::string want = to_utf8(normalized(code_points(text), NormalForm::kNfc));
    const std::string given = text;
    normalizer(text);
    ASSERT_EQ(text, want) << given;
  }
}

TEST_F(RandomText, Tik) {
  nlohmann::json list = nlohmann::json::array();
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = base64_of(std::string(1, static_cast<char>(byte)));
    list.push_back({{"rank", byte}, {"token_bytes", text}});
  }
  const std::string file = files_.write("list.json", list.dump());
  for (const char* pattern : {"v1", "v2"}) {
    expect_sound({.tokenizer_type = "TikTokenizer",
                  .tokenizer_model = file,
                  .vocab_size = 1256,
                  .tiktoken_pattern = pattern},
                 Way::kThereAndBack);
  }
}

// What is no UTF-8 reaches a tokenizer only from a command line; it must not stop it.
TEST_F(RandomText, BytesThatAreNoUtf8) {
  std::mt19937_64 random(11);
  const auto tokenizer = make_tokenizer(hugging_face("bpe-llama3"));
  const auto gpt2 = make_tokenizer({.tokenizer_type = "GPT2BPETokenizer",
                                    .tokenizer_model = source_path("tests/golden/megatron/data")});
  for (int64_t i = 0; i < rounds(500); ++i) {
    std::string bytes;
    for (uint64_t count = random() % 40; count > 0; --count) {
      bytes += static_cast<char>(random() % 256);
    }
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(bytes)), with_valid_utf8(bytes));
    EXPECT_EQ(gpt2->decode(gpt2->encode(bytes)), with_valid_utf8(bytes));
  }
}

}  // namespace
}  // namespace megatron
