#include "megatron/data/preprocess.h"

#include <gmock/gmock.h>
#include <zlib.h>

#include <fstream>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/tokenizers/gpt2_bpe_tokenizer.h"
#include "megatron/tokenizers/null_tokenizer.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_data.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kPreprocessGolden = source_path("tests/golden/megatron/data/");

// Each byte is an id; 256 ends documents.
class ByteTokenizer final : public Tokenizer {
 public:
  std::unique_ptr<Encoder> make_encoder() const override { return std::make_unique<Bytes>(); }
  std::string decode(std::span<const int32_t> ids) const override {
    return {ids.begin(), ids.end()};
  }
  std::string piece(int32_t id) const override { return {static_cast<char>(id)}; }
  std::optional<int32_t> id_of(std::string_view) const override { return std::nullopt; }
  int64_t vocab_size() const override { return 257; }
  std::optional<int32_t> special_id(SpecialToken) const override { return 256; }
  std::string_view type() const override { return "Bytes"; }
  std::string source() const override { return {}; }
  TokenizerDescription description() const override { return {}; }

 private:
  class Bytes final : public Encoder {
    void append(std::string_view text, std::vector<int32_t>& ids) override {
      for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    }
  };
};

// Documents hold ids as text ("1 2 3"), which makes what comes out easy to see.
class PreprocessTest : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) const {
    return directory_.write(name, content);
  }
  PreprocessConfig config(const std::string& input) const {
    PreprocessConfig config;
    config.input = input;
    config.output_prefix = (directory_.path() / "out").string();
    return config;
  }
  // "1 2|3;4": documents separated by ';', their sequences by '|'.
  std::string dataset(const std::string& suffix = "_text_document") const {
    const IndexedDataset data(directory_.path() / ("out" + suffix));
    std::string text;
    for (int64_t document = 0; document < data.num_documents(); ++document) {
      if (document > 0) text += ';';
      for (int64_t s = data.document_start(document); s < data.document_start(document + 1); ++s) {
        if (s > data.document_start(document)) text += '|';
        const TokenView tokens = data.sequence(s);
        for (int64_t i = 0; i < tokens.size(); ++i) {
          text += (i > 0 ? " " : "") + std::to_string(tokens[i]);
        }
      }
    }
    return text;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  // The ids of a text whose tokens are bytes: "79 110 101".
  static std::string ids_of(const std::string& text) {
    std::string ids;
    for (const char c : text) {
      ids += (ids.empty() ? "" : " ") + std::to_string(static_cast<unsigned char>(c));
    }
    return ids;
  }

  TemporaryDirectory directory_;
  NullTokenizer ids_{100};
  ByteTokenizer bytes_;
};

TEST_F(PreprocessTest, TheGoldenCorpusByteForByte) {
  const Gpt2BpeTokenizer tokenizer(kPreprocessGolden + "vocab.json",
                                   kPreprocessGolden + "merges.txt");
  for (const int64_t workers : {1, 2, 5}) {
    PreprocessConfig c = config(kPreprocessGolden + "corpus.jsonl");
    c.append_eod = true;
    c.workers = workers;
    const PreprocessStats stats = preprocess(c, tokenizer);
    EXPECT_EQ(stats.documents, 64);
    EXPECT_EQ(stats.bad_lines, 0);
    EXPECT_EQ(stats.tokens, 123396 / 2);
    for (const std::string ending : {"_text_document.bin", "_text_document.idx"}) {
      EXPECT_EQ(read_text(c.output_prefix + ending),
                read_text(kPreprocessGolden + "corpus" + ending));
    }
  }
}

TEST_F(PreprocessTest, EmptyDocumentsStayUnlessSkipped) {
  PreprocessConfig c = config(
      write("in.jsonl", "{\"text\": [\"1 2\"]}\n{\"text\": []}\n{\"text\": [\"3\", \"4 5\"]}\n"));
  c.append_eod = true;
  EXPECT_EQ(preprocess(c, ids_).empty_documents, 1);
  EXPECT_EQ(dataset(), "1 2 100;;3|4 5 100");
  c.skip_empty_documents = true;
  EXPECT_EQ(preprocess(c, ids_).empty_documents, 1);
  EXPECT_EQ(dataset(), "1 2 100;3|4 5 100");
}

