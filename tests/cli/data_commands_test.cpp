#include <gmock/gmock.h>
#include <zlib.h>

#include <fstream>

#include "megatron/cli/preprocess_data.h"
#include "megatron/cli/train_tokenizer.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/parts.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/tokenizers/gpt2_bpe_tokenizer.h"
#include "tests/support/captured_output.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using WordList = std::vector<std::string>;

const std::string kGolden = source_path("tests/golden/megatron/data/");

class DataCommandsTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  // What the command says on standard output and error, or throws.
  std::string run(int (*command)(std::span<const std::string>), const WordList& words) const {
    CapturedStdout captured_out;
    CapturedStderr captured_err;
    std::string thrown;
    try {
      EXPECT_EQ(command(words), 0);
    } catch (const Error& error) {
      thrown = error.what();
    }
    const std::string out = captured_out.text();
    return thrown + out + captured_err.text();
  }

  TemporaryDirectory directory_;
};

TEST_F(DataCommandsTest, PreprocessDataMakesTheGoldenFiles) {
  const std::string said =
      run(preprocess_data,
          {"--input", kGolden + "corpus.jsonl", "--output-prefix", path("out"), "--tokenizer-type",
           "GPT2BPETokenizer", "--vocab-file", kGolden + "vocab.json", "--merge-file",
           kGolden + "merges.txt", "--append-eod", "--workers", "2", "--dataset-impl", "mmap"});
  EXPECT_THAT(said, HasSubstr("wrote " + path("out") + "_text_document.bin and .idx"));
  EXPECT_THAT(said, HasSubstr("64 documents, 61698 tokens"));
  EXPECT_THAT(said, HasSubstr("Processed 64 documents ("));
  for (const std::string ending : {"_text_document.bin", "_text_document.idx"}) {
    EXPECT_EQ(read_text(path("out") + ending), read_text(kGolden + "corpus" + ending));
  }
}

TEST_F(DataCommandsTest, PreprocessDataCountsWhatItLeavesOut) {
  const std::string input = write("in.jsonl", "{\"text\": \"1\"}\nbad\n{\"text\": []}\n");
  const WordList words = {"--input",          input,           "--output_prefix", path("out"),
                          "--tokenizer-type", "NullTokenizer", "--vocab-size",    "10",
                          "--skip-bad-lines"};
  const std::string said = run(preprocess_data, words);
  EXPECT_THAT(said,
              HasSubstr("warning: " + input + ":2: column 1: expected a JSON value; line left"));
  EXPECT_THAT(said, HasSubstr("warning: bad lines left out: 1"));
  EXPECT_THAT(said, HasSubstr("warning: documents without tokens: 1, kept as empty documents"));
}

TEST_F(DataCommandsTest, PreprocessDataNamesEveryProblem) {
  const std::string said =
      run(preprocess_data, {"--split-sentences", "--lang", "klingon", "--dataset-impl", "eager"});
  EXPECT_THAT(said, HasSubstr("--input is missing"));
  EXPECT_THAT(said, HasSubstr("--output-prefix is missing"));
  EXPECT_THAT(said, HasSubstr("--lang klingon has no built-in rules, english has"));
  EXPECT_THAT(said, HasSubstr("--dataset-impl eager is not known; use one of mmap, cached, lazy"));
  EXPECT_THAT(run(preprocess_data, {"--input", "x", "--output-prefix", "y"}),
              HasSubstr("--vocab-file and --merge-file are missing"));
}

TEST_F(DataCommandsTest, PreprocessDataSplitsSentencesForBert) {
  const std::string input =
      write("in.jsonl", "{\"text\": \"Mr. Fox is quick. The dog is lazy! Is it?\"}\n");
  WordList words = {"--input",          input,
                    "--output-prefix",  path("out"),
                    "--tokenizer-type", "BertWordPieceLowerCase",
                    "--vocab",          kGolden + "bert-vocab.txt",
                    "--json-key",       "text"};
  EXPECT_THAT(run(preprocess_data, words),
              AllOf(HasSubstr("pretrain-bert reads sentences; give --split-sentences"),
                    HasSubstr("wrote " + path("out") + "_text_document.bin")));
  words.push_back("--split-sentences");
  EXPECT_THAT(run(preprocess_data, words),
              AllOf(HasSubstr("wrote " + path("out") + "_text_sentence.bin"),
                    Not(HasSubstr("pretrain-bert"))));
  const IndexedDataset data(path("out_text_sentence"));
  EXPECT_EQ(data.num_documents(), 1);
  EXPECT_EQ(data.num_sequences(), 3);
}

TEST_F(DataCommandsTest, TrainTokenizerReadsTextAndJsonLines) {
  const std::string text = write("a.txt", "low lower lowest low low\n");
  const std::string lines = write("b.jsonl", "{\"text\": \"new newer newest\"}\n");
  const std::string packed = path("c.jsonl.gz");
  gzFile file = gzopen(packed.c_str(), "wb");
  gzputs(file, "{\"text\": \"wide wider widest\"}\n");
  gzclose(file);
  const std::string said = run(train_tokenizer, {"--input", text, lines, packed, "--output-dir",
                                                 path("tok"), "--vocab-size", "270"});
  EXPECT_THAT(said, HasSubstr("vocab.json and merges.txt: 270 ids, 13 merges"));
  const auto tokenizer = Gpt2BpeTokenizer::from_directory(path("tok"));
  EXPECT_EQ(tokenizer->vocab_size(), 270);
  EXPECT_EQ(tokenizer->eod(), 269);
  EXPECT_LT(tokenizer->encode("low newer wider").size(), 10u);
}

