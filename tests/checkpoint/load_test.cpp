#include "megatron/checkpoint/load.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "megatron/checkpoint/contents.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/save.h"
#include "megatron/core/crc32c.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/formats/safetensors.h"
#include "tests/checkpoint/sample_state.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class LoadCheckpointTest : public testing::Test {
 protected:
  LoadCheckpointTest() { save_checkpoint(directory_.path(), sample_state(20, 1)); }

  void load(CheckpointState& state) { load_checkpoint(path_, state); }
  std::string refusal(CheckpointState state) {
    return message_of<FormatError>([&] { load(state); });
  }
  // The message of whatever Error loading throws; empty when it succeeds.
  std::string error_of_load() {
    CheckpointState state = blank_state();
    try {
      load(state);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  void rewrite(const std::string& file, const std::string& bytes) {
    std::filesystem::remove(path_ / file);
    std::ofstream(path_ / file, std::ios::binary) << bytes;
  }
  // Changes the manifest and gives it a valid checksum.
  template <class F>
  void edit_manifest(F&& edit) {
    json document = json::parse(read_text(path_ / kManifestFile));
    edit(document);
    const std::string text = document.dump();
    char sum[64];
    std::snprintf(sum, sizeof(sum), "crc32c %08x %zu\n", crc32c(std::as_bytes(std::span(text))),
                  text.size());
    rewrite(kManifestFile, text);
    rewrite(kManifestSumFile, sum);
  }

  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "iter_0000020";
};

// A section of fp32 tensors t0, t1, .. of different sizes; reading those in `damaged` throws.
CheckpointContents contents_with(const std::vector<Tensor>& tensors, const std::set<int>& damaged) {
  CheckpointContents contents;
  for (size_t i = 0; i < tensors.size(); ++i) {
    StoredTensor stored{tensors[i].shape(), tensors[i].dtype(), {}};
    stored.pieces.push_back({{{0}, tensors[i].shape()}, [i, damaged, tensor = tensors[i]] {
                               if (damaged.contains(static_cast<int>(i))) {
                                 throw FormatError(fmt::format("t{} is damaged", i));
                               }
                               return FileElements{tensor.view(), tensor};
                             }});
    contents.sections[kWeightsSection][fmt::format("t{}", i)] = stored;
  }
  return contents;
}

class ReadSectionTest : public testing::Test {
 protected:
  ReadSectionTest() {
    for (int64_t i = 0; i < 12; ++i) {
      tensors_.push_back(random_normal({7 * (i % 5) + 1}, {.seed = static_cast<uint64_t>(i)}));
      targets_.push_back(whole_tensor(fmt::format("t{}", i),
                                      zeros(tensors_.back().shape(), DType::kFloat32, Stream{})));
    }
#if defined(_OPENMP)
    omp_set_num_threads(3);
#endif
  }
  ~ReadSectionTest() override {
#if defined(_OPENMP)
    omp_set_num_threads(threads_);
#endif
  }

#if defined(_OPENMP)
  const int threads_ = omp_get_max_threads();
#endif
  std::vector<Tensor> tensors_;
  std::vector<CheckpointTensor> targets_;
};

TEST_F(ReadSectionTest, ThreadsFillEveryTarget) {
  read_section(contents_with(tensors_, {}), kWeightsSection, targets_);
  for (size_t i = 0; i < tensors_.size(); ++i) expect_identical(targets_[i].data, tensors_[i]);
}

TEST_F(ReadSectionTest, ThrowsTheErrorOfTheFirstTarget) {
  const CheckpointContents contents = contents_with(tensors_, {9, 4, 5});
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(message_of<FormatError>([&] { read_section(contents, kWeightsSection, targets_); }),
              "t4 is damaged");
  }
}

TEST_F(LoadCheckpointTest, ReadsWeightsAlone) {
  CheckpointState state = blank_state();
  const Tensor untouched = copied(state.optimizer["exp_avg"][0].data);
  load_checkpoint(path_, state, {.optimizer = false});
  expect_same_tensors(state.model, sample_state(20, 1).model);
  expect_identical(state.optimizer["exp_avg"][0].data, untouched);

  CheckpointState weights = blank_state();
  weights.optimizer.clear();
  load(weights);
  expect_same_tensors(weights.model, sample_state(20, 1).model);
}

