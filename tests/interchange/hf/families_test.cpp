// Families of transformers beyond a model on one rank (model_golden_test.cpp): both spellings of
// config.json, exported folders, settings, tensor-parallel ranks, pipeline chunks and the paged
// cache, against the results of transformers (../shared/golden/README-modern.md).
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "megatron/core/file.h"
#include "megatron/inference/engine.h"
#include "megatron/interchange/hf/folder.h"
#include "megatron/interchange/save_contents.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/models/gpt/gpt_model.h"
#include "tests/interchange/hf/golden_model.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using nlohmann::json;

// A rank's part of a stored tensor.
Tensor local_part(const StoredTensor& stored, const Sharding& sharding) {
  const Shape local = sharding.local(stored.shape);
  Tensor y(local, stored.dtype, Stream{});
  for (const Sharding::Block& block : sharding.blocks(local)) {
    const Tensor part = read_region(stored, {block.whole, block.shape});
    copy_shared(static_cast<std::byte*>(y.view().data), whole_region(local),
                static_cast<const std::byte*>(part.view().data), {block.local, block.shape},
                size_of(stored.dtype));
  }
  return y;
}

// Parameter: a folder (golden_folder).
class HfFamilyTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(folder())) {
      GTEST_SKIP() << "needs " << folder() << ": not found, not run";
    }
    model_ = read_hf_config(folder());
    expected_ = std::make_unique<SafetensorsFile>(folder() / "expected.safetensors");
  }

  static std::filesystem::path folder() { return golden_folder(GetParam()); }
  static bool has_older_config() { return std::filesystem::exists(folder() / "config.hub.json"); }

  // transformers adds an auxiliary loss of all layers together, which is not Megatron-LM's.
  bool has_auxiliary_loss() const { return expected_->find("aux_loss") != nullptr; }
  double expected_loss() const {
    const double loss = expected("loss").item();
    if (!has_auxiliary_loss()) return loss;
    const json config = json::parse(read_text(folder() / "config.json"));
    return loss - config["router_aux_loss_coef"].get<double>() * expected("aux_loss").item();
  }

  // The model without dropout, its vocabulary padded to an even number of rows.
  TransformerConfig config() const {
    TransformerConfig config = model_.transformer;
    config.hidden_dropout = config.attention_dropout = 0;
    config.padded_vocab_size += config.padded_vocab_size % 2;
    return config;
  }
  LayoutSizes sizes() const {
    const TransformerConfig& c = model_.transformer;
    return {c.num_attention_heads, c.num_query_groups, c.kv_channels, model_.vocab_size};
  }
  Tensor expected(const std::string& name) const { return copy_of(expected_->at(name)); }
  Tensor tokens() const {
    const Tensor ids = expected("input.input_ids");
    return tensor_of(std::span<const int64_t>(ids.span<int64_t>()), ids.shape());
  }
  TokenTargets targets() const {
    const Tensor ids = tokens();
    TokenTargets targets = {.labels = tokens(),
                            .loss_mask = full(ids.shape(), 1.0f, DType::kFloat32, {})};
    const auto length = static_cast<size_t>(ids.size(1));
    for (size_t i = 0; i < static_cast<size_t>(ids.numel()); ++i) {
      const bool is_last = (i + 1) % length == 0;
      targets.labels.span<int64_t>()[i] = is_last ? 0 : ids.span<int64_t>()[i + 1];
      if (is_last) targets.loss_mask.span<float>()[i] = 0;
    }
    return targets;
  }
  StoredSection weights() const {
    HfModel padded = model_;
    padded.transformer = config();
    return open_hf_weights(std::make_shared<const ShardedWeights>(folder()), padded);
  }
  // The gradients of transformers, in our layouts.
  StoredSection gradients() const {
    StoredSection section;
    const std::vector<TensorSpec> ours = model_tensors(config());
    for (const TensorMapping& tensor : mapped(hf_names(*model_.family, config()), ours)) {
      if (tensor.ours.name.ends_with(".expert_bias")) continue;  // a buffer
      std::vector<StoredTensor> theirs;
      for (const std::string& name : tensor.theirs) {
        const ConstView gradient =
            expected_->at("grad." + (name == "embed_out.weight" ? "lm_head.weight" : name));
        theirs.push_back(tensor_in_one_piece(gradient.shape, gradient.dtype,
                                             [gradient] { return FileElements{gradient}; }));
      }
      section[tensor.ours.name] = from_theirs(tensor, std::move(theirs), sizes());
    }
    return section;
  }

  // Chunks of about equal size, with this rank's part of the weights.
  std::vector<std::unique_ptr<GptModel>> chunks(int64_t count, const comm::Group& ranks) const {
    const TransformerConfig c = config();
    const StoredSection stored = weights();
    std::vector<std::unique_ptr<GptModel>> made;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = c.num_layers * i / count;
      const ModelChunk chunk = {.first_layer = first,
                                .num_layers = c.num_layers * (i + 1) / count - first,
                                .has_embedding = i == 0,
                                .has_head = i + 1 == count};
      made.push_back(
          std::make_unique<GptModel>(c, chunk, TensorParallel{.group = ranks}, Stream{}));
      for (const Parameter& parameter : named_tensors(*made.back())) {
        Variable variable = parameter.variable;
        copy_into(variable.mutable_data(),
                  local_part(stored.at(parameter.name), parameter.info.sharding));
      }
    }
    return made;
  }

  void expect_logits(const Tensor& logits, const comm::Group& ranks) const {
    const Tensor want = expected("logits");
    const int64_t columns = logits.size(2);
    const int64_t known = std::min(columns, want.size(2) - columns * ranks.rank());
    double largest = 0;
    for (int64_t i = 0; i < logits.size(0); ++i) {
      for (int64_t j = 0; j < logits.size(1); ++j) {
        const float* got = logits.span<float>().data() + (i * logits.size(1) + j) * columns;
        const float* row = want.span<float>().data() + (j * want.size(1) + i) * want.size(2) +
                           columns * ranks.rank();
        for (int64_t k = 0; k < known; ++k) {
          largest = std::max(largest, std::abs(static_cast<double>(got[k]) - row[k]));
        }
      }
    }
    EXPECT_LE(largest, 1e-4);
  }

  // Loss, logits and every gradient of a model in chunks, on tensor-parallel ranks.
  void expect_training_step(int64_t num_chunks, const comm::Group& ranks) const {
    const std::vector<std::unique_ptr<GptModel>> made = chunks(num_chunks, ranks);
    RandomState random(1);
    const ModelInput input = {.tokens = tokens()};
    Activations activations;
    for (const auto& chunk : made) activations = chunk->forward(input, activations, random);
    const Model& last = *made.back();
    const Variable loss = token_loss(last, activations.back(), targets());
    EXPECT_NEAR(loss.data().item(), expected_loss(), 1e-5);
    {
      const NoGrad no_grad;
      expect_logits(last.logits(activations.back()).data(), ranks);
    }
    if (has_auxiliary_loss()) return;
    backward(loss);
    std::map<std::string, Tensor> got;
    std::map<std::string, ParameterInfo> infos;
    for (const auto& chunk : made) {
      for (const Parameter& parameter : named_parameters(*chunk)) {
        infos[parameter.name] = parameter.info;
        const Tensor gradient = parameter.variable.grad();
        Tensor& sum = got[parameter.name];
        if (sum.defined()) {
          add_inplace(sum, gradient);
        } else {
          sum = copy_of(gradient.view());
        }
      }
    }
    for (const auto& [name, stored] : gradients()) {
      Tensor& gradient = got.at(name);
      const ParameterInfo& info = infos.at(name);
      if (info.gradient_axes.contains(MeshAxis::kTensor)) {
        comm::all_reduce(gradient.view(), comm::Reduce::kSum, ranks, Stream{});
      }
      const Deviation d = deviation(gradient, local_part(stored, info.sharding));
      EXPECT_LE(std::min(d.absolute / 1e-7, d.relative / 1e-4), 1)
          << name << ": absolute " << d.absolute << ", relative " << d.relative;
    }
  }

  HfModel model_;
  std::unique_ptr<SafetensorsFile> expected_;
};

