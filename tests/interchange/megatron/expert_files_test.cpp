// Experts in checkpoints of the format torch, of Megatron Core and of the older models: a file of
// each tensor-parallel rank has a part of each expert.
#include <gmock/gmock.h>

#include <map>
#include <string>

#include "megatron/core/error.h"
#include "megatron/formats/torch_file.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/reader.h"
#include "megatron/interchange/megatron/writer.h"
#include "megatron/interchange/save_contents.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/models/model_specs.h"
#include "megatron/settings/flag_table.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr const char* kGoldenExperts = "golden/moe/ckpt/dsv3-torch/iter_0000010";

CheckpointContents contents_at(const std::filesystem::path& directory) {
  const MegatronCheckpoint checkpoint(directory);
  CheckpointContents contents = checkpoint.contents(checkpoint.args());
  // Fp32 weights are main parameters; a buffer among them is none.
  std::erase_if(contents.sections.at(kMainParamSection),
                [](const auto& entry) { return entry.first.ends_with(".expert_bias"); });
  return contents;
}

void expect_equal_contents(const CheckpointContents& got, const CheckpointContents& want) {
  ASSERT_EQ(got.sections.size(), want.sections.size());
  for (const auto& [section, tensors] : want.sections) {
    ASSERT_EQ(got.sections.at(section).size(), tensors.size()) << section;
    for (const auto& [name, tensor] : tensors) {
      expect_identical(read_whole(got.sections.at(section).at(name)), read_whole(tensor),
                       section + " of " + name);
    }
  }
}

// Bytes of the tensors that a file has under "model".
std::map<std::string, std::string> model_of(const std::filesystem::path& file) {
  const TorchFile opened(file);
  std::map<std::string, std::string> model;
  for (const auto& [path, value] : flattened(*opened.root().find("model"))) {
    std::string& text = model[path];
    const PyTensor* tensor = value.tensor();
    if (tensor == nullptr) continue;
    const FileElements elements = opened.elements(*tensor);
    text = elements.view.shape.str() + std::string(static_cast<const char*>(elements.view.data),
                                                   static_cast<size_t>(elements.view.bytes()));
  }
  return model;
}

TEST(ExpertFilesTest, AreThoseOfMegatronCore) {
  MG_NEEDS_SHARED("golden/moe/flags.sh");
  const std::filesystem::path golden = shared_data(kGoldenExperts);
  const TemporaryDirectory directory;
  write_megatron_files(directory.path(), contents_at(golden), {.naming = MegatronNaming::kCore});
  const auto want = model_of(golden / "mp_rank_00/model_optim_rng.pt");
  const auto got = model_of(directory.path() / "mp_rank_00/model_optim_rng.pt");
  for (const auto& [path, elements] : want) {
    ASSERT_TRUE(got.contains(path)) << path;
    EXPECT_TRUE(got.at(path) == elements) << path;
  }
  EXPECT_EQ(got.size(), want.size());
}

// Files of any number of tensor- and pipeline-parallel ranks, with the optimizer's state.
TEST(ExpertFilesTest, OfAllRanksTogetherAreTheWhole) {
  MG_NEEDS_SHARED("golden/moe/flags.sh");
  const CheckpointContents want = contents_at(shared_data(kGoldenExperts));
  for (const auto& [tensor, pipeline] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {2, 2}}) {
    for (const bool is_distributed : {false, true}) {
      CheckpointContents saved = want;
      saved.args["tensor_model_parallel_size"] = tensor;
      saved.args["pipeline_model_parallel_size"] = pipeline;
      const TemporaryDirectory directory;
      write_megatron_files(directory.path(), saved,
                           {.naming = MegatronNaming::kCore,
                            .tensor_model_parallel_size = tensor,
                            .pipeline_model_parallel_size = pipeline,
                            .use_distributed_optimizer = is_distributed});
      SCOPED_TRACE(std::to_string(tensor) + " x " + std::to_string(pipeline));
      expect_equal_contents(contents_at(directory.path()), want);
    }
  }
}

// A Switch Transformer, trained for an iteration.
class SwitchFilesTest : public testing::Test {
 protected:
  static constexpr int64_t kExperts = 4;

  void SetUp() override {
    TrainingArgs args;
    TransformerConfig& c = args.transformer;
    c.num_layers = 2;
    c.hidden_size = 8;
    c.num_attention_heads = 2;
    c.ffn_hidden_size = 12;
    c.seq_length = 8;
    c.max_position_embeddings = 8;
    c.padded_vocab_size = 16;
    c.num_experts = kExperts;
    c.moe_router_topk = 1;
    c.moe_router_load_balancing_type = {"sinkhorn"};
    c.moe_legacy_router = true;
    args.training.megatron_compat = "0.5";
    args.training.micro_batch_size = 1;
    args.tokenizer = {.tokenizer_type = "NullTokenizer", .vocab_size = 15};
    config_ = resolved(c);
    args.transformer = config_;
    contents_.args = arg_map(args);
    contents_.args["padded_vocab_size"] = config_.padded_vocab_size;
    contents_.iteration = 1;
    for (const char* const section : {kWeightsSection, "exp_avg", "exp_avg_sq"}) {
      for (const Parameter& spec : model_specs(config_)) {
        const Tensor x = random_normal(spec.shape, {.seed = ++seed_});
        contents_.sections[section][spec.name] =
            tensor_in_one_piece(x.shape(), DType::kFloat32, [x] {
              return FileElements{x.view(), x};
            });
      }
    }
  }

