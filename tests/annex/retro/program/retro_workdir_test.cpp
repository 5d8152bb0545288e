#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "annex/retro/data/hdf5_file.h"
#include "annex/retro/data/retro_samples.h"
#include "annex/retro/data/work_directory.h"
#include "megatron/core/file.h"
#include "megatron/data/indexed_dataset.h"
#include "tests/program/layout_runs.h"

// `megatron pretrain-retro` on a directory of a preprocessing.
namespace megatron::program {
namespace {

using testing::HasSubstr;

const std::string kRetroWorkdirCommand = "pretrain-retro";
constexpr int64_t kChunk = 8;
constexpr int64_t kLength = 32;
constexpr int64_t kSeed = 1234;
constexpr int64_t kNeighbors = 3;
const std::string kSplit = "80,15,5";

// A directory as the preprocessing leaves it, with neighbours that mean nothing.
class RetroWorkdirTest : public LayoutTest {
 protected:
  RetroWorkdirTest() {
    std::filesystem::create_directories(directory_ / "db" / "merged");
    write_text_atomically(retro_args_file(directory_),
                          nlohmann::json{{"retro_gpt_chunk_length", kChunk},
                                         {"retro_gpt_seq_length", kLength},
                                         {"retro_gpt_seed", kSeed},
                                         {"retro_gpt_split", kSplit},
                                         {"retro_gpt_data_path", {"1", prefix_}}}
                              .dump());
    write_chunk_sources(
        directory_,
        {{.ratio = 1, .prefix = prefix_, .name = "corpus", .blocks = directory_ / "blocks"}});
    write_chunks();
    DataConfig data;
    data.data_path = {"1", prefix_};
    data.split = kSplit;
    data.data_cache_path = path("cache").string();
    const auto tokenizer =
        make_tokenizer({.tokenizer_type = "GPT2BPETokenizer",
                        .vocab_file = golden("megatron/data/vocab.json").string(),
                        .merge_file = golden("megatron/data/merges.txt").string()});
    const RetroSplits splits = build_retro_samples(
        data, kSplit, {.train = 160, .valid = 48, .test = 16}, kLength, kSeed, *tokenizer);
    for (const Split split : kSplits) {
      write_neighbors(neighbor_directory(directory_, split, splits.of(split)->digest()),
                      splits.of(split)->dataset()->num_samples() * kLength / kChunk);
    }
  }

  void write_chunks() {
    const IndexedDataset data(prefix_);
    std::vector<uint32_t> rows;
    for (int64_t document = 0; document < data.num_sequences() * 8 / 10; ++document) {
      const int64_t size = data.length(document) - 1;  // without its end
      for (int64_t begin = 0; begin < size; begin += kChunk) {
        for (const int64_t value :
             {int64_t{0}, document, begin, std::min(begin + kChunk, size), int64_t{1}}) {
          rows.push_back(static_cast<uint32_t>(value));
        }
      }
    }
    num_chunks_ = static_cast<int64_t>(rows.size()) / 5;
    Hdf5Writer writer(merged_chunks_file(directory_, ChunkPart::kTrain));
    writer.add<uint32_t>("chunks", rows, {num_chunks_, 5});
    writer.add<uint64_t>("n_written", std::vector<uint64_t>{static_cast<uint64_t>(num_chunks_)},
                         {1});
    writer.commit();
  }

  void write_neighbors(const std::filesystem::path& directory, int64_t count) const {
    std::filesystem::create_directories(directory);
    for (const Block& block : blocks_of(count, 100, directory)) {
      std::vector<int64_t> ids;
      for (int64_t i = block.begin * kNeighbors; i < block.end * kNeighbors; ++i) {
        ids.push_back(i % 7 == 6 ? -1 : i * 31 % num_chunks_);
      }
      Hdf5Writer writer(block.path);
      writer.add<int64_t>("neighbors", ids, {block.size(), kNeighbors});
      writer.commit();
    }
  }

  Flags flags() const {
    return golden_flags()
        .with("--data-path", "1", prefix_)
        .with("--num-layers", "3")
        .with("--retro-workdir", directory_.string());
  }
  Flags retro() const {
    return flags().with("--retro-add-retriever").with("--retro-layer-numbers", "2", "3");
  }

