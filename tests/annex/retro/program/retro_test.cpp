// `megatron retro-preprocess` as its users run it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "annex/retro/data/neighbor_table.h"
#include "megatron/core/file.h"
#include "tests/program/program_test.h"

namespace megatron::program {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class RetroTest : public ProgramTest {
 protected:
  Flags flags() const {
    const std::filesystem::path data = golden("megatron/data");
    return Flags()
        .with("--retro-workdir", path("W").string())
        .with("--retro-gpt-data-path", "1", (data / "corpus_text_document").string())
        .with("--data-cache-path", path("cache").string())
        .with("--retro-gpt-split", "90,10,0")
        .with("--split", "90,10,0")
        .with("--retro-gpt-tokenizer-type", "GPT2BPETokenizer")
        .with("--retro-gpt-vocab-file", (data / "vocab.json").string())
        .with("--retro-gpt-merge-file", (data / "merges.txt").string())
        .with("--retro-bert-tokenizer-type", "BertWordPieceLowerCase")
        .with("--retro-bert-vocab-file", (data / "bert-vocab.txt").string())
        .with("--bert-embedder-type", "hashed")
        .with("--retro-index-nfeats", "64")
        .with("--retro-index-str", "IVF16,Flat")
        .with("--retro-index-ntrain", "800")
        .with("--retro-block-size", "100")
        .with("--retro-query-nprobe", "8")
        .with("--retro-query-num-neighbors-query", "50")
        .with("--retro-query-num-neighbors-save", "4")
        .with("--retro-gpt-seq-length", "128")
        .with("--retro-gpt-chunk-length", "32")
        .with("--retro-gpt-global-batch-size", "8")
        .with("--retro-gpt-eval-interval", "5")
        .with("--retro-gpt-eval-iters", "1")
        .with("--train-samples", "80")
        .with("--global-batch-size", "8")
        .with("--eval-interval", "5")
        .with("--eval-iters", "1")
        .with("--seq-length", "128")
        .with("--retro-return-doc-ids")
        .with("--num-threads", "1");
  }
  // The directories query/<split>_<digest>, by split.
  std::map<std::string, std::filesystem::path> queries(const char* directory = "W") const {
    std::map<std::string, std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(path(directory) / "query")) {
      const std::string name = entry.path().filename().string();
      found[name.substr(0, name.find('_'))] = entry.path();
    }
    return found;
  }
};

// The neighbours are those of the samples of a training, also if one of both got relative paths.
TEST_F(RetroTest, TrainingFindsItsNeighbours) {
  const std::filesystem::path data = golden("megatron/data");
  const auto relative = [&](const char* file) {
    return std::filesystem::relative(data / file).string();
  };
  const Outcome made =
      run("retro-preprocess", flags()
                                  .with("--retro-gpt-vocab-file", relative("vocab.json"))
                                  .with("--retro-gpt-merge-file", relative("merges.txt"))
                                  .words());
  ASSERT_EQ(made.exit_code, 0) << made.err << made.out;
  const Flags training = Flags()
                             .with("--retro-workdir", path("W").string())
                             .with("--retro-add-retriever")
                             .with("--retro-gpt-chunk-length", "32")
                             .with("--data-path", "1", (data / "corpus_text_document").string())
                             .with("--data-cache-path", path("cache").string())
                             .with("--split", "90,10,0")
                             .with("--tokenizer-type", "GPT2BPETokenizer")
                             .with("--vocab-file", (data / "vocab.json").string())
                             .with("--merge-file", (data / "merges.txt").string())
                             .with("--num-layers", "6")
                             .with("--hidden-size", "32")
                             .with("--num-attention-heads", "4")
                             .with("--seq-length", "128")
                             .with("--max-position-embeddings", "128")
                             .with("--micro-batch-size", "4")
                             .with("--global-batch-size", "8")
                             .with("--train-samples", "80")
                             .with("--eval-interval", "5")
                             .with("--eval-iters", "1")
                             .with("--lr", "1e-3")
                             .with("--log-interval", "5")
                             .with("--device", "cpu")
                             .with("--num-threads", "1");
  const Outcome trained = run("pretrain-retro", training.words());
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr(" iteration       10/      10 "));
  const Outcome other = run("pretrain-retro", training.with("--eval-iters", "2").words());
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("this directory of neighbours is missing; compare"));
}