TEST_F(DataCommandsTest, TrainTokenizerLearnsPiecesOfBert) {
  const std::string text = write("a.txt", "Low lower lowest, low low!\n");
  const std::string said =
      run(train_tokenizer, {"--input", text, "--output-dir", path("tok"), "--vocab-size", "30",
                            "--tokenizer-type", "BertWordPieceLowerCase"});
  EXPECT_THAT(said, HasSubstr("vocab.txt: 26 ids"));
  EXPECT_THAT(said, HasSubstr("the text gives 26 ids, fewer than --vocab-size 30"));
  const auto tokenizer = make_tokenizer(
      {.tokenizer_type = "BertWordPieceLowerCase", .vocab_file = path("tok/vocab.txt")});
  EXPECT_EQ(tokenizer->encode("LOW").size(), 1u);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("Lowest")), "lowest");
}

TEST_F(DataCommandsTest, TrainTokenizerLearnsSentencePieceModels) {
  if (!kHasSentencePiece) GTEST_SKIP() << "needs MG_SENTENCEPIECE";
  std::string text;
  for (int i = 0; i < 50; ++i) text += "the lower cats and the lowest dogs are new\n";
  const std::string file = write("a.txt", text);
  for (const std::string kind : {"bpe", "unigram"}) {
    const std::string said =
        run(train_tokenizer,
            {"--input", file, "--output-dir", path(kind), "--vocab-size", "276", "--tokenizer-type",
             "SentencePieceTokenizer", "--sentencepiece-model-type", kind});
    EXPECT_THAT(said, HasSubstr("tokenizer.model: 276 ids"));
    const auto tokenizer = make_tokenizer({.tokenizer_type = "GPTSentencePieceTokenizer",
                                           .tokenizer_model = path(kind + "/tokenizer.model")});
    EXPECT_EQ(tokenizer->vocab_size(), 276);
    EXPECT_LT(tokenizer->encode("the lowest dogs").size(), 30u);
    // Characters that the text did not have become bytes.
    EXPECT_EQ(tokenizer->decode(tokenizer->encode("the \u4E2D dogs")), "the \u4E2D dogs");
  }
  EXPECT_THAT(run(train_tokenizer, {"--input", file, "--output-dir", path("x"), "--vocab-size",
                                    "100000", "--tokenizer-type", "SentencePieceTokenizer"}),
              HasSubstr("SentencePiece cannot learn --vocab-size 100000 pieces from 50 lines"));
}

TEST_F(DataCommandsTest, PreprocessDataTakesEachKindOfTokenizer) {
  if (!kHasPcre2) GTEST_SKIP() << "needs MG_PCRE2";
  const std::string input = write("in.jsonl", "{\"text\": \"the lower cats\"}\n{\"text\": \"\"}\n");
  const std::string text = write("a.txt", "the lower cats and the lowest dogs are new new new\n");
  run(train_tokenizer, {"--input", text, "--output-dir", path("bert"), "--vocab-size", "60",
                        "--tokenizer-type", "BertWordPieceLowerCase"});
  const auto tokens = [&](WordList words) {
    const WordList common = {"--input",   input, "--output-prefix", path("out"), "--append-eod",
                             "--workers", "2"};
    words.insert(words.end(), common.begin(), common.end());
    return run(preprocess_data, words);
  };
  EXPECT_THAT(tokens({"--tokenizer-type", "BertWordPieceLowerCase", "--vocab",
                      path("bert/vocab.txt"), "--vocab-extra-ids", "10"}),
              HasSubstr("2 documents, "));
  EXPECT_THAT(tokens({"--tokenizer-type", "PretrainedFromHF", "--tokenizer-name-or-path",
                      source_path("tests/cases/tokenizers/unigram.json")}),
              HasSubstr("2 documents, "));
  EXPECT_THAT(tokens({"--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model",
                      source_path("tests/cases/tokenizers/bpe-prefix.json")}),
              HasSubstr("--tokenizer-type HuggingFaceTokenizer has no eod token in "));
}

TEST_F(DataCommandsTest, TrainTokenizerWarnsWhenTheTextIsTooSmall) {
  EXPECT_THAT(run(train_tokenizer, {"--input", write("a.txt", "abab abab"), "--output-dir",
                                    path("tok"), "--vocab-size", "1000"}),
              HasSubstr("warning: the text gives 259 ids, fewer than --vocab-size 1000"));
}

TEST_F(DataCommandsTest, TrainTokenizerErrors) {
  const std::string said = run(train_tokenizer, {});
  EXPECT_THAT(said, HasSubstr("--input is missing"));
  EXPECT_THAT(said, HasSubstr("--output-dir is missing"));
  EXPECT_THAT(said, HasSubstr("--vocab-size is missing"));
  const auto train = [&](const std::string& input) {
    return run(train_tokenizer,
               {"--input", input, "--output-dir", path("tok"), "--vocab-size", "300"});
  };
  EXPECT_THAT(train(write("a.jsonl", "{\"text\": \"x\"}\n{}\n")),
              HasSubstr("a.jsonl:2: the object has no key \"text\"; correct the line"));
  EXPECT_THAT(train(write("a.txt.gz", "")), HasSubstr("unpack the file first"));
  EXPECT_THAT(
      run(train_tokenizer, {"--tokenizer-type", "TikTokenizer", "--character-coverage", "2"}),
      AllOf(HasSubstr("--tokenizer-type TikTokenizer cannot be learned; use one of GPT2BPE"),
            HasSubstr("--character-coverage 2 must be above 0 and at most 1")));
  EXPECT_THAT(train("/nowhere.txt"), HasSubstr("/nowhere.txt: cannot open"));
  EXPECT_FALSE(std::filesystem::exists(path("tok")));
}

}  // namespace
}  // namespace megatron::cli
