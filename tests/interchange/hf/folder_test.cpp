#include "megatron/interchange/hf/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "megatron/core/checksums.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/interchange/check_conversion.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/save_contents.h"
#include "megatron/interchange/source_settings.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A Llama that this program has written.
class HfFolderTest : public testing::Test {
 protected:
  HfFolderTest() {
    const std::filesystem::path golden = source_path("tests/golden/hf/llama");
    const HfModel model = read_hf_config(golden);
    write_hf_folder(folder(), open_hf_checkpoint(golden, model), model.transformer,
                    {.vocab_size = model.vocab_size});
  }

  const std::filesystem::path& folder() const { return directory_.path(); }
  // Reads everything.
  void read() const {
    const HfModel model = read_hf_config(folder());
    const CheckpointContents contents = open_hf_checkpoint(folder(), model);
    for (const auto& [name, tensor] : contents.sections.at(kWeightsSection)) read_whole(tensor);
  }

  const TemporaryDirectory directory_;
};

TEST_F(HfFolderTest, EveryFlippedBitOfAWeightIsRefused) {
  read();
  expect_checksums(folder());
  const std::string text = read_text(folder() / "model.safetensors");
  std::mt19937_64 random(3);
  for (int i = 0; i < 80; ++i) {
    std::string flipped = text;
    // Behind the header, whose reader has its own words for damage.
    const size_t at = text.size() / 2 + random() % (text.size() / 2);
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << random() % 8));
    write_text_atomically(folder() / "model.safetensors", flipped);
    EXPECT_THAT(message_of<FormatError>([&] { read(); }),
                AllOf(HasSubstr("model.safetensors: has "), HasSubstr("copy it again")))
        << at;
  }
  write_text_atomically(folder() / "model.safetensors", text);
  read();
}

TEST_F(HfFolderTest, AnEditedConfigurationGivesAWarning) {
  const std::string text = read_text(folder() / "config.json");
  write_text_atomically(folder() / "config.json", text + "\n");
  CapturedStderr captured_err;
  read();
  EXPECT_THAT(captured_err.text(),
              AllOf(HasSubstr("warning: "), HasSubstr("config.json: has "),
                    HasSubstr("If it was changed on purpose, delete the list")));
}

TEST_F(HfFolderTest, AFolderOfOthersNeedsNoChecksums) {
  std::filesystem::remove(folder() / kChecksumsFile);
  read();
}

// A folder as Hub models of experts have it: norms and routers in fp32.
TEST_F(HfFolderTest, KeepsTheDtypeOfEachTensor) {
  const HfModel model = read_hf_config(folder());
  CheckpointContents contents = open_hf_checkpoint(folder(), model);
  for (auto& [name, tensor] : contents.sections.at(kWeightsSection)) {
    if (!name.ends_with("layernorm.weight")) convert(tensor, DType::kBFloat16);
  }
  const TemporaryDirectory copy;
  write_hf_folder(copy.path(), contents, model.transformer, {.vocab_size = model.vocab_size});
  EXPECT_EQ(read_hf_config(copy.path()).transformer.params_dtype, DType::kBFloat16);
  const ShardedWeights written(copy.path());
  EXPECT_EQ(written.find("model.norm.weight")->dtype, DType::kFloat32);
  EXPECT_EQ(written.find("model.layers.0.self_attn.q_proj.weight")->dtype, DType::kBFloat16);

  for (const SaveFormat format :
       {SaveFormat::kMegatron, SaveFormat::kMegatronCore, SaveFormat::kTorchDist}) {
    const TemporaryDirectory other;
    contents.args = settings_of(model);
    const MegatronLayout layout = {
        .naming = format == SaveFormat::kMegatron ? MegatronNaming::kLegacy : MegatronNaming::kCore,
        .tensor_model_parallel_size = 1};
    save_contents(other.path(), contents, format, layout, model.transformer);
    const CheckpointContents again = find_source(other.path(), 0, true).contents();
    expect_same_tensors(contents, again, model.vocab_size);
  }
}

// Layers of a torch_dist checkpoint are one tensor, which holds the widest of their dtypes.
TEST_F(HfFolderTest, LayersOfSeveralDtypesAreJoined) {
  const HfModel model = read_hf_config(folder());
  CheckpointContents contents = open_hf_checkpoint(folder(), model);
  contents.args = settings_of(model);
  StoredSection& weights = contents.sections.at(kWeightsSection);
  convert(weights.at("decoder.layers.1.mlp.linear_fc2.weight"), DType::kBFloat16);
  const TemporaryDirectory other;
  save_contents(other.path(), contents, SaveFormat::kTorchDist, {}, model.transformer);
  const CheckpointContents again = find_source(other.path(), 0, true).contents();
  EXPECT_EQ(again.sections.at(kWeightsSection).at("decoder.layers.1.mlp.linear_fc2.weight").dtype,
            DType::kFloat32);
  expect_same_tensors(contents, again, model.vocab_size);
}