  TransformerConfig config_;
  CheckpointContents contents_;
  uint64_t seed_ = 0;
};

TEST_F(SwitchFilesTest, HaveTheNamesOfTheOlderModels) {
  const TemporaryDirectory directory;
  write_megatron_files(directory.path(), contents_, {.naming = MegatronNaming::kLegacy});
  const auto model = model_of(directory.path() / "mp_rank_00/model_optim_rng.pt");
  const std::string mlp = "language_model.encoder.layers.1.mlp.";
  for (const char* const name :
       {"router.weight", "local_experts.3.dense_h_to_4h.weight",
        "local_experts.0.dense_h_to_4h.bias", "local_experts.2.dense_4h_to_h.weight",
        "local_experts.1.dense_4h_to_h.bias", "local_experts.1.dense_4h_to_h._extra_state"}) {
    EXPECT_TRUE(model.contains(mlp + name)) << name;
  }
  EXPECT_FALSE(model.contains(mlp + "dense_h_to_4h._extra_state"));
  // Each expert has its own matrix.
  const Tensor all = read_whole(
      contents_.sections.at(kWeightsSection).at("decoder.layers.1.mlp.experts.linear_fc2.weight"));
  const Tensor third = all.slice(2, 1);
  const std::string want = "[8, 12]" + std::string(static_cast<const char*>(third.view().data),
                                                   static_cast<size_t>(third.bytes()));
  EXPECT_TRUE(model.at(mlp + "local_experts.2.dense_4h_to_h.weight") == want);
}

TEST_F(SwitchFilesTest, OfAllRanksTogetherAreTheWhole) {
  for (const auto& [tensor, pipeline] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {2, 2}}) {
    CheckpointContents saved = contents_;
    saved.args["tensor_model_parallel_size"] = tensor;
    saved.args["pipeline_model_parallel_size"] = pipeline;
    const TemporaryDirectory directory;
    write_megatron_files(directory.path(), saved,
                         {.naming = MegatronNaming::kLegacy,
                          .tensor_model_parallel_size = tensor,
                          .pipeline_model_parallel_size = pipeline});
    const MegatronCheckpoint read(directory.path());
    const CheckpointContents got = read.contents(read.args());
    for (const char* const section : {kWeightsSection, "exp_avg", "exp_avg_sq"}) {
      for (const auto& [name, tensor_of_section] : contents_.sections.at(section)) {
        expect_identical(read_whole(got.sections.at(section).at(name)),
                         read_whole(tensor_of_section), section + (" of " + name));
      }
    }
  }
}

// The flags of a run of the older models say nothing of its experts.
TEST_F(SwitchFilesTest, RouteAsTheOlderModels) {
  contents_.args["moe_router_topk"] = int64_t{2};
  contents_.args["moe_router_load_balancing_type"] = std::string("aux_loss");
  contents_.args["moe_aux_loss_coeff"] = 0.01;
  contents_.args.erase("megatron_compat");
  const TemporaryDirectory directory;
  write_megatron_files(directory.path(), contents_, {.naming = MegatronNaming::kLegacy});
  const MegatronCheckpoint read(directory.path());
  const TransformerConfig config =
      described_run(CheckpointFormat::kMegatron, read.contents(read.args())).transformer;
  EXPECT_EQ(config.num_experts, kExperts);
  EXPECT_EQ(config.moe_router_topk, 1);
  EXPECT_EQ(config.moe_router_load_balancing_type, std::vector<std::string>{"sinkhorn"});
  EXPECT_TRUE(config.moe_legacy_router);
}

TEST_F(SwitchFilesTest, HoldNoOtherExperts) {
  expect_place(SaveFormat::kMegatron, config_);
  const auto refused = [&](auto ExpertConfig::*field, const auto& value) {
    TransformerConfig other = config_;
    other.*field = value;
    EXPECT_THAT(message_of<Unsupported>([&] { expect_place(SaveFormat::kMegatron, other); }),
                testing::HasSubstr("--save-format megatron holds experts of one kind alone"));
  };
  refused(&TransformerConfig::moe_router_topk, 2);
  refused(&TransformerConfig::moe_router_load_balancing_type, std::vector<std::string>{"aux_loss"});
  refused(&TransformerConfig::moe_expert_capacity_factor, 1.5);
  refused(&TransformerConfig::moe_layer_freq, std::vector<int>{1, 0});
  refused(&TransformerConfig::moe_legacy_router, false);
}

}  // namespace
}  // namespace megatron