TEST_P(HfFamilyTest, BothSpellingsGiveOneModel) {
  if (!has_older_config())
    GTEST_SKIP() << "transformers writes this family's config.json in one spelling only";
  const HfModel older = read_hf_config(folder() / "config.hub.json");
  EXPECT_EQ(hf_config_text(older), hf_config_text(read_hf_config(folder() / "config.json")));
}

TEST_P(HfFamilyTest, AWrittenFolderIsTheSameModel) {
  const TemporaryDirectory directory;
  const CheckpointContents contents = open_hf_checkpoint(folder(), model_);
  const StoredSection& stored = contents.sections.at(kWeightsSection);
  save_hf_model(directory.path(), model_, hf_tensors(model_), int64_t{1} << 30,
                [&](const TensorSpec& spec) { return whole_elements(stored.at(spec.name)); });
  const ShardedWeights written(directory.path());
  const ShardedWeights original(folder());
  ASSERT_EQ(written.tensors().size(), original.tensors().size());
  for (const auto& [name, tensor] : original.tensors()) {
    const StoredTensor* found = written.find(name);
    ASSERT_NE(found, nullptr) << name;
    expect_identical(read_whole(*found), read_whole(tensor), name);
  }
  EXPECT_EQ(hf_config_text(read_hf_config(directory.path())), hf_config_text(model_));
  EXPECT_EQ(&hf_family_of(model_.transformer, model_.family->model_type), model_.family);
  // Fields that transformers wrote keep their values.
  const json before = json::parse(read_text(folder() / "config.json"));
  const json after = json::parse(read_text(directory.path() / "config.json"));
  for (const auto& [name, value] : before.items()) {
    // A field of null may get the value of its default; a window of 0 is written as null.
    const bool is_free = value.is_null() || (name == "sliding_window" && value == 0) ||
                         name == "use_cache" || name == "rope_parameters" ||
                         name == "max_window_layers" || name == "num_nextn_predict_layers" ||
                         name == "attn_config";
    if (is_free || !after.contains(name)) continue;
    EXPECT_EQ(after[name], value) << name;
  }
}

