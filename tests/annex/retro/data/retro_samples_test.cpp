#include "annex/retro/data/retro_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/data/md5.h"
#include "megatron/tokenizers/null_tokenizer.h"
#include "tests/data/write_dataset.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RetroSamplesTest : public testing::Test {
 protected:
  RetroSamplesTest() {
    write_counting_dataset(a_, {5, 3, 8, 2, 7, 4, 6, 1, 9, 5});
    write_counting_dataset(b_, std::vector<int32_t>(40, 10), 1000);
    config_.data_path = {"3", a_, "7", b_};
    config_.split = "1";
  }

  RetroSplits build(const std::string& split_preprocessing, const SampleCounts& counts) const {
    return build_retro_samples(config_, split_preprocessing, counts, 4, 1234, tokenizer_);
  }

  TemporaryDirectory directory_;
  std::string a_ = (directory_.path() / "a").string();
  std::string b_ = (directory_.path() / "b").string();
  DataConfig config_;
  NullTokenizer tokenizer_{2000};
};

std::vector<int64_t> retro_samples_tokens(const SampleDataset& dataset, int64_t sample) {
  std::vector<int64_t> out(static_cast<size_t>(dataset.sample_size()));
  dataset.read(sample, out);
  return out;
}

TEST_F(RetroSamplesTest, AreThoseOfGpt) {
  const SampleCounts counts = {.train = 100};
  const RetroSplits retro = build("1", counts);
  const SplitDatasets gpt = build_gpt_datasets(config_, counts, 4, 1234, tokenizer_);
  EXPECT_FALSE(retro.of(Split::kValid));
  ASSERT_EQ(retro.train->dataset()->num_samples(), gpt.train->num_samples());
  for (int64_t k = 0; k < gpt.train->num_samples(); ++k) {
    EXPECT_EQ(retro_samples_tokens(*retro.train->dataset(), k),
              retro_samples_tokens(*gpt.train, k));
  }
}

// Tokens of b tell their document: 1000 to 1009 are of document 0.
TEST_F(RetroSamplesTest, KnowTheirDocuments) {
  const RetroSplits retro = build("1", {.train = 100});
  int64_t of_several = 0;
  for (int64_t k = 0; k < retro.train->dataset()->num_samples(); ++k) {
    std::vector<int64_t> numbers;
    int64_t dataset = -1;
    for (const ChunkDatabase::Document& document : retro.train->documents_of(k)) {
      numbers.push_back(document.number);
      dataset = document.dataset;
    }
    const std::vector<int64_t> sample = retro_samples_tokens(*retro.train->dataset(), k);
    ASSERT_EQ(dataset, sample[0] < 1000 ? 0 : 1);
    if (dataset == 0) continue;
    std::set<int64_t> expected;
    for (const int64_t token : sample) expected.insert((token - 1000) / 10);
    EXPECT_EQ(std::set<int64_t>(numbers.begin(), numbers.end()), expected);
    of_several += std::ssize(expected) > 1 ? 1 : 0;
  }
  EXPECT_GT(of_several, 0);
  EXPECT_THROW(retro.train->documents_of(1000), Error);
}

// The text that core_r0.5.0 writes with json.dumps(indent=4); {} stands for the path.
constexpr const char* kMember = R"({
    "class": "MultiSplitGPTDataset",
    "dataset_path": "PATH",
    "num_samples": 12,
    "index_split": "train",
    "random_seed": 1234,
    "sequence_length": 4,
    "split": "1,1",
    "split_matrix": [
        [
            0,
            0.5
        ],
        [
            0.75,
            1.0
        ],
        null
    ],
    "tokenizer": {
        "class": "_NullTokenizer",
        "tokenizer_path": [
            null
        ],
        "vocab_size": "2000"
    },
    "split_preprocessing": "3,1"
})";

std::string with_path(std::string text, const std::string& path) {
  return text.replace(text.find("PATH"), 4, path);
}

// As json.dumps() writes a dictionary inside a list inside a dictionary.
std::string indented(const std::string& text) {
  std::string out;
  for (const char letter : text) {
    out += letter;
    if (letter == '\n') out += "        ";
  }
  return out;
}

TEST_F(RetroSamplesTest, DigestIsThatOfMegatron) {
  config_.split = "1,1";
  config_.data_path = {b_};
  const std::string member = with_path(kMember, b_);
  EXPECT_EQ(build("3,1", {.train = 12}).train->digest(), md5_hex(member));

  config_.data_path = {"5", b_};  // a blend of one: requests 0.5 % more
  std::string inner = indented(member);
  inner.replace(inner.find("12,"), 3, "13,");
  const std::string blend =
      "{\n    \"class\": \"BlendedDataset\",\n    \"datasets\": [\n        " + inner +
      "\n    ],\n    \"weights\": [\n        1.0\n    ],\n    \"size\": 13\n}";
  EXPECT_EQ(build("3,1", {.train = 12}).train->digest(), md5_hex(blend));
}

TEST_F(RetroSamplesTest, SplitsOfBothRunsAreIntersected) {
  config_.data_path = {b_};
  config_.split = "1,1";
  const RetroSplits retro = build("3,1", {.train = 10, .valid = 10});
  const auto documents = [](const RetroSamples& samples) {
    std::set<int64_t> numbers;
    for (int64_t k = 0; k < samples.dataset()->num_samples(); ++k) {
      for (const auto& document : samples.documents_of(k)) numbers.insert(document.number);
    }
    return std::pair(*numbers.begin(), *numbers.rbegin());
  };
  EXPECT_EQ(documents(*retro.train), std::pair(int64_t{0}, int64_t{19}));
  EXPECT_EQ(documents(*retro.valid), std::pair(int64_t{30}, int64_t{39}));
}

TEST_F(RetroSamplesTest, NeedsOneDataPath) {
  config_.data_path.clear();
  config_.train_data_path = {b_};
  EXPECT_THAT(message_of([&] { build("1", {.train = 10}); }), HasSubstr("give --data-path"));
}

}  // namespace
}  // namespace megatron
