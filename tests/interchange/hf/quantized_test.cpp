// Quantized folders against transformers with the same weights dequantized
// (tests/golden/quantized/README.md), and what is refused.
#include "megatron/interchange/hf/quantized.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/core/file.h"
#include "megatron/interchange/hf/folder.h"
#include "megatron/models/gpt/gpt_model.h"
#include "tests/interchange/hf/golden_model.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::filesystem::path quantized_folder(const std::string& name) {
  return std::filesystem::path(source_path("tests/golden/quantized")) / name;
}

// Parameter: a folder.
class QuantizedTest : public testing::TestWithParam<const char*> {
 protected:
  static std::filesystem::path folder() { return quantized_folder(GetParam()); }
};

double largest_difference(const std::filesystem::path& folder, const HfModel& hf,
                          const SafetensorsFile& expected) {
  const CheckpointContents contents = open_hf_checkpoint(folder, hf);
  const auto model = std::make_unique<GptModel>(hf.transformer, Stream{});
  for (const Parameter& parameter : named_tensors(*model)) {
    Variable variable = parameter.variable;
    copy_into(variable.mutable_data(),
              read_whole(contents.sections.at(kWeightsSection).at(parameter.name)));
  }
  const Tensor ids = copy_of(expected.at("input.input_ids"));
  ModelInput input;
  input.tokens = tensor_of(std::span<const int64_t>(ids.span<int64_t>()), ids.shape());
  const NoGrad no_grad;
  RandomState random{1234};
  const Tensor logits = model->logits(model->hidden_states(input, random)).data();
  const Tensor want = copy_of(expected.at("logits"));
  return deviation(like_theirs(logits, want), want).absolute;
}

TEST_P(QuantizedTest, LogitsAreThoseOfTheDequantizedModel) {
  const SafetensorsFile expected(folder() / "expected.safetensors");
  EXPECT_LE(largest_difference(folder(), read_hf_config(folder()), expected), 1e-4);
}

