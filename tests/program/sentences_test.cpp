#include <sstream>

#include "tests/program/program_test.h"

// From raw text to a trained BERT: `preprocess-data --split-sentences`, then `pretrain-bert`.
namespace megatron::program {
namespace {

using testing::HasSubstr;

class SentencesTest : public ProgramTest {
 protected:
  std::string vocabulary() const { return golden("megatron/data/bert-vocab.txt").string(); }

  // Writes the golden corpus as sentences; the prefix of the dataset.
  std::string preprocessed(const std::string& name, Words more) const {
    Words words = {"--input",          golden("megatron/data/corpus.jsonl").string(),
                   "--output-prefix",  path(name).string(),
                   "--tokenizer-type", "BertWordPieceLowerCase",
                   "--vocab-file",     vocabulary(),
                   "--workers",        "2",
                   "--split-sentences"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run("preprocess-data", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return path(name + "_text_sentence").string();
  }

  // The log of five iterations.
  std::string trained_bert(const std::string& data, const Words& more = {}) const {
    const Flags flags = golden_flags()
                            .without("--merge-file")
                            .with("--tokenizer-type", "BertWordPieceLowerCase")
                            .with("--vocab-file", vocabulary())
                            .with("--data-path", data)
                            .with("--train-iters", "5");
    Words words = flags.words();
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run("pretrain-bert", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }

  // The losses of a log, an iteration a line.
  static std::string losses_of(const std::string& log) {
    std::string losses;
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
      const size_t begin = line.find("lm loss: ");
      if (begin != std::string::npos) losses += line.substr(begin, 50) + '\n';
    }
    return losses;
  }
};

TEST_F(SentencesTest, PretrainBertReadsSplitSentences) {
  const std::string log = trained_bert(preprocessed("sentences", {}));
  EXPECT_THAT(log, HasSubstr("iteration        5/       5"));
  EXPECT_THAT(log, HasSubstr("sop loss: "));
}

TEST_F(SentencesTest, EveryFormatOfDatasetTrainsAlike) {
  const std::string want = losses_of(trained_bert(preprocessed("mmap", {})));
  EXPECT_THAT(want, HasSubstr("lm loss"));
  for (const std::string impl : {"cached", "lazy"}) {
    const std::string data = preprocessed(impl, {"--dataset-impl", impl});
    EXPECT_EQ(losses_of(trained_bert(data, {"--data-impl", impl})), want) << impl;
  }
}

}  // namespace
}  // namespace megatron::program