TEST_F(HfFolderTest, AHeadThatDiffersFromTiedEmbeddingsIsRefused) {
  const HfModel untied = read_hf_config(folder());
  nlohmann::json config = nlohmann::json::parse(read_text(folder() / "config.json"));
  config["tie_word_embeddings"] = true;
  std::filesystem::remove(folder() / kChecksumsFile);
  write_text_atomically(folder() / "config.json", config.dump());
  EXPECT_THAT(message_of<FormatError>([&] { read(); }),
              AllOf(HasSubstr("lm_head.weight is not the copy of model.embed_tokens.weight"),
                    HasSubstr("set tie_word_embeddings of config.json to false")));
  // The same matrix twice is a tied model.
  const CheckpointContents contents = open_hf_checkpoint(folder(), untied);
  const StoredSection& stored = contents.sections.at(kWeightsSection);
  const TemporaryDirectory copy;
  save_hf_model(
      copy.path(), untied, hf_tensors(untied), int64_t{1} << 30, [&](const TensorSpec& spec) {
        return whole_elements(stored.at(
            spec.name == "output_layer.weight" ? "embedding.word_embeddings.weight" : spec.name));
      });
  write_text_atomically(copy.path() / "config.json", config.dump());
  const CheckpointContents tied = open_hf_checkpoint(copy.path(), read_hf_config(copy.path()));
  for (const auto& [name, tensor] : tied.sections.at(kWeightsSection)) read_whole(tensor);
  EXPECT_FALSE(tied.sections.at(kWeightsSection).contains("output_layer.weight"));
}

// DeepSeek-V3's layer of further tokens is behind the others, with copies of what it shares.
TEST(HfFurtherLayersTest, AreReadAndWrittenBack) {
  const std::filesystem::path golden = source_path("tests/golden/quantized/fp8-blocks");
  const HfModel model = read_hf_config(golden);
  EXPECT_EQ(model.transformer.mtp_num_layers, 1);
  const CheckpointContents contents = open_hf_checkpoint(golden, model);
  const StoredSection& weights = contents.sections.at(kWeightsSection);
  const ShardedWeights original(golden);
  const auto expect_read_as = [&](const char* ours, const char* theirs) {
    expect_identical(read_whole(weights.at(ours)), read_whole(*original.find(theirs)), ours);
  };
  expect_read_as("mtp.layers.0.enorm.weight", "model.layers.2.enorm.weight");
  expect_read_as("mtp.layers.0.hnorm.weight", "model.layers.2.hnorm.weight");
  expect_read_as("mtp.layers.0.eh_proj.weight", "model.layers.2.eh_proj.weight");
  expect_read_as("mtp.layers.0.final_layernorm.weight", "model.layers.2.shared_head.norm.weight");
  expect_read_as("mtp.layers.0.mtp_model_layer.input_layernorm.weight",
                 "model.layers.2.input_layernorm.weight");
  expect_read_as("mtp.layers.0.mtp_model_layer.mlp.router.weight",
                 "model.layers.2.mlp.gate.weight");

  const TemporaryDirectory directory;
  write_hf_folder(directory.path(), contents, model.transformer, {.vocab_size = model.vocab_size});
  const ShardedWeights written(directory.path());
  for (const char* name :
       {"model.layers.2.embed_tokens.weight", "model.layers.2.shared_head.head.weight",
        "model.layers.2.mlp.gate.e_score_correction_bias", "model.layers.2.eh_proj.weight"}) {
    ASSERT_NE(written.find(name), nullptr) << name;
    expect_identical(read_whole(*written.find(name)), read_whole(*original.find(name)), name);
  }
  const HfModel again = read_hf_config(directory.path());
  EXPECT_EQ(again.transformer.mtp_num_layers, 1);
  const CheckpointContents reopened = open_hf_checkpoint(directory.path(), again);
  for (const auto& [name, tensor] : reopened.sections.at(kWeightsSection)) {
    expect_identical(read_whole(tensor), read_whole(weights.at(name)), name);
  }
}

}  // namespace
}  // namespace megatron
