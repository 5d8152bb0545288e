#include "megatron/formats/sharded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/formats/json_file.h"
#include "megatron/formats/torch_writer.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kIndex = "model.safetensors.index.json";

class ShardedTest : public testing::Test {
 protected:
  // Four tensors of 4, 40, 12 and 8 bytes.
  void write(int64_t max_shard_bytes, WeightsFormat format = WeightsFormat::kSafetensors) {
    const std::vector<TensorSpec> specs = {{"a", DType::kFloat32, {1}},
                                           {"b", DType::kFloat32, {10}},
                                           {"c", DType::kFloat32, {3}},
                                           {"d", DType::kFloat32, {2}}};
    const TensorSource source = [](const TensorSpec& spec) {
      const Tensor tensor = full(spec.shape, static_cast<float>(spec.name[0]), spec.dtype, {});
      return FileElements{tensor.view(), tensor};
    };
    write_sharded(path(), specs, max_shard_bytes, source, format);
  }
  static float first_of(const StoredTensor& tensor) {
    return copy_of(whole_elements(tensor).view).span<float>()[0];
  }
  json index() { return read_json(path() / kIndex); }
  void write_text(const std::string& text) { std::ofstream(path() / kIndex) << text; }
  void write_index(const json& document) { write_text(document.dump()); }
  template <class E>
  std::string refusal() {
    return message_of<E>([&] { ShardedWeights{path()}; });
  }
  const std::filesystem::path& path() const { return directory_.path(); }

  TemporaryDirectory directory_;
};

TEST_F(ShardedTest, PacksInOrder) {
  write(20);
  EXPECT_EQ(index()["metadata"]["total_size"], 64);
  EXPECT_EQ(index()["weight_map"],
            json({{"a", "model-00001-of-00003.safetensors"},
                  {"b", "model-00002-of-00003.safetensors"},  // alone: larger than the limit
                  {"c", "model-00003-of-00003.safetensors"},
                  {"d", "model-00003-of-00003.safetensors"}}));
  EXPECT_EQ(read_text(path() / kIndex).back(), '\n');
  const ShardedWeights file(path());
  ASSERT_EQ(file.tensors().size(), 4u);
  for (const auto& [name, tensor] : file.tensors()) {
    EXPECT_EQ(first_of(tensor), static_cast<float>(name[0]));
  }
  EXPECT_EQ(file.files().at("c"), "model-00003-of-00003.safetensors");
  EXPECT_EQ(file.find("e"), nullptr);
}

TEST_F(ShardedTest, OneShardNeedsNoIndex) {
  write(20);
  write(64);
  EXPECT_FALSE(std::filesystem::exists(path() / kIndex));
  EXPECT_EQ(ShardedWeights(path()).tensors().size(), 4u);
  const ShardedWeights file(path() / "model.safetensors");
  EXPECT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(SafetensorsFile(path() / "model.safetensors").metadata().at("format"), "pt");
}

TEST_F(ShardedTest, StaysInItsFolder) {
  write(20);
  for (const char* name : {"../model.safetensors", "/etc/passwd", "..", ".", "", "x/y", "x\\y"}) {
    json changed = index();
    changed["weight_map"]["a"] = name;
    write_index(changed);
    EXPECT_THAT(refusal<FormatError>(), HasSubstr("not a file name of this folder")) << name;
    changed["weight_map"]["a"] = "model-00001-of-00003.safetensors";
    write_index(changed);
  }
}