TEST_F(PreprocessTest, EachKeyMakesADataset) {
  PreprocessConfig c = config(write("in.jsonl", R"({"b": "1 2", "a": "3"})"));
  c.json_keys = {"a", "b"};
  preprocess(c, ids_);
  EXPECT_EQ(dataset("_a_document"), "3");
  EXPECT_EQ(dataset("_b_document"), "1 2");
}

TEST_F(PreprocessTest, PartitionsDealTheLinesInTurn) {
  write("in-1.jsonl", "{\"text\": \"1\"}\n{\"text\": \"2\"}\n{\"text\": \"3\"}");
  write("in-2.jsonl", "{\"text\": \"4\"}\n{\"text\": \"5\"}\n");
  PreprocessConfig c = config((directory_.path() / "in-*.jsonl").string());
  c.partitions = 2;
  c.workers = 2;
  const PreprocessStats stats = preprocess(c, ids_);
  EXPECT_EQ(stats.documents, 5);
  EXPECT_EQ(stats.input_bytes, 5 * 14);
  EXPECT_EQ(dataset(), "1;3;5;2;4");
  c.keep_sequential_samples = true;
  preprocess(c, ids_);
  EXPECT_EQ(dataset(), "1;2;3;4;5");
}

TEST_F(PreprocessTest, ReadsGzipFiles) {
  const std::string file = (directory_.path() / "in.jsonl.gz").string();
  gzFile packed = gzopen(file.c_str(), "wb");
  gzputs(packed, "{\"text\": \"7 8\"}\n");
  gzclose(packed);
  preprocess(config(file), ids_);
  EXPECT_EQ(dataset(), "7 8");
}

TEST_F(PreprocessTest, ABadLineStopsTheRunAndLeavesNoDataset) {
  const std::string input = write("in.jsonl", "{\"text\": \"1\"}\n{\"text\": 2}\n{\"text\": 3}\n");
  for (const int64_t workers : {1, 3}) {
    PreprocessConfig c = config(input);
    c.workers = workers;
    EXPECT_EQ(message_of([&] { preprocess(c, ids_); }),
              input +
                  ":2: key \"text\" holds a number, expected a text or a list of texts; correct "
                  "the line, or skip such lines with --skip-bad-lines");
    EXPECT_THAT(files(), ElementsAre("in.jsonl"));
  }
}

TEST_F(PreprocessTest, SkippedLinesAreReportedInOrderAndCounted) {
  const std::string input =
      write("in.jsonl", "{\"text\": \"1\"}\n\n{\"text\": \"x\"}\n{\"text\": \"4\"}\n[]\n");
  PreprocessConfig c = config(input);
  c.skip_bad_lines = true;
  c.workers = 2;
  std::vector<std::string> reported;
  const PreprocessStats stats =
      preprocess(c, ids_, {.on_progress = {}, .on_bad_line = [&](const std::string& line) {
                             reported.push_back(line);
                           }});
  EXPECT_EQ(stats.bad_lines, 3);
  EXPECT_EQ(stats.documents, 2);
  EXPECT_EQ(dataset(), "1;4");
  EXPECT_THAT(reported,
              ElementsAre(HasSubstr("in.jsonl:2: the line is blank"),
                          HasSubstr("in.jsonl:3: key \"text\": NullTokenizer: \"x\" is not an id"),
                          HasSubstr("in.jsonl:5: the line holds a list")));
}

TEST_F(PreprocessTest, ALineThatIsBadForOneKeyIsLeftOutOfAll) {
  PreprocessConfig c = config(write("in.jsonl",
                                    "{\"a\": \"1\", \"b\": \"x\"}\n"
                                    "{\"a\": \"2\", \"b\": \"3\"}\n"));
  c.json_keys = {"a", "b"};
  c.skip_bad_lines = true;
  preprocess(c, ids_);
  EXPECT_EQ(dataset("_a_document"), "2");
  EXPECT_EQ(dataset("_b_document"), "3");
}

