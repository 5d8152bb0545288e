// All tasks on the golden corpus of 64 documents, which has about a thousand chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "annex/retro/data/neighbor_table.h"
#include "annex/retro/data/retro_samples.h"
#include "annex/retro/preprocess/chunk_builder.h"
#include "annex/retro/preprocess/chunk_text.h"
#include "annex/retro/preprocess/index_builder.h"
#include "annex/retro/preprocess/neighbor_index.h"
#include "annex/retro/preprocess/neighbor_query.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron::retro {
namespace {

using testing::HasSubstr;

constexpr int64_t kFeatures = 64;
constexpr SampleCounts kSamples = {.train = 60, .valid = 8};

struct Interrupted : Error {
  Interrupted() : Error("interrupted") {}
};

// Throws at call number `fatal`, as if the program was killed there.
class FragileEmbedder final : public Embedder {
 public:
  explicit FragileEmbedder(int64_t fatal) : fatal_(fatal) {}
  int64_t dimension() const override { return kFeatures; }
  std::vector<float> embed(std::span<const std::string> texts) const override {
    const std::scoped_lock lock(mutex_);
    if (calls_++ == fatal_) throw Interrupted();
    return inner_->embed(texts);
  }
  int64_t calls() const { return calls_; }

 private:
  int64_t fatal_;
  std::unique_ptr<Embedder> inner_ = make_hashed_embedder(kFeatures);
  mutable std::mutex mutex_;
  mutable int64_t calls_ = 0;
};

class RetroPipelineTest : public testing::Test {
 protected:
  RetroConfig config_of(const std::string& name) const {
    RetroConfig config;
    config.retro_workdir = (directory_.path() / name).string();
    config.retro_gpt_data_path = {"1", data("corpus_text_document")};
    config.retro_gpt_split = "90,10,0";
    config.retro_gpt_seq_length = 128;
    config.retro_gpt_chunk_length = 32;
    config.retro_doc_block_size = 20;
    config.retro_block_size = 400;
    config.retro_index_nfeats = kFeatures;
    config.retro_index_ntrain = 800;
    config.retro_index_str = "IVF16,Flat";
    config.retro_query_nprobe = 8;
    config.retro_query_num_neighbors_query = 100;
    config.retro_query_num_neighbors_save = 20;
    return config;
  }
  static std::string data(const std::string& name) {
    return source_path("tests/golden/megatron/data/" + name);
  }

  RetroSplits samples_of(const RetroConfig& config) const {
    DataConfig data;
    data.data_path = config.retro_gpt_data_path;
    data.split = config.retro_gpt_split;
    data.data_cache_path = (directory_.path() / "cache").string();
    return build_retro_samples(data, config.retro_gpt_split, kSamples, config.retro_gpt_seq_length,
                               1234, *gpt_);
  }

  void run(const RetroConfig& config, const Embedder& embedder, int ranks = 1) const {
    const RetroSplits samples = samples_of(config);
    comm::run_ranks(ranks, [&](const comm::Group& world) {
      build_chunk_database(config, *gpt_, *bert_, world);
      train_index(config, *gpt_, embedder, world);
      add_to_index(config, *gpt_, embedder, world);
      query_neighbors(config, samples, *gpt_, embedder, world);
    });
  }

  // Name and content of all files below a working directory.
  static std::map<std::string, std::string> files_of(const RetroConfig& config) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(config.retro_workdir)) {
      if (!entry.is_regular_file()) continue;
      const auto name = std::filesystem::relative(entry.path(), config.retro_workdir);
      std::string content = read_text(entry.path());
      if (name.extension() == ".json") {  // names the directory itself
        const std::string& own = config.retro_workdir;
        content.erase(content.find(own), own.size());
      }
      files[name.string()] = std::move(content);
    }
    return files;
  }
  static void expect_same(const std::map<std::string, std::string>& got,
                          const std::map<std::string, std::string>& want) {
    std::vector<std::string> names;
    std::vector<std::string> wanted;
    for (const auto& [name, content] : got) names.push_back(name);
    for (const auto& [name, content] : want) wanted.push_back(name);
    ASSERT_EQ(names, wanted);
    for (const auto& [name, content] : want) EXPECT_TRUE(got.at(name) == content) << name;
  }

  NeighborTable neighbors(const RetroConfig& config, const RetroSplits& samples,
                          Split split) const {
    return NeighborTable(
        neighbor_directory(config.retro_workdir, split, samples.of(split)->digest()));
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Tokenizer> gpt_ = make_tokenizer({.tokenizer_type = "GPT2BPETokenizer",
                                                    .vocab_file = data("vocab.json"),
                                                    .merge_file = data("merges.txt")});
  std::unique_ptr<Tokenizer> bert_ = make_tokenizer(
      {.tokenizer_type = "BertWordPieceLowerCase", .vocab_file = data("bert-vocab.txt")});
  std::unique_ptr<Embedder> embedder_ = make_hashed_embedder(kFeatures);
};

