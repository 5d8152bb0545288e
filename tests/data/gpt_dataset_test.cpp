#include "megatron/data/gpt_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/data/md5.h"
#include "megatron/data/python_json.h"
#include "tests/data/write_dataset.h"
#include "tests/support/captured_output.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::filesystem::path kGolden = std::filesystem::path(source_path("tests/golden/megatron"));

DatasetOptions options_of(int64_t seq_length, const std::string& split) {
  DatasetOptions options;
  options.seq_length = seq_length;
  options.seed = 1234;
  options.vocab_size = 502;
  options.tokenizer = {.class_name = "_GPT2BPETokenizer",
                       .tokenizer_path = {"vocab.json", "merges.txt"},
                       .options = {}};
  options.split = split;
  options.split_matrix = parse_split(split);
  return options;
}

TEST(GptDescriptionTest, IsMegatrons) {
  const std::string text = python_json(dataset_description(
      "GPTDataset", "toy_text_document", Split::kTrain, 12, options_of(4, "100,0,0")));
  EXPECT_EQ(md5_hex(text), "cb2509a2383cd67f489ef27c22d0c877") << text;
}

TEST(GptDescriptionTest, IsNullWhereNothingWasGiven) {
  DatasetOptions options = options_of(4, "1");
  options.split.reset();
  options.split_matrix.reset();
  const auto description =
      dataset_description("GPTDataset", "toy", Split::kValid, std::nullopt, options);
  EXPECT_TRUE(description["split"].is_null());
  EXPECT_TRUE(description["split_matrix"].is_null());
  EXPECT_TRUE(description["num_samples"].is_null());
}

struct GoldenCase {
  Split split;
  int64_t num_samples;
};

// Parameter: a split of the reference run and the samples it asked for.
class GoldenCacheTest : public testing::TestWithParam<GoldenCase> {
 protected:
  // The description text, the file names and the bytes of all arrays equal those of the run.
  void expect_equal_caches(const std::filesystem::path& golden, const std::string& description,
                           CacheNaming naming) const {
    const auto [split, num_samples] = GetParam();
    const IndexCache ours(directory_.path(), "GPTDataset", description, split, naming);
    const IndexCache theirs(golden, "GPTDataset", description, split, naming);
    ASSERT_TRUE(theirs.holds({"document_index", "sample_index", "shuffle_index"}))
        << theirs.description_file();
    EXPECT_EQ(read_text(theirs.description_file()), description);

    const IndexedDataset data(kGolden / "data/corpus_text_document");
    const auto bounds = (*parse_split("80,15,5")[static_cast<size_t>(split)]);
    const IndexRange range = split_range(bounds, data.num_sequences());
    const EpochPlan plan = plan_epochs(count_tokens(data, range), num_samples, 32);
    const GptIndex index = build_gpt_index(data, range, plan, 32, 1234);
    index.document_index.save(ours.array_file("document_index"));
    index.sample_index.save(ours.array_file("sample_index"));
    index.shuffle_index.save(ours.array_file("shuffle_index"));
    for (const char* name : {"document_index", "sample_index", "shuffle_index"}) {
      EXPECT_EQ(read_text(ours.array_file(name)), read_text(theirs.array_file(name))) << name;
    }
  }

  DatasetOptions options() const {
    DatasetOptions options = options_of(32, "80,15,5");
    options.tokenizer.tokenizer_path = {"/data/oracles/vocab.json", "/data/oracles/merges.txt"};
    return options;
  }

  TemporaryDirectory directory_;
};

TEST_P(GoldenCacheTest, EqualsCore05) {
  const auto description = dataset_description("GPTDataset", "/data/oracles/corpus_text_document",
                                               GetParam().split, GetParam().num_samples, options());
  expect_equal_caches(kGolden / "gpt/cache", python_json(description), CacheNaming::kCore05);
}

TEST_P(GoldenCacheTest, EqualsLaterVersionWithItsTokenizerText) {
  auto description = dataset_description("GPTDataset", "/data/oracles/corpus_text_document",
                                         GetParam().split, GetParam().num_samples, options());
  description["tokenizer"] = {
      {"class", "megatron.core.tokenizers.text.text_tokenizer.MegatronTokenizerText"},
      {"tokenizer_path", nullptr},
      {"vocab_size", "501"},
      {"pad_id", "-1"}};
  expect_equal_caches(kGolden / "core/cache", python_json(description), CacheNaming::kWithSplit);
}

INSTANTIATE_TEST_SUITE_P(Splits, GoldenCacheTest,
                         testing::Values(GoldenCase{Split::kTrain, 160},
                                         GoldenCase{Split::kValid, 48},
                                         GoldenCase{Split::kTest, 16}));

class GptDatasetTest : public testing::Test {
 protected:
  GptDatasetTest() { write_counting_dataset(prefix_, lengths_); }

  GptDataset open(const DatasetOptions& options, int64_t num_samples = 12) const {
    const auto data = std::make_shared<const IndexedDataset>(prefix_);
    return GptDataset(data, {0, data->num_sequences()}, Split::kTrain, num_samples, options);
  }

