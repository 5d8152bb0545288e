#include "megatron/data/masked_datasets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/tokenizers/null_tokenizer.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::HasSubstr;

const std::filesystem::path kMaskedDatasetsGolden = source_path("tests/golden/megatron");

// The vocabulary of the golden data as Megatron-LM's BERT tokenizer extends it.
std::shared_ptr<const MaskingVocabulary> golden_vocabulary(int64_t extra_ids) {
  auto vocabulary = std::make_shared<MaskingVocabulary>();
  std::ifstream file(kMaskedDatasetsGolden / "data/bert-vocab.txt");
  for (std::string piece; std::getline(file, piece);) {
    const int64_t id = vocabulary->size++;
    vocabulary->continues_word.push_back(piece.starts_with("##"));
    if (piece == "[CLS]") vocabulary->cls = id;
    if (piece == "[SEP]") vocabulary->sep = id;
    if (piece == "[MASK]") vocabulary->mask = id;
    if (piece == "[PAD]") vocabulary->pad = id;
  }
  vocabulary->bos = vocabulary->size++;
  vocabulary->eos = vocabulary->size++;
  for (int64_t i = 0; i < extra_ids; ++i) vocabulary->sentinels.push_back(vocabulary->size++);
  vocabulary->continues_word.resize(static_cast<size_t>(vocabulary->size), false);
  return vocabulary;
}

DatasetOptions golden_options(int64_t seq_length, const std::string& extra_ids) {
  DatasetOptions options;
  options.seq_length = seq_length;
  options.seed = 1234;
  options.tokenizer = {.class_name = "_BertWordPieceTokenizer",
                       .tokenizer_path = {"/data/oracles/bert-vocab.txt"},
                       .options = {{"lower_case", "True"}, {"vocab_extra_ids", extra_ids}}};
  options.split = "80,15,5";
  options.split_matrix = parse_split("80,15,5");
  return options;
}

std::shared_ptr<const IndexedDataset> golden_sentences() {
  return std::make_shared<const IndexedDataset>(kMaskedDatasetsGolden /
                                                "data/sentences_text_sentence");
}

struct GoldenSplit {
  Split split;
  int64_t num_samples;
};

// Parameter: a split of the real runs and the samples it asked for.
class MaskedCacheTest : public testing::TestWithParam<GoldenSplit> {
 protected:
  // The description, the file names and the bytes of the index equal those of the run.
  void expect_equal_cache(const DatasetMaker& maker, DatasetOptions options,
                          const std::filesystem::path& golden) const {
    const auto [split, num_samples] = GetParam();
    const std::string prefix = "/data/oracles/sentences_text_sentence";
    options.cache_path = golden;
    const IndexCache theirs =
        index_cache_of(maker.describe(prefix, split, num_samples, options), prefix, split, options);
    ASSERT_TRUE(theirs.holds({"sample_index"})) << theirs.description_file();

    const auto data = golden_sentences();
    const TemporaryDirectory directory;
    options.cache_path = directory.path();
    maker.make(data, *(*options.split_matrix)[static_cast<size_t>(split)], split, num_samples,
               options);
    const IndexCache ours =
        index_cache_of(maker.describe(data->prefix().string(), split, num_samples, options),
                       data->prefix(), split, options);
    EXPECT_EQ(read_text(ours.array_file("sample_index")),
              read_text(theirs.array_file("sample_index")));
  }
};

TEST_P(MaskedCacheTest, OfBertEqualsMegatrons) {
  BertDataset::Settings settings;
  settings.vocabulary = golden_vocabulary(0);
  expect_equal_cache(bert_dataset_maker(settings), golden_options(32, "0"),
                     kMaskedDatasetsGolden / "bert/cache");
}

TEST_P(MaskedCacheTest, OfT5EqualsMegatrons) {
  T5Dataset::Settings settings;
  settings.decoder_seq_length = 16;
  settings.vocabulary = golden_vocabulary(100);
  expect_equal_cache(t5_dataset_maker(settings), golden_options(32, "100"),
                     kMaskedDatasetsGolden / "t5/cache");
}