// Megatron Core's names, and torch_dist.
TEST_P(HfFamilyTest, AConversionToMegatronAndBackIsTheSameModel) {
  if (model_.transformer.embed_layernorm)
    GTEST_SKIP()
        << "Megatron Core has no norm behind the embedding, so no format of its holds this model";
  const CheckpointSource source = find_source(folder(), 0, true);
  CheckpointContents contents = source.contents();
  const TransformerConfig config = described_run(source.format(), contents).transformer;
  for (const SaveFormat format : {SaveFormat::kMegatronCore, SaveFormat::kTorchDist}) {
    // Refused there, with a sentence: experts in files of ranks, and a bias of the vocabulary.
    if (format == SaveFormat::kMegatronCore && config.has_experts()) continue;
    if (format == SaveFormat::kTorchDist && config.add_output_bias) continue;
    const TemporaryDirectory directory;
    const MegatronLayout layout = {
        .naming = MegatronNaming::kCore,
        .pipeline_model_parallel_size = config.num_layers % 2 == 0 ? 2 : 1};
    save_contents(directory.path() / "megatron", contents, format, layout, config);
    const CheckpointSource saved = find_source(directory.path() / "megatron", 0, true);
    const CheckpointContents again = saved.contents();
    write_hf_folder(directory.path() / "hf", again,
                    described_run(saved.format(), again).transformer,
                    {.vocab_size = model_.vocab_size});
    const ShardedWeights written(directory.path() / "hf");
    const ShardedWeights original(folder());
    ASSERT_EQ(written.tensors().size(), original.tensors().size());
    for (const auto& [name, tensor] : original.tensors()) {
      const StoredTensor* found = written.find(name);
      ASSERT_NE(found, nullptr) << name;
      expect_identical(read_whole(*found), read_whole(tensor), name);
    }
    HfModel model = read_hf_config(directory.path() / "hf");
    EXPECT_EQ(model.family, model_.family);
    model.transformer.attention_dropout = model_.transformer.attention_dropout;
    model.transformer.hidden_dropout = model_.transformer.hidden_dropout;
    model.transformer.init_method_std = model_.transformer.init_method_std;
    EXPECT_EQ(hf_config_text(model), hf_config_text(model_));
  }
}