TEST_F(RetroPipelineTest, NoNeighbourIsOfADocumentOfItsSample) {
  const RetroConfig config = config_of("W");
  run(config, *embedder_);
  const RetroSplits samples = samples_of(config);
  const ChunkDatabase database(config.retro_workdir, ChunkPart::kTrain, 32, gpt_->eod());
  EXPECT_GT(database.num_chunks(), 1000);
  for (const Split split : {Split::kTrain, Split::kValid}) {
    const NeighborTable table = neighbors(config, samples, split);
    const SampleDataset& dataset = *samples.of(split)->dataset();
    table.expect_chunks(4 * dataset.num_samples());
    ASSERT_EQ(table.num_neighbors(), 20);
    int64_t found = 0;
    for (int64_t chunk = 0; chunk < table.num_chunks(); ++chunk) {
      const auto documents = samples.of(split)->documents_of(chunk / 4);
      for (const int64_t neighbor : table.neighbors_of(chunk)) {
        if (neighbor < 0) continue;
        ++found;
        ASSERT_LT(neighbor, database.num_chunks());
        ASSERT_EQ(std::ranges::count(documents, database.document_of(neighbor)), 0);
      }
    }
    EXPECT_EQ(found, 20 * table.num_chunks());  // 100 are searched
  }
}

// Neighbours of an exhaustive search over all chunks of other documents.
TEST_F(RetroPipelineTest, FindsNineTenthsOfTheNearest) {
  const RetroConfig config = config_of("W");
  run(config, *embedder_);
  const RetroSplits samples = samples_of(config);
  const ChunkDatabase database(config.retro_workdir, ChunkPart::kTrain, 32, gpt_->eod());
  std::vector<std::string> texts;
  std::vector<int64_t> tokens(32);
  for (int64_t chunk = 0; chunk < database.num_chunks(); ++chunk) {
    database.read_tokens(chunk, tokens);
    texts.push_back(text_of_chunk(tokens, *gpt_));
  }
  const std::vector<float> all = embedder_->embed(texts);
  NeighborIndex exact = NeighborIndex::trained("Flat", kFeatures, all);
  exact.add(all, 0);

  const NeighborTable table = neighbors(config, samples, Split::kTrain);
  int64_t common = 0;
  int64_t total = 0;
  std::vector<int64_t> sample(129);
  for (int64_t chunk = 0; chunk < table.num_chunks(); ++chunk) {
    samples.train->dataset()->read(chunk / 4, sample);
    const auto begin = static_cast<size_t>(chunk % 4 * 32);
    const std::vector<std::string> text = {
        text_of_chunk(std::span(sample).subspan(begin, 32), *gpt_)};
    const std::vector<int64_t> nearest =
        kept_neighbors(exact.search(embedder_->embed(text), 100),
                       samples.train->documents_of(chunk / 4), database, 20);
    for (const int64_t neighbor : table.neighbors_of(chunk)) {
      common += std::ranges::count(nearest, neighbor);
      ++total;
    }
  }
  EXPECT_GE(static_cast<double>(common) / static_cast<double>(total), 0.9);
}