TEST_F(RetroTest, FindsNeighbours) {
  const Outcome outcome = run("retro-preprocess", flags().words());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("> start db-build"),
                                 HasSubstr("64 documents, 57 for "
                                           "training"),
                                 HasSubstr("> end query-pretraining-neighbors")));
  const auto directories = queries();
  ASSERT_EQ(directories.size(), 2u);
  EXPECT_EQ(NeighborTable(directories.at("train")).num_chunks(), 4 * 81);  // 0.5 % more than 80
  EXPECT_EQ(NeighborTable(directories.at("valid")).num_chunks(), 4 * 25);  // (10 / 5 + 1) * 8
  EXPECT_FALSE(std::filesystem::exists(path("W") / "index" / "train_emb"));
  const auto args = nlohmann::json::parse(read_text(path("W") / "args.json"));
  EXPECT_EQ(args.at("retro_gpt_chunk_length"), 32);
  EXPECT_EQ(args.at("retro_gpt_merge_file"), golden("megatron/data/merges.txt").string());
  EXPECT_EQ(args.at("train_samples"), 80);
  EXPECT_EQ(args.at("bert_embedder_type"), "hashed");

  // Two ranks, in steps, under the name of the script.
  const Flags other = flags().with("--retro-workdir", path("W2").string());
  const auto step = [&](const char* command, const char* tasks) {
    Words words = {"--nproc-per-node", "2", command};
    for (const std::string& word : other.with("--retro-tasks", tasks).words()) {
      words.push_back(word);
    }
    const Outcome done = run("launch", words);
    EXPECT_EQ(done.exit_code, 0) << done.err;
  };
  step("tools/retro/main.py", "db-build,index-train");
  step("tools/retro/preprocess_data.py", "index-add,query-pretraining-neighbors");
  for (const auto& [split, directory] : directories) {
    EXPECT_EQ(queries("W2").at(split).filename(), directory.filename());
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      EXPECT_TRUE(read_text(entry.path()) ==
                  read_text(queries("W2").at(split) / entry.path().filename()))
          << entry.path();
    }
  }

  // A directory belongs to its settings.
  const Outcome changed =
      run("retro-preprocess", flags().with("--retro-gpt-chunk-length", "64").words());
  EXPECT_EQ(changed.exit_code, 2);
  EXPECT_THAT(errors_of(changed),
              ElementsAre(AllOf(HasSubstr("retro_gpt_chunk_length was 32 when "),
                                HasSubstr("name another --retro-workdir"))));
}

TEST_F(RetroTest, SaysWhatIsWrong) {
  const auto errors = [&](const Flags& wrong) {
    const Outcome outcome = run("retro-preprocess", wrong.words());
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_FALSE(std::filesystem::exists(path("W")));
    return errors_of(outcome);
  };
  EXPECT_THAT(errors(flags().with("--eval-iters", "2").without("--retro-index-str")),
              ElementsAre("--retro-index-str is required",
                          "--eval-iters 2 and --retro-gpt-eval-iters 1 must be equal: those of the "
                          "training"));
  EXPECT_THAT(errors(flags().without("--train-samples")),
              ElementsAre(HasSubstr("--train-samples is required")));
  EXPECT_THAT(errors(flags().without("--bert-embedder-type")),
              ElementsAre(HasSubstr("--load is required: the BERT that embeds chunks")));
  EXPECT_THAT(
      errors(flags().with("--data-path", "1", "other")),
      ElementsAre(HasSubstr("--data-path must name the datasets of --retro-gpt-data-path")));
  EXPECT_THAT(errors(flags().with("--retro-index-strr", "x")),
              ElementsAre(HasSubstr("--retro-index-strr")));
}

// A BERT of 2 layers that has learned nothing.
TEST_F(RetroTest, EmbedsWithBert) {
  const std::filesystem::path data = golden("megatron/data");
  const Outcome trained =
      run("pretrain-bert", golden_flags()
                               .without("--merge-file")
                               .with("--num-layers", "2")
                               .with("--tokenizer-type", "BertWordPieceLowerCase")
                               .with("--vocab-file", (data / "bert-vocab.txt").string())
                               .with("--data-path", (data / "sentences_text_sentence").string())
                               .with("--train-iters", "1")
                               .with("--eval-iters", "0")
                               .with("--save", path("bert").string())
                               .with("--save-interval", "1")
                               .words());
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const Flags with_bert = flags()
                              .without("--bert-embedder-type")
                              .with("--load", path("bert").string())
                              .with("--output-bert-embeddings")
                              .with("--retro-bert-max-chunk-length", "32")
                              .with("--retro-index-nfeats", "32")
                              .with("--retro-index-str", "PCAR16,IVF16_HNSW8,PQ4x4np")
                              .with("--device", "cpu");
  Words words = {"--nproc-per-node", "2", "retro-preprocess"};
  for (const std::string& word : with_bert.words()) words.push_back(word);
  const Outcome outcome = run("launch", words);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const NeighborTable table(queries().at("train"));
  EXPECT_EQ(table.num_chunks(), 4 * 81);
  EXPECT_GE(table.neighbors_of(5)[3], 0);

  const Outcome wrong = run("retro-preprocess", with_bert.with("--retro-index-nfeats", "64")
                                                    .with("--retro-workdir", path("W3").string())
                                                    .words());
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(errors_of(wrong),
              ElementsAre(HasSubstr("--retro-index-nfeats 64 must be the hidden size 32")));
}

}  // namespace
}  // namespace megatron::program