TEST_F(PreprocessTest, ReportsProgressAfterEachInterval) {
  std::string lines;
  for (int i = 0; i < 10; ++i) lines += "{\"text\": \"1\"}\n";
  PreprocessConfig c = config(write("in.jsonl", lines));
  c.log_interval = 3;
  std::vector<int64_t> documents;
  preprocess(
      c, ids_,
      {.on_progress = [&](const PreprocessStats& stats) { documents.push_back(stats.documents); },
       .on_bad_line = {}});
  EXPECT_THAT(documents, ElementsAre(3, 6, 9));
}

TEST_F(PreprocessTest, SplitSentencesMakesASequenceOfEach) {
  PreprocessConfig c = config(write("in.jsonl",
                                    "{\"text\": \"One two. Three.\"}\n"
                                    "{\"text\": [\"Four.\", \"Five! Six?\"]}\n"));
  c.split_sentences = true;
  c.append_eod = true;
  for (const int64_t workers : {1, 3}) {
    c.workers = workers;
    preprocess(c, bytes_);
    EXPECT_EQ(dataset("_text_sentence"), ids_of("One two.") + "|" + ids_of("Three.") + " 256;" +
                                             ids_of("Four.") + "|" + ids_of("Five!") + "|" +
                                             ids_of("Six?") + " 256");
  }
  c.keep_newlines = true;
  preprocess(c, bytes_);
  EXPECT_TRUE(dataset("_text_sentence").starts_with(ids_of("One two. ") + "|" + ids_of("Three.")));
}

TEST_F(PreprocessTest, CachedAndLazyAreTntidx) {
  PreprocessConfig c =
      config(write("in.jsonl", "{\"text\": [\"5 6 7\", \"8\"]}\n{\"text\": \"9\"}\n"));
  for (const std::string impl : {"cached", "lazy"}) {
    c.dataset_impl = impl;
    preprocess(c, ids_);
    EXPECT_EQ(dataset(), "5 6 7|8;9");
    const IndexedDataset data(dataset_prefix(c, "text"));
    EXPECT_EQ(data.format(), IndexFormat::kTntidx);
    EXPECT_EQ(data.dtype(), TokenDtype::kInt32);
  }
}

TEST_F(PreprocessTest, AnUnknownLanguageOfSentencesIsAProblem) {
  PreprocessConfig c = config("in.jsonl");
  c.split_sentences = true;
  c.lang = "klingon";
  EXPECT_THAT(message_of([&] { preprocess(c, ids_); }),
              AllOf(HasSubstr("--lang klingon has no built-in rules, english has"),
                    HasSubstr("tokenizers/punkt_tab/klingon")));
}

TEST_F(PreprocessTest, AnInputWithoutTokensIsAnError) {
  EXPECT_THAT(message_of([&] { preprocess(config(write("a.jsonl", "")), ids_); }),
              HasSubstr("a.jsonl: no document found (0 bad lines); nothing was written"));
  EXPECT_THAT(message_of([&] { preprocess(config(write("b.jsonl", "{\"text\": []}")), ids_); }),
              HasSubstr("b.jsonl: no text under key \"text\" has a token"));
  PreprocessConfig c = config(write("c.jsonl", "x"));
  c.skip_bad_lines = true;
  EXPECT_THAT(message_of([&] { preprocess(c, ids_); }),
              HasSubstr("no document found (1 bad lines)"));
  EXPECT_THAT(message_of([&] { preprocess(config("/nowhere.jsonl"), ids_); }),
              HasSubstr("/nowhere.jsonl: cannot open"));
  EXPECT_THAT(files(), ElementsAre("a.jsonl", "b.jsonl", "c.jsonl"));
}