TEST_F(LoadCheckpointTest, RoundsToTheModel) {
  CheckpointState state = blank_state();
  for (CheckpointTensor& tensor : state.model) {
    tensor = whole_tensor(tensor.name, cast(tensor.data, DType::kFloat32));
  }
  load(state);
  const CheckpointState want = sample_state(20, 1);
  for (size_t i = 0; i < state.model.size(); ++i) {
    expect_identical(state.model[i].data, cast(want.model[i].data, DType::kFloat32));
  }
}

TEST_F(LoadCheckpointTest, ReportsAllDifferencesTogether) {
  CheckpointState state = blank_state();
  for (CheckpointTensor& tensor : state.model) {
    if (tensor.name == "embedding.word_embeddings.weight") {
      tensor = whole_tensor(tensor.name, zeros({64, 6}, DType::kBFloat16, {}));
    }
    if (tensor.name == "decoder.layers.0.mlp.linear_fc1.weight") {
      tensor = whole_tensor(tensor.name, zeros({12, 6}, DType::kBFloat16, {}));
    }
    if (tensor.name == "decoder.layers.0.mlp.linear_fc1.bias") tensor.name = "other.bias";
    if (tensor.name == "scale") tensor = whole_tensor("scale", zeros({}, DType::kInt64, {}));
  }
  state.optimizer["exp_avg"].pop_back();
  EXPECT_THAT(
      refusal(state),
      AllOf(HasSubstr(path_.string() + ": 6 tensors do not fit"),
            HasSubstr("--use-checkpoint-args"),
            HasSubstr("vocabulary: embedding.word_embeddings.weight is [32, 6] in the checkpoint, "
                      "[64, 6] in the model; use the checkpoint's tokenizer"),
            HasSubstr("--padded-vocab-size 32"),
            HasSubstr("shape: decoder.layers.0.mlp.linear_fc1.weight is [10, 6] in the checkpoint, "
                      "[12, 6] in the model"),
            HasSubstr("missing: the checkpoint has no other.bias [10]"),
            HasSubstr("dtype: scale is bfloat16 in the checkpoint, int64 in the model"),
            HasSubstr("unexpected: the model has no decoder.layers.0.mlp.linear_fc1.bias [10]"),
            HasSubstr("(exp_avg)")));
}

TEST_F(LoadCheckpointTest, ExplainsAnotherOptimizer) {
  CheckpointState state = blank_state();
  state.optimizer["momentum_buffer"] = state.optimizer["exp_avg"];
  EXPECT_THAT(refusal(state),
              AllOf(HasSubstr("has no momentum_buffer"), HasSubstr("--no-load-optim")));
}

// A run in fp32 keeps no copies of its weights, which a run in bf16 wants.
TEST_F(LoadCheckpointTest, ExplainsAnotherPrecisionAndMissingState) {
  CheckpointState fp32 = sample_state(30, 1);
  fp32.optimizer.erase("main_param");
  save_checkpoint(directory_.path(), fp32);
  path_ = directory_.path() / "iter_0000030";
  EXPECT_THAT(refusal(blank_state()),
              AllOf(HasSubstr("has no main_param: it was saved by a run in fp32"),
                    HasSubstr("--no-load-optim")));
  fp32.optimizer.clear();
  fp32.iteration = 40;
  save_checkpoint(directory_.path(), fp32);
  path_ = directory_.path() / "iter_0000040";
  EXPECT_THAT(refusal(blank_state()), HasSubstr("saved without the optimizer's state"));
}