TEST_P(QuantizedTest, IsWrittenWithPlainWeights) {
  const HfModel model = read_hf_config(folder());
  const TemporaryDirectory directory;
  write_hf_folder(directory.path(), open_hf_checkpoint(folder(), model), model.transformer,
                  {.vocab_size = model.vocab_size});
  const HfModel written = read_hf_config(directory.path());
  EXPECT_EQ(written.quantization, nullptr);
  EXPECT_EQ(written.family, model.family);
  const SafetensorsFile expected(folder() / "expected.safetensors");
  EXPECT_LE(largest_difference(directory.path(), written, expected), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Folders, QuantizedTest,
                         testing::Values("gptq", "gptq-v2", "awq", "compressed-fp8",
                                         "compressed-int8", "compressed-packed", "mxfp4",
                                         "fp8-blocks", "bitsandbytes-4bit", "bitsandbytes-8bit"),
                         [](const auto& folder) {
                           std::string name = folder.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A copy of a folder, its config.json and its tensors changed.
class QuantizedErrors : public testing::Test {
 protected:
  using Fields = std::map<std::string, json>;

  // The message about a folder with other fields in quantization_config.
  std::string with_settings(const std::string& name, const Fields& fields) {
    const std::filesystem::path folder = quantized_folder(name);
    json config = json::parse(read_text(folder / "config.json"));
    for (const auto& [key, value] : fields) config["quantization_config"][key] = value;
    directory_.write("config.json", config.dump());
    try {
      read_hf_config(directory_.path());
    } catch (const Unsupported& error) {
      return error.what();
    }
    return "accepted";
  }
  // The message about a folder without a tensor of its first layer, or with another.
  std::string with_tensor(const std::string& name, const std::string& tensor,
                          const Tensor& replacement) {
    const std::filesystem::path folder = quantized_folder(name);
    const SafetensorsFile file(folder / "model.safetensors");
    std::vector<TensorSpec> specs;
    const auto is_changed = [&](const TensorSpec& spec) {
      return spec.name == "model.layers.0." + tensor;
    };
    size_t changed = 0;
    for (const SafetensorsFile::Entry& entry : file.tensors()) {
      changed += is_changed(entry.spec) ? 1 : 0;
      if (!is_changed(entry.spec)) {
        specs.push_back(entry.spec);
      } else if (replacement.defined()) {
        specs.push_back({entry.spec.name, replacement.dtype(), replacement.shape()});
      }
    }
    EXPECT_EQ(changed, 1u);
    SafetensorsWriter writer(directory_.path() / "model.safetensors", specs);
    for (const TensorSpec& spec : writer.specs()) {
      writer.write(is_changed(spec) ? replacement.view() : file.at(spec.name));
    }
    writer.commit();
    directory_.write("config.json", read_text(folder / "config.json"));
    try {
      const CheckpointContents contents =
          open_hf_checkpoint(directory_.path(), read_hf_config(directory_.path()));
      for (const auto& [own, stored] : contents.sections.at(kWeightsSection)) read_whole(stored);
    } catch (const FormatError& error) {
      return error.what();
    }
    return "accepted";
  }

  TemporaryDirectory directory_;
};

TEST_F(QuantizedErrors, NamesMethodsAndSettingsThatAreNotRead) {
  EXPECT_THAT(with_settings("gptq", {{"quant_method", "hqq"}}),
              AllOf(HasSubstr("quant_method is \"hqq\""),
                    HasSubstr("gptq, awq, compressed-tensors, mxfp4, fp8, bitsandbytes"),
                    HasSubstr("original model")));
  EXPECT_THAT(with_settings("bitsandbytes-4bit", {{"bnb_4bit_quant_storage", "bfloat16"}}),
              HasSubstr("bnb_4bit_quant_storage is \"bfloat16\""));
  EXPECT_THAT(with_settings("gptq", {{"checkpoint_format", "marlin"}}),
              HasSubstr("checkpoint_format is \"marlin\": read are gptq, gptq_v2"));
  EXPECT_THAT(with_settings("awq", {{"version", "gemv"}}), HasSubstr("version is \"gemv\""));
  EXPECT_THAT(with_settings("awq", {{"bits", 8}}), HasSubstr("bits is 8"));
  EXPECT_THAT(with_settings("awq", {{"zero_point", false}}), HasSubstr("zero_point is false"));
  EXPECT_THAT(with_settings("compressed-fp8", {{"format", "nvfp4-pack-quantized"}}),
              HasSubstr("format is \"nvfp4-pack-quantized\""));
  EXPECT_THAT(with_settings("compressed-fp8", {{"transform_config", {{"a", 1}}}}),
              HasSubstr("transform_config"));
  const json three = {{"group_0", {{"weights", {{"num_bits", 3}}}}}};
  EXPECT_THAT(with_settings("compressed-packed", {{"config_groups", three}}),
              HasSubstr("num_bits is 3"));
}

TEST_F(QuantizedErrors, NamesTensorsThatAreMissingOrDoNotFit) {
  const auto integers = [](const Shape& shape) { return zeros(shape, DType::kInt32, Stream{}); };
  EXPECT_THAT(with_tensor("gptq", "mlp.up_proj.qzeros", {}),
              HasSubstr("layers.0.mlp.up_proj.qzeros is missing, expected a tensor of 2 axes"));
  EXPECT_THAT(with_tensor("gptq", "mlp.up_proj.scales", integers({3, 96})),
              HasSubstr("scales is [3, 96] of int32, expected [2, 96]"));
  EXPECT_THAT(with_tensor("gptq", "mlp.up_proj.qzeros", integers({2, 7})),
              HasSubstr("expected zero points of 2, 3, 4 or 8 bits of 96 rows"));
  EXPECT_THAT(
      with_tensor("gptq", "mlp.down_proj.g_idx", tensor_of(std::vector<int32_t>(96, 3), {96})),
      HasSubstr("g_idx has group 3, but there are 3"));
  EXPECT_THAT(with_tensor("gptq", "mlp.down_proj.g_idx", integers({95})),
              HasSubstr("expected 96 groups"));
  EXPECT_THAT(with_tensor("gptq", "mlp.down_proj.qweight", integers({23, 64})),
              HasSubstr("g_idx is [96] of int32, expected 92 groups"));
  EXPECT_THAT(with_tensor("gptq-v2", "mlp.up_proj.bias", full({96}, 1.0f, DType::kFloat16, {})),
              HasSubstr("unexpected: model.layers.0.mlp.up_proj.bias"));
  EXPECT_THAT(with_tensor("awq", "mlp.up_proj.qzeros", integers({3, 10})),
              HasSubstr("qzeros is [3, 10] of int32, expected [groups of the 64 inputs, 10]"));
  EXPECT_THAT(with_tensor("compressed-fp8", "mlp.up_proj.weight_scale", integers({5, 2})),
              HasSubstr("weight_scale is [5, 2] of int32, expected one scale"));
  EXPECT_THAT(with_tensor("compressed-int8", "mlp.up_proj.weight", integers({96, 64})),
              HasSubstr("expected int8 or FP8"));
  EXPECT_THAT(with_tensor("compressed-packed", "mlp.up_proj.weight_packed", integers({80, 7})),
              HasSubstr("expected packed numbers of a weight [80, 64]"));
  const auto bytes = [](const Shape& shape) { return zeros(shape, DType::kUInt8, Stream{}); };
  const std::string state = "mlp.down_proj.weight.quant_state.bitsandbytes__nf4";
  EXPECT_THAT(with_tensor("bitsandbytes-4bit", state, bytes({9})),
              HasSubstr("expected JSON with the shape and blocksize of a matrix"));
  EXPECT_THAT(with_tensor("bitsandbytes-4bit", state, {}), HasSubstr("fp4 is missing"));
  EXPECT_THAT(with_tensor("bitsandbytes-4bit", "mlp.down_proj.weight", bytes({4095, 1})),
              HasSubstr("expected the numbers of a weight [64, 128]"));
  EXPECT_THAT(with_tensor("bitsandbytes-4bit", "mlp.down_proj.weight.absmax", bytes({127})),
              HasSubstr("absmax is [127] of uint8, expected [128]"));
  EXPECT_THAT(with_tensor("bitsandbytes-8bit", "mlp.down_proj.SCB", bytes({63})),
              HasSubstr("SCB is [63] of uint8, expected [64]"));
  EXPECT_THAT(with_tensor("bitsandbytes-8bit", "mlp.down_proj.weight_format",
                          tensor_of(std::vector<uint8_t>{1}, {})),
              HasSubstr("expected 0: numbers in the order of rows"));
}

TEST_F(QuantizedErrors, ValuesAreRoundedToTheModelsDtype) {
  const std::filesystem::path folder = quantized_folder("awq");
  json config = json::parse(read_text(folder / "config.json"));
  config["dtype"] = "bfloat16";
  directory_.write("config.json", config.dump());
  std::filesystem::copy(folder / "model.safetensors", directory_.path());
  const CheckpointContents exact = open_hf_checkpoint(folder, read_hf_config(folder));
  const CheckpointContents rounded =
      open_hf_checkpoint(directory_.path(), read_hf_config(directory_.path()));
  const char* name = "decoder.layers.0.mlp.linear_fc2.weight";
  const StoredTensor& got = rounded.sections.at(kWeightsSection).at(name);
  EXPECT_EQ(got.dtype, DType::kBFloat16);
  const Tensor want = cast(read_whole(exact.sections.at(kWeightsSection).at(name)), got.dtype);
  EXPECT_EQ(deviation(cast(read_whole(got), DType::kFloat32), cast(want, DType::kFloat32)).absolute,
            0);
}

}  // namespace
}  // namespace megatron