TEST_F(PreprocessTest, EveryProblemOfTheConfigIsNamed) {
  PreprocessConfig c;
  c.json_keys = {"a", "a"};
  c.split_sentences = true;
  c.lang = "klingon";
  c.partitions = 0;
  c.workers = 0;
  c.log_interval = 0;
  const std::string message = message_of([&] { preprocess(c, ids_); });
  EXPECT_THAT(message, HasSubstr("--input is missing"));
  EXPECT_THAT(message, HasSubstr("--output-prefix is missing"));
  EXPECT_THAT(message, HasSubstr("--json-keys names a key twice"));
  EXPECT_THAT(message, HasSubstr("--lang klingon has no built-in rules"));
  EXPECT_THAT(message, HasSubstr("--partitions 0 must be at least 1"));
  EXPECT_THAT(message, HasSubstr("--workers 0 must be at least 1"));
  EXPECT_THAT(message, HasSubstr("--log-interval 0 must be at least 1"));
  c = config("x*");
  c.json_keys = {};
  c.partitions = 2;
  c.workers = 3;
  EXPECT_THAT(problems(c),
              ElementsAre(HasSubstr("--json-keys is empty"),
                          HasSubstr("--workers 3 must be a multiple of --partitions 2; "
                                    "use 4")));
  c = config("/nowhere/*.jsonl");
  c.partitions = c.workers = 2;
  EXPECT_THAT(message_of([&] { preprocess(c, ids_); }),
              HasSubstr("--input /nowhere/*.jsonl: no file matches"));
}

TEST_F(PreprocessTest, OpenWebTextByteForByte) {
  MG_NEEDS_SHARED("data/megatron-mmap/openwebtext-1000.jsonl.xz");
  MG_NEEDS_XZ();
  const std::string jsonl = (directory_.path() / "openwebtext.jsonl").string();
  const std::string unpack = "xz -dc '" +
                             shared_data("data/megatron-mmap/openwebtext-1000.jsonl.xz").string() +
                             "' > '" + jsonl + "'";
  ASSERT_EQ(std::system(unpack.c_str()), 0) << unpack;
  const Gpt2BpeTokenizer tokenizer(shared_data("data/megatron-mmap/gpt2-tiny-vocab.json").string(),
                                   shared_data("data/megatron-mmap/gpt2-tiny-merges.txt").string());
  PreprocessConfig c = config(jsonl);
  c.append_eod = true;
  c.workers = 2;
  preprocess(c, tokenizer);
  for (const std::string ending : {"_text_document.bin", "_text_document.idx"}) {
    EXPECT_TRUE(read_text(c.output_prefix + ending) ==
                read_text(shared_data("data/megatron-mmap/meg-gpt2-openwebtext" + ending)))
        << ending;
  }
}

class NastyPreprocessTest : public PreprocessTest {
 protected:
  void SetUp() override {
    MG_NEEDS_SHARED("data/nasty/nasty.jsonl");
    gpt2_ = std::make_unique<Gpt2BpeTokenizer>(shared_data("data/gpt2/gpt2-vocab.json").string(),
                                               shared_data("data/gpt2/gpt2-merges.txt").string());
  }
  PreprocessConfig nasty(const std::string& name) const {
    return config(shared_data("data/nasty/" + name).string());
  }
  std::unique_ptr<Gpt2BpeTokenizer> gpt2_;
};

TEST_F(NastyPreprocessTest, EveryNastyLineIsADocument) {
  const PreprocessStats stats = preprocess(nasty("nasty.jsonl"), *gpt2_);
  EXPECT_EQ(stats.documents, 200);
  EXPECT_EQ(IndexedDataset(directory_.path() / "out_text_document").num_documents(), 200);
}

TEST_F(NastyPreprocessTest, BadLinesAreSkippedAndCounted) {
  PreprocessConfig c = nasty("bad.jsonl");
  c.skip_bad_lines = true;
  const PreprocessStats stats = preprocess(c, *gpt2_);
  EXPECT_EQ(stats.documents + stats.bad_lines, 41);
  EXPECT_EQ(stats.documents, 6);  // two good ones, NaN, Infinity, a list, deep nesting
}

TEST_F(NastyPreprocessTest, AByteOrderMarkIsABadLine) {
  EXPECT_THAT(message_of([&] { preprocess(nasty("bom.jsonl"), *gpt2_); }),
              HasSubstr("bom.jsonl:1: the line starts with a UTF-8 byte order mark"));
}

TEST_F(NastyPreprocessTest, CarriageReturnsEndLines) {
  EXPECT_EQ(preprocess(nasty("crlf.jsonl"), *gpt2_).documents, 20);
}

}  // namespace
}  // namespace megatron