// One flipped bit anywhere in any file, the manifest and its sum included, is noticed.
TEST_F(LoadCheckpointTest, EveryByteIsGuarded) {
  EXPECT_EQ(error_of_load(), "");
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    const std::string file = entry.path().filename().string();
    const std::string original = read_text(entry.path());
    const size_t stride = std::max<size_t>(original.size() / 97, 1);
    for (size_t at = 0; at < original.size(); at += stride) {
      std::string bytes = original;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
      rewrite(file, bytes);
      ASSERT_NE(error_of_load(), "") << file << " byte " << at;
    }
    for (const size_t size : {size_t{0}, original.size() / 2, original.size() - 1}) {
      rewrite(file, original.substr(0, size));
      ASSERT_NE(error_of_load(), "") << file << " cut to " << size;
    }
    rewrite(file, original + "x");
    ASSERT_NE(error_of_load(), "") << file << " grown";
    rewrite(file, original);
  }
  EXPECT_EQ(error_of_load(), "");
}

TEST_F(LoadCheckpointTest, NamesFileTensorAndChunkOfDamage) {
  const std::string file = "exp_avg-00000-of-00001.safetensors";
  std::string bytes = read_text(path_ / file);
  const SafetensorsFile layout(path_ / file);
  const auto at = static_cast<size_t>(layout.find("embedding.word_embeddings.weight")->offset);
  bytes[at + 5] = static_cast<char>(bytes[at + 5] ^ 1);
  rewrite(file, bytes);
  EXPECT_THAT(error_of_load(), AllOf(HasSubstr(file),
                                     HasSubstr("chunk [0, 32) x [0, 6) of "
                                               "embedding.word_embeddings.weight"),
                                     HasSubstr("load an earlier one (--ckpt-step)")));
  std::filesystem::remove(path_ / file);
  EXPECT_THAT(error_of_load(), AllOf(HasSubstr(file), HasSubstr("No such file")));
}

TEST_F(LoadCheckpointTest, RefusesWrongManifests) {
  const std::string good = read_text(path_ / kManifestFile);
  const auto expect = [&](auto&& edit, const char* message) {
    edit_manifest(edit);
    EXPECT_THAT(error_of_load(), HasSubstr(message));
    edit_manifest([&](json& document) { document = json::parse(good); });
    EXPECT_EQ(error_of_load(), "");
  };
  const auto word = [](json& d) -> json& {
    return d["sections"]["weights"]["embedding.word_embeddings.weight"];
  };
  expect([](json& d) { d["format"] = "other"; }, "format is \"other\", expected mgt1");
  expect([](json& d) { d["version"] = 2; }, "version 2 of the checkpoint format");
  expect([](json& d) { d.erase("iteration"); }, "manifest.json");
  expect([](json& d) { d["iteration"] = "x"; }, "manifest.json");
  expect([](json& d) { d["sections"].erase("weights"); }, "no section weights");
  expect([&](json& d) { word(d)["chunks"] = json::array(); }, "hold 0 of its 192 elements");
  expect([&](json& d) { word(d)["chunks"].push_back(word(d)["chunks"][0]); }, "two chunks");
  expect([&](json& d) { word(d)["chunks"][0]["offset"] = {1, 0}; }, "outside its shape");
  expect([&](json& d) { word(d)["chunks"][0]["offset"] = {0}; }, "outside its shape");
  expect([&](json& d) { word(d)["chunks"][0]["file"] = "x"; }, "is not among the files");
  expect([&](json& d) { word(d)["chunks"][0]["key"] = "scale"; }, "entry scale is not the chunk");
  expect([&](json& d) { word(d)["chunks"][0]["crc32c"] = "0"; }, "8 hexadecimal digits");
  expect([&](json& d) { word(d)["dtype"] = "float8"; }, "\"float8\" is not a dtype");
  expect([&](json& d) { word(d)["shape"] = {INT64_MAX, INT64_MAX}; }, "is not a shape");
  expect([&](json& d) { word(d)["shape"] = {1, 1, 1, 1, 1, 32, 6}; }, "too many axes");
  expect([](json& d) { d["files"]["../x"] = d["files"]["args.json"]; }, "not a file name");
  expect([](json& d) { d["files"].erase("args.json"); }, "args.json");
}

}  // namespace
}  // namespace megatron