  const std::filesystem::path directory_ = path("workdir");
  const std::string prefix_ = golden("megatron/data/corpus_text_document").string();
  int64_t num_chunks_ = 0;
};

TEST_F(RetroWorkdirTest, TrainsOnRetrievedNeighbours) {
  const std::vector<Metrics> want = trained(retro(), {}, "one", kRetroWorkdirCommand);
  ASSERT_GE(want.size(), 20u);
  EXPECT_LT(want[19].at("lm loss"), want.front().at("lm loss") - 0.2);
  expect_equal(trained(retro(), {.tp = 2}, "tp", kRetroWorkdirCommand), want, "tp");
  expect_equal(trained(retro(), {.dp = 2}, "dp", kRetroWorkdirCommand), want, "dp");
  // Other neighbours are other losses.
  const auto differs = [&](const Flags& other, const std::string& name) {
    EXPECT_NE(trained(other, {}, name, kRetroWorkdirCommand)[19].at("lm loss"),
              want[19].at("lm loss"))
        << name;
  };
  differs(retro().with("--retro-num-neighbors", "3"), "three");
  differs(retro().with("--retro-pad-missing", "eod"), "eod");
}

TEST_F(RetroWorkdirTest, TheBaselineReadsTheSamplesOfTheGpt) {
  const std::vector<Metrics> want =
      trained(flags().without("--retro-workdir"), {}, "gpt", "pretrain-gpt");
  expect_equal(trained(flags(), {}, "baseline", kRetroWorkdirCommand), want, "baseline");
}

TEST_F(RetroWorkdirTest, OtherSamplesAreRefused) {
  const auto errors = [&](const Flags& other) {
    return run(kRetroWorkdirCommand, other.words()).err;
  };
  EXPECT_THAT(errors(retro().with("--seed", "5")),
              HasSubstr("--seed 5 differs from the preprocessing of --retro-workdir"));
  EXPECT_THAT(errors(retro().with("--retro-gpt-chunk-length", "16")),
              HasSubstr("--retro-gpt-chunk-length 16 differs"));
  EXPECT_THAT(errors(retro().with("--retro-num-neighbors", "4")),
              HasSubstr("--retro-num-neighbors 4 must not exceed the 3"));
  EXPECT_THAT(errors(retro().with("--train-iters", "30")), HasSubstr("of neighbours is missing"));
  EXPECT_THAT(errors(retro().with("--retro-workdir", path("none").string())),
              HasSubstr("has no args.json"));
  EXPECT_THAT(errors(retro().with("--retro-neighbor-dirs", "all=x")),
              HasSubstr("--retro-neighbor-dirs all=x names no split"));
}

// config.json of a later version: names of data, samples and tokenizer need not be given.
TEST_F(RetroWorkdirTest, AProjectOfALaterVersionNamesItsTraining) {
  const std::vector<Metrics> want = trained(retro(), {}, "want", kRetroWorkdirCommand);
  namespace fs = std::filesystem;
  const fs::path project = path("project");
  fs::create_directories(project / "db");
  fs::create_directory_symlink(golden("megatron/data"), project / "data");
  fs::rename(directory_ / "db" / "merged", project / "db" / "merged");
  fs::rename(directory_ / "query", project / "query");
  write_text_atomically(project / "db" / "indexed_dataset_infos.json",
                        nlohmann::json{{{"ratio", 1},
                                        {"prefix", "corpus_text_document"},
                                        {"n_docs", 1},
                                        {"n_docs_train", 1},
                                        {"n_chunks", 1},
                                        {"n_chunks_train", 1},
                                        {"n_chunks_invalid", 0},
                                        {"n_chunks_sampled", 1}}}
                            .dump());
  nlohmann::json neighbors = {{"test", nullptr}};
  for (const auto& entry : fs::directory_iterator(project / "query")) {
    const std::string name = entry.path().filename().string();
    neighbors[name.substr(0, name.find('_'))] = name;
  }
  write_text_atomically(project / "config.json",
                        nlohmann::json{{"retro_gpt_chunk_length", kChunk},
                                       {"retro_gpt_data_path", {"1", "corpus_text_document"}},
                                       {"retro_gpt_eval_interval", 10},
                                       {"retro_gpt_eval_iters", 2},
                                       {"retro_gpt_global_batch_size", 8},
                                       {"retro_gpt_merge_file", "data/merges.txt"},
                                       {"retro_gpt_seed", kSeed},
                                       {"retro_gpt_seq_length", kLength},
                                       {"retro_gpt_split", kSplit},
                                       {"retro_gpt_tokenizer_model", nullptr},
                                       {"retro_gpt_tokenizer_type", "GPT2BPETokenizer"},
                                       {"retro_gpt_train_samples", 160},
                                       {"retro_gpt_vocab_file", "data/vocab.json"},
                                       {"retro_gpt_data_cache_path", path("cache").string()},
                                       {"retro_neighbor_dirs", neighbors}}
                            .dump());
  Flags named = retro().without("--retro-workdir").with("--retro-project-dir", project.string());
  for (const char* flag :
       {"--data-path", "--seq-length", "--max-position-embeddings", "--eval-interval",
        "--eval-iters", "--global-batch-size", "--train-iters", "--seed", "--tokenizer-type",
        "--vocab-file", "--merge-file", "--lr-decay-iters", "--lr-warmup-iters"}) {
    named = named.without(flag);
  }
  named = named.with("--lr-decay-samples", "160").with("--lr-warmup-samples", "32");
  const std::vector<Metrics> got = trained(named, {}, "project", kRetroWorkdirCommand);
  ASSERT_GE(got.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    if (!want[i].contains("lm loss")) continue;
    EXPECT_NEAR(got[i].at("lm loss"), want[i].at("lm loss"), 1e-5) << i;
  }
  const Outcome other = run(kRetroWorkdirCommand, named.with("--seq-length", "16").words());
  EXPECT_THAT(other.err, HasSubstr("--seq-length 16 differs from --retro-project-dir"));
  const Outcome missing =
      run(kRetroWorkdirCommand, named.with("--retro-project-dir", "none").words());
  EXPECT_THAT(missing.err, HasSubstr("--retro-project-dir none: has no config.json"));
}

// Fewer samples than the neighbours are of, whose directories have other names.
TEST_F(RetroWorkdirTest, DirectoriesOfNeighboursMayBeNamed) {
  Words words;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ / "query")) {
    const std::string name = entry.path().filename().string();
    words.push_back(name.substr(0, name.find('_')) + "=" + entry.path().string());
  }
  const Flags shorter =
      retro().with("--train-iters", "2").with_words("--retro-neighbor-dirs", words);
  EXPECT_THAT(run(kRetroWorkdirCommand, shorter.words()).err, HasSubstr("but the samples have"));
  const Flags unverified = shorter.with("--retro-no-verify-neighbor-count");
  EXPECT_GE(trained(unverified, {}, "unverified", kRetroWorkdirCommand).size(), 2u);
}

}  // namespace
}  // namespace megatron::program