INSTANTIATE_TEST_SUITE_P(Splits, MaskedCacheTest,
                         testing::Values(GoldenSplit{Split::kTrain, 160},
                                         GoldenSplit{Split::kValid, 48},
                                         GoldenSplit{Split::kTest, 16}));

// --split divides documents here, which have several sequences.
TEST(MaskedDatasets, ASplitWithoutDocumentsIsNotEvaluated) {
  const TemporaryDirectory directory;
  DataConfig config;
  config.data_path = {(kMaskedDatasetsGolden / "data/sentences_text_sentence").string()};
  config.data_cache_path = directory.path().string();
  config.split = "99,1,0.001";
  BertDataset::Settings settings;
  settings.vocabulary = golden_vocabulary(0);
  const SplitDatasets datasets =
      build_split_datasets(config, {.train = 8, .valid = 0, .test = 8}, 32, 1234,
                           NullTokenizer(1000), bert_dataset_maker(settings));
  EXPECT_GE(datasets.train->num_samples(), 8);
  EXPECT_EQ(datasets.test, nullptr);
}

// One case of tests/golden/megatron/masked/samples.txt.
struct GoldenSamples {
  std::string kind;
  Split split = Split::kTrain;
  int64_t requested = 0;
  int64_t seq_length = 0;
  int64_t decoder_seq_length = 0;
  bool has_binary_head = false;
  double short_seq_prob = 0;
  double mask_prob = 0;
  int64_t num_samples = 0;
  uint32_t crc32 = 0;
  std::vector<std::vector<int64_t>> first;  // two samples in full
};

std::vector<GoldenSamples> golden_samples() {
  std::ifstream file(kMaskedDatasetsGolden / "masked/samples.txt");
  std::vector<GoldenSamples> cases;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    if (line.starts_with("bert") || line.starts_with("t5")) {
      GoldenSamples& c = cases.emplace_back();
      std::string split;
      words >> c.kind >> split >> c.requested >> c.seq_length >> c.decoder_seq_length >>
          c.has_binary_head >> c.short_seq_prob >> c.mask_prob >> c.num_samples >> c.crc32;
      for (const Split each : kSplits) {
        if (split_name(each) == split) c.split = each;
      }
      continue;
    }
    std::vector<int64_t>& sample = cases.back().first.emplace_back();
    for (int64_t value = 0; words >> value;) sample.push_back(value);
  }
  return cases;
}

std::shared_ptr<const SampleDataset> dataset_of(const GoldenSamples& c,
                                                const std::filesystem::path& cache) {
  DatasetOptions options = golden_options(c.seq_length, "0");
  options.cache_path = cache;
  const SplitBounds bounds = *(*options.split_matrix)[static_cast<size_t>(c.split)];
  if (c.kind == "bert") {
    BertDataset::Settings settings;
    settings.masking.probability = c.mask_prob;
    settings.short_seq_prob = c.short_seq_prob;
    settings.has_binary_head = c.has_binary_head;
    settings.vocabulary = golden_vocabulary(0);
    return std::make_shared<const BertDataset>(golden_sentences(), bounds, c.split, c.requested,
                                               options, settings);
  }
  T5Dataset::Settings settings;
  settings.masking.probability = c.mask_prob;
  settings.short_seq_prob = c.short_seq_prob;
  settings.decoder_seq_length = c.decoder_seq_length;
  settings.vocabulary = golden_vocabulary(100);
  return std::make_shared<const T5Dataset>(golden_sentences(), bounds, c.split, c.requested,
                                           options, settings);
}