  std::string error_of(const DatasetOptions& options) const {
    try {
      const GptDataset dataset = open(options);
      std::vector<int64_t> sample(5);
      for (int64_t k = 0; k < dataset.num_samples(); ++k) dataset.read(k, sample);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing thrown";
  }

  // The tokens of all samples.
  static std::string rows_of(const GptDataset& dataset) {
    std::string text;
    std::vector<int64_t> sample(static_cast<size_t>(dataset.sample_size()));
    for (int64_t k = 0; k < dataset.num_samples(); ++k) {
      dataset.read(k, sample);
      for (const int64_t token : sample) text += std::to_string(token) + " ";
    }
    return text;
  }

  std::vector<std::filesystem::path> cache_files() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry :
         std::filesystem::directory_iterator(prefix_ / "cache/GPTDataset_indices")) {
      files.push_back(entry.path());
    }
    return files;
  }

  std::filesystem::path cache_file(const std::string& ending) const {
    for (const auto& file : cache_files()) {
      if (file.string().ends_with(ending)) return file;
    }
    return {};
  }

  TemporaryDirectory directory_;
  std::filesystem::path prefix_ = directory_.path() / "ten";
  std::vector<int32_t> lengths_ = {5, 3, 8, 2, 7, 4, 6, 1, 9, 5};
};

TEST_F(GptDatasetTest, ReadsSamplesAcrossDocuments) {
  const GptDataset dataset = open(options_of(4, "1"));
  EXPECT_EQ(dataset.num_samples(), 12);
  std::vector<int64_t> sample(5);
  dataset.read(0, sample);
  EXPECT_THAT(sample, ElementsAre(49, 50, 6, 7, 8));
  EXPECT_THROW(dataset.read(12, sample), Error);
  EXPECT_THROW(dataset.read(-1, sample), Error);
}

TEST_F(GptDatasetTest, LoadsWhatItCached) {
  const GptDataset built = open(options_of(4, "1"), 20);
  EXPECT_EQ(cache_files().size(), 5U);  // three arrays, their description, the state of the data
  const auto time = std::filesystem::last_write_time(cache_file("shuffle_index.npy"));
  const GptDataset loaded = open(options_of(4, "1"), 20);
  EXPECT_EQ(std::filesystem::last_write_time(cache_file("shuffle_index.npy")), time);
  std::vector<int64_t> a(5);
  std::vector<int64_t> b(5);
  for (int64_t k = 0; k < built.num_samples(); ++k) {
    built.read(k, a);
    loaded.read(k, b);
    EXPECT_EQ(a, b);
  }
}

TEST_F(GptDatasetTest, RebuildsTheIndexOfChangedData) {
  open(options_of(4, "1"));
  write_counting_dataset(prefix_, {50, 50});
  EXPECT_EQ(open(options_of(4, "1")).num_samples(), 24);
  EXPECT_EQ(open(options_of(4, "1")).index().document_index.size(), 2);
}

// The same totals in another order: nothing in the arrays tells that they are of other data.
TEST_F(GptDatasetTest, RebuildsTheIndexOfReorderedData) {
  open(options_of(4, "1"));
  std::reverse(lengths_.begin(), lengths_.end());
  write_counting_dataset(prefix_, lengths_);
  CapturedStderr captured;
  const std::string rebuilt = rows_of(open(options_of(4, "1")));
  EXPECT_THAT(captured.text(), HasSubstr("the cached index is of another state of"));
  std::filesystem::remove_all(prefix_ / "cache");
  EXPECT_EQ(rebuilt, rows_of(open(options_of(4, "1"))));
}

// Caches of Megatron-LM do not tell the state of the data; their time does.
TEST_F(GptDatasetTest, TakesACacheWithoutStateUnlessItIsOlderThanTheData) {
  const int32_t first = open(options_of(4, "1")).index().document_index[0];
  std::filesystem::remove(cache_file("-data.txt"));
  const auto file = cache_file("document_index.npy");
  const NpyArray<int32_t> marked(std::vector<int32_t>(10, first == 3 ? 4 : 3), {10});
  marked.save(file);
  EXPECT_EQ(open(options_of(4, "1")).index().document_index[0], marked[0]);  // taken
  std::filesystem::last_write_time(
      file, std::filesystem::last_write_time(index_file(prefix_)) - std::chrono::seconds(1));
  EXPECT_EQ(open(options_of(4, "1")).index().document_index[0], first);  // rebuilt
}

TEST_F(GptDatasetTest, NamesADamagedCache) {
  open(options_of(4, "1"));
  const auto file = cache_file("sample_index.npy");
  write_text_atomically(file, read_text(file).substr(0, 150));
  EXPECT_THAT(error_of(options_of(4, "1")), HasSubstr("sample_index.npy: has 22 bytes of data"));
}

TEST_F(GptDatasetTest, NamesACacheOfOtherData) {
  open(options_of(4, "1"));
  const NpyArray<int32_t> wrong(std::vector<int32_t>(10, 11), {10});
  wrong.save(cache_file("document_index.npy"));
  EXPECT_THAT(error_of(options_of(4, "1")), HasSubstr("does not match the dataset at sample"));
}

TEST_F(GptDatasetTest, RunsWithoutACache) {
  DatasetOptions options = options_of(4, "1");
  write_text_atomically(directory_.path() / "file", "not a directory");
  options.cache_path = directory_.path() / "file";
  EXPECT_EQ(open(options).num_samples(), 12);
}

TEST_F(GptDatasetTest, RejectsTokensOfAnotherTokenizer) {
  DatasetOptions options = options_of(4, "1");
  options.vocab_size = 50;
  EXPECT_THAT(error_of(options), HasSubstr("token 50, but the tokenizer has 50 ids"));
}

TEST_F(GptDatasetTest, RejectsASplitWithoutTokens) {
  const auto data = std::make_shared<const IndexedDataset>(prefix_);
  EXPECT_THROW(GptDataset(data, {3, 3}, Split::kTest, 1, options_of(4, "1")), ConfigError);
}

}  // namespace
}  // namespace megatron