TEST_P(HfFamilyTest, SettingsOfARunAreTheModels) {
  TrainingArgs args;
  ArgMap settings = settings_of(model_);
  EXPECT_EQ(hf_model_type_of(settings), model_.family->model_type);
  use_checkpoint_args(args, settings);
  args.tokenizer = {.tokenizer_type = "NullTokenizer", .vocab_size = model_.vocab_size};
  args.training.micro_batch_size = 1;
  args.training.skip_train = true;
  std::vector<std::string> problems;
  HfModel run = model_;
  run.transformer = resolved(args, 1, problems).transformer;
  // Settings of a training, not of the model.
  run.transformer.params_dtype = model_.transformer.params_dtype;
  run.transformer.attention_dropout = model_.transformer.attention_dropout;
  run.transformer.hidden_dropout = model_.transformer.hidden_dropout;
  run.transformer.init_method_std = model_.transformer.init_method_std;
  EXPECT_EQ(problems, std::vector<std::string>());
  EXPECT_EQ(hf_config_text(run), hf_config_text(model_));
}

TEST_P(HfFamilyTest, TwoTensorParallelRanks) {
  comm::run_ranks(2, [&](const comm::Group& ranks) { expect_training_step(1, ranks); });
}

TEST_P(HfFamilyTest, TwoChunksOfAPipeline) { expect_training_step(2, {}); }

// Log-probabilities of each token by the paged cache, prompts in pieces of seven tokens.
TEST_P(HfFamilyTest, PagedCacheGivesTheLogits) {
  const std::vector<std::unique_ptr<GptModel>> model = chunks(1, {});
  const Tensor ids = tokens();
  const Tensor logits = expected("logits");
  const int64_t length = ids.size(1);
  Engine engine(*model.front(), {.max_step_tokens = 7, .page_tokens = 4});
  std::map<RequestId, int64_t> samples;
  for (int64_t b = 0; b < ids.size(0); ++b) {
    const std::span<const int64_t> row =
        ids.span<int64_t>().subspan(static_cast<size_t>(b * length), static_cast<size_t>(length));
    samples[engine.submit({.prompt = {row.begin(), row.end()},
                           .max_new_tokens = 0,
                           .return_log_probabilities = true})] = b;
  }
  std::map<int64_t, std::vector<double>> got;
  while (engine.has_work()) {
    for (const RequestProgress& progress : engine.step()) {
      std::vector<double>& all = got[samples.at(progress.id)];
      all.insert(all.end(), progress.prompt_log_probabilities.begin(),
                 progress.prompt_log_probabilities.end());
    }
  }
  for (int64_t b = 0; b < ids.size(0); ++b) {
    ASSERT_EQ(std::ssize(got[b]), length - 1);
    for (int64_t i = 0; i + 1 < length; ++i) {
      const std::span<const float> row =
          logits.span<float>().subspan(static_cast<size_t>((b * length + i) * logits.size(2)),
                                       static_cast<size_t>(logits.size(2)));
      double sum = 0;
      for (const float logit : row) sum += std::exp(static_cast<double>(logit));
      const auto next =
          static_cast<size_t>(ids.span<int64_t>()[static_cast<size_t>(b * length + i + 1)]);
      EXPECT_NEAR(got[b][static_cast<size_t>(i)], row[next] - std::log(sum), 1e-4)
          << "sample " << b << ", token " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, HfFamilyTest,
                         testing::Values("gpt2", "llama-gqa", "bloom", "gpt-neox", "qwen2", "qwen3",
                                         "gemma2", "gemma3", "phi3", "olmo2", "llama31",
                                         "mistral-sw", "granite", "starcoder2", "gptj", "opt",
                                         "falcon", "falcon-7b", "mpt", "cohere", "smollm3",
                                         "mixtral", "qwen2-moe", "qwen3-moe", "deepseek-v2",
                                         "deepseek-v3", "gpt-oss", "gpt-oss-small"),
                         [](const auto& family) {
                           std::string name = family.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace megatron