TEST_F(ShardedTest, IndexAndShardsMustAgree) {
  write(20);
  const json good = index();
  json changed = good;
  changed["weight_map"]["e"] = "model-00001-of-00003.safetensors";
  write_index(changed);
  EXPECT_THAT(refusal<FormatError>(), HasSubstr("tensor e is not in model-00001"));
  changed = good;
  changed["weight_map"]["a"] = "model-00002-of-00003.safetensors";
  write_index(changed);
  EXPECT_THAT(refusal<FormatError>(), HasSubstr("tensor a is not in model-00002"));
  changed = good;
  changed["weight_map"].erase("c");
  write_index(changed);
  EXPECT_THAT(refusal<FormatError>(), HasSubstr("tensor c of model-00003"));
  changed = good;
  changed["weight_map"]["a"] = 3;
  write_index(changed);
  EXPECT_THAT(refusal<FormatError>(), HasSubstr("is not a file name"));
  write_index(json::array());
  EXPECT_THAT(refusal<FormatError>(), HasSubstr("no object weight_map"));
  write_text(R"({"weight_map": {"a": "x", "a": "y"}})");
  EXPECT_THAT(refusal<FormatError>(), HasSubstr("key a occurs twice"));
  write_text(std::string(100, '['));
  EXPECT_THAT(refusal<FormatError>(), HasSubstr("nested deeper"));
  write_index(good);
  std::filesystem::copy(path() / "model-00001-of-00003.safetensors", path() / "copy.safetensors");
  changed = good;
  changed["weight_map"]["b"] = "copy.safetensors";
  write_index(changed);
  EXPECT_THAT(refusal<FormatError>(), HasSubstr("tensor a is in copy.safetensors and in model-"));
  write_index(good);
  std::filesystem::remove(path() / "model-00002-of-00003.safetensors");
  EXPECT_THAT(refusal<IoError>(), HasSubstr("the file model-00002-of-00003.safetensors of the "
                                            "index is missing; download the folder again"));
}

TEST_F(ShardedTest, SaysWhatOtherFoldersAre) {
  EXPECT_THAT(refusal<IoError>(), HasSubstr("neither model.safetensors nor pytorch_model.bin"));
  std::ofstream(path() / "pytorch_model.bin") << "x";
  EXPECT_THAT(refusal<FormatError>(), HasSubstr("pytorch_model.bin"));
}

TEST_F(ShardedTest, TorchFilesHaveTheSameTensors) {
  write(20, WeightsFormat::kTorch);
  EXPECT_EQ(read_json(path() / "pytorch_model.bin.index.json")["weight_map"],
            json({{"a", "pytorch_model-00001-of-00003.bin"},
                  {"b", "pytorch_model-00002-of-00003.bin"},
                  {"c", "pytorch_model-00003-of-00003.bin"},
                  {"d", "pytorch_model-00003-of-00003.bin"}}));
  for (const int64_t max_shard_bytes : {20, 64}) {
    write(max_shard_bytes, WeightsFormat::kTorch);
    const ShardedWeights file(path());
    ASSERT_EQ(file.tensors().size(), 4u);
    EXPECT_EQ(file.find("b")->shape, Shape({10}));
    for (const auto& [name, tensor] : file.tensors()) {
      EXPECT_EQ(first_of(tensor), static_cast<float>(name[0]));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path() / "pytorch_model.bin.index.json"));
  EXPECT_EQ(ShardedWeights(path() / "pytorch_model.bin").tensors().size(), 4u);
}

TEST_F(ShardedTest, SafetensorsComeFirst) {
  write(20, WeightsFormat::kTorch);
  write(64);
  EXPECT_EQ(ShardedWeights(path()).files().at("a"), "model.safetensors");
  EXPECT_THAT(message_of<ConfigError>([&] { write(20, WeightsFormat::kTorch); }),
              HasSubstr("model.safetensors, which readers would prefer"));
}

TEST_F(ShardedTest, TorchFilesOfOtherThingsAreRefused) {
  const auto write_object = [&](const auto& put) {
    TorchWriter writer(path() / "pytorch_model.bin");
    put(writer.pickle());
    writer.commit();
  };
  write_object([](PickleWriter& pickle) {
    pickle.begin_list();
    pickle.end_list();
  });
  EXPECT_THAT(refusal<FormatError>(), HasSubstr("not a dictionary of tensors"));
  write_object([](PickleWriter& pickle) {
    pickle.begin_dict();
    pickle.text("epoch"), pickle.integer(3);
    pickle.end_dict();
  });
  EXPECT_THAT(refusal<FormatError>(), HasSubstr("not a tensor under a name"));
}

}  // namespace
}  // namespace megatron