TEST_F(RetroPipelineTest, KeepsTheFirstNeighboursOfOtherDocuments) {
  const RetroConfig config = config_of("W");
  build_chunk_database(config, *gpt_, *bert_, {});
  const ChunkDatabase database(config.retro_workdir, ChunkPart::kTrain, 32, gpt_->eod());
  int64_t second = 0;  // the first chunk of document 1
  while (database.document_of(second).number == 0) ++second;
  const std::vector<ChunkDatabase::Document> own = {{0, 0}, {0, 5}};
  const std::vector<int64_t> found = {second + 1, 0, -1, second, 1, second + 2};
  EXPECT_THAT(kept_neighbors(found, own, database, 2), testing::ElementsAre(second + 1, second));
  EXPECT_THAT(kept_neighbors(found, own, database, 5),
              testing::ElementsAre(second + 1, second, second + 2, -1, -1));
  // The same document number in another dataset is another document.
  const std::vector<ChunkDatabase::Document> other = {{1, 0}};
  EXPECT_THAT(kept_neighbors(found, other, database, 2), testing::ElementsAre(second + 1, 0));
}

TEST_F(RetroPipelineTest, InterruptedRunsEndWithTheSameFiles) {
  const RetroConfig whole = config_of("whole");
  const FragileEmbedder counting(-1);
  run(whole, counting);
  const auto want = files_of(whole);
  ASSERT_GE(counting.calls(), 6);  // training, adding and searching
  for (int64_t fatal = 0; fatal < counting.calls(); ++fatal) {
    const RetroConfig config = config_of("interrupted" + std::to_string(fatal));
    EXPECT_THROW(run(config, FragileEmbedder(fatal)), Interrupted);
    const FragileEmbedder again(-1);
    run(config, again);
    EXPECT_LE(again.calls(), counting.calls());
    expect_same(files_of(config), want);
  }
  const FragileEmbedder idle(0);  // nothing is left to do
  run(whole, idle);
  EXPECT_EQ(idle.calls(), 0);
}

TEST_F(RetroPipelineTest, DamagedFilesAreMadeAgain) {
  RetroConfig config = config_of("W");
  config.retro_index_delete_added_codes = false;
  config.retro_index_delete_training_embeddings = false;
  run(config, *embedder_);
  const auto want = files_of(config);
  std::filesystem::remove(added_index_file(config));
  std::filesystem::remove(empty_index_file(config));
  for (const auto& [name, content] : want) {
    if (name.ends_with(".hdf5")) {
      write_text_atomically(std::filesystem::path(config.retro_workdir) / name,
                            content.substr(0, content.size() - 1));
    }
  }
  run(config, *embedder_);
  expect_same(files_of(config), want);
}

TEST_F(RetroPipelineTest, RanksShareTheWork) {
  const RetroConfig one = config_of("one");
  run(one, *embedder_);
  const RetroConfig three = config_of("three");
  run(three, *embedder_, 3);
  expect_same(files_of(three), files_of(one));
}

TEST_F(RetroPipelineTest, AddingInParallelIsAddingInOrder) {
  const RetroConfig parallel = config_of("parallel");
  RetroConfig base = config_of("base");
  base.retro_index_type = IndexType::kBase;
  for (const double fraction : {1.0, 0.5}) {
    RetroConfig a = parallel;
    RetroConfig b = base;
    a.retro_index_add_load_fraction = b.retro_index_add_load_fraction = fraction;
    run(a, *embedder_);
    run(b, *embedder_);
    EXPECT_TRUE(read_text(added_index_file(a)) == read_text(added_index_file(b))) << fraction;
  }
  EXPECT_EQ(added_index_file(base).filename(), "added_1.000_1.000.faissindex");
}

TEST_F(RetroPipelineTest, AnIndexWithoutListsIsAddedByOneRank) {
  RetroConfig config = config_of("flat");
  config.retro_index_str = "Flat";
  run(config, *embedder_, 2);
  EXPECT_EQ(NeighborIndex(added_index_file(config)).size(),
            ChunkDatabase(config.retro_workdir, ChunkPart::kTrain, 32, 0).num_chunks());
}

TEST_F(RetroPipelineTest, TasksNameWhatIsMissing) {
  const RetroConfig config = config_of("W");
  build_chunk_database(config, *gpt_, *bert_, {});
  EXPECT_THAT(message_of([&] { add_to_index(config, *gpt_, *embedder_, {}); }),
              HasSubstr("empty_1.000.faissindex is missing; run --retro-tasks index-train first"));
  const RetroSplits samples = samples_of(config);
  EXPECT_THAT(message_of([&] { query_neighbors(config, samples, *gpt_, *embedder_, {}); }),
              HasSubstr("added_1.000_1.000.faissindex is missing; run --retro-tasks index-build"));
}

}  // namespace
}  // namespace megatron::retro