TEST(MaskedDatasetsTest, EverySampleEqualsMegatrons) {
  const std::vector<GoldenSamples> cases = golden_samples();
  ASSERT_EQ(cases.size(), 5u);
  for (const GoldenSamples& c : cases) {
    SCOPED_TRACE(c.kind + " " + std::string(split_name(c.split)));
    const TemporaryDirectory directory;
    const auto dataset = dataset_of(c, directory.path());
    ASSERT_EQ(dataset->num_samples(), c.num_samples);
    std::vector<int64_t> sample(static_cast<size_t>(dataset->sample_size()));
    uLong crc = crc32(0, nullptr, 0);
    for (int64_t i = 0; i < c.num_samples; ++i) {
      dataset->read(i, sample);
      if (i < 2) {
        EXPECT_EQ(sample, c.first[static_cast<size_t>(i)]) << "sample " << i;
      }
      crc = crc32(crc, reinterpret_cast<const Bytef*>(sample.data()),
                  static_cast<uInt>(sample.size() * sizeof(int64_t)));
    }
    EXPECT_EQ(crc, c.crc32);
  }
}

TEST(MaskedDatasetsTest, ACacheOfOtherDataIsBuiltAgain) {
  const GoldenSamples c = golden_samples().front();
  const TemporaryDirectory directory;
  const int64_t samples = dataset_of(c, directory.path())->num_samples();
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    if (entry.path().extension() != ".npy") continue;
    NpyArray<uint32_t>(std::vector<uint32_t>{0, 999999999, 5}, {1, 3}).save(entry.path());
  }
  EXPECT_EQ(dataset_of(c, directory.path())->num_samples(), samples);
}

// BERT and T5: the state of the data is compared, whatever the rows say.
TEST(MaskedDatasetsTest, ACacheOfAnotherStateOfTheDataIsBuiltAgain) {
  const std::vector<GoldenSamples> cases = golden_samples();
  for (const GoldenSamples& c : {cases.front(), cases.back()}) {
    const TemporaryDirectory directory;
    const int64_t samples = dataset_of(c, directory.path())->num_samples();
    for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
      if (!entry.path().string().ends_with("-data.txt")) continue;
      write_text_atomically(entry.path(), "of another state\n");
    }
    CapturedStderr captured;
    EXPECT_EQ(dataset_of(c, directory.path())->num_samples(), samples);
    EXPECT_THAT(captured.text(), HasSubstr("the cached index is of another state of"));
  }
}

TEST(MaskedDatasetsTest, ATokenBeyondTheVocabularyIsNamed) {
  GoldenSamples c = golden_samples().front();
  const TemporaryDirectory directory;
  DatasetOptions options = golden_options(c.seq_length, "0");
  options.cache_path = directory.path();
  auto small = std::make_shared<MaskingVocabulary>(*golden_vocabulary(0));
  small->size = 20;
  BertDataset::Settings settings;
  settings.vocabulary = small;
  const BertDataset dataset(golden_sentences(), {0, 0.8}, c.split, c.requested, options, settings);
  std::vector<int64_t> sample(static_cast<size_t>(dataset.sample_size()));
  EXPECT_THAT(message_of<FormatError>([&] {
                for (int64_t i = 0; i < dataset.num_samples(); ++i) dataset.read(i, sample);
              }),
              HasSubstr("the tokenizer has 20 ids"));
}

TEST(MaskedDatasetsTest, TooFewSentinelsAreNamed) {
  GoldenSamples c = golden_samples().back();
  const TemporaryDirectory directory;
  DatasetOptions options = golden_options(c.seq_length, "1");
  options.cache_path = directory.path();
  T5Dataset::Settings settings;
  settings.decoder_seq_length = c.decoder_seq_length;
  settings.masking.probability = 0.3;
  settings.vocabulary = golden_vocabulary(1);
  const T5Dataset dataset(golden_sentences(), {0, 0.8}, c.split, c.requested, options, settings);
  std::vector<int64_t> sample(static_cast<size_t>(dataset.sample_size()));
  EXPECT_THAT(message_of<ConfigError>([&] {
                for (int64_t i = 0; i < dataset.num_samples(); ++i) dataset.read(i, sample);
              }),
              HasSubstr("--vocab-extra-ids"));
}

}  // namespace
}  // namespace megatron
