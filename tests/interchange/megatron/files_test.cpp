#include <gmock/gmock.h>

#include <fstream>

#include "megatron/core/error.h"
#include "megatron/formats/torch_file.h"
#include "megatron/formats/torch_writer.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/megatron/reader.h"
#include "megatron/interchange/megatron/writer.h"
#include "megatron/models/model_specs.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

// Round trip of writer and reader; and both against files written by Megatron-LM.
namespace megatron {
namespace {

using testing::HasSubstr;

struct Style {
  bool is_llama = false;
  DType dtype = DType::kFloat32;
};

// A run with its optimizer; all elements differ.
CheckpointContents sample_run(const Style& style) {
  TransformerConfig config;
  config.num_layers = 4;
  config.hidden_size = 8;
  config.num_attention_heads = 4;
  config.seq_length = 4;
  config.max_position_embeddings = 4;
  config.params_dtype = style.dtype;
  CheckpointState state;
  state.args = {{"num_attention_heads", int64_t{4}}, {"seed", int64_t{1234}}, {"lr", 1e-3}};
  if (style.is_llama) {
    config.group_query_attention = true;
    config.num_query_groups = 2;
    config.normalization = Normalization::kRmsNorm;
    config.position_embedding_type = PositionEmbedding::kRope;
    config.activation = Activation::kSwiglu;
    config.add_bias_linear = false;
    config.untie_embeddings_and_output_weights = true;
    state.args["swiglu"] = true;
    state.args["group_query_attention"] = true;
    state.args["num_query_groups"] = int64_t{2};
  }
  config = resolved(config);
  config.padded_vocab_size = 16;
  uint64_t seed = 1;
  for (const TensorSpec& spec : model_tensors(config)) {
    const Tensor main = random_normal(spec.shape, {.seed = ++seed});
    state.model.push_back(whole_tensor(spec.name, cast(main, style.dtype)));
    state.optimizer[kMainParamSection].push_back(whole_tensor(spec.name, main));
    for (const char* kind : {"exp_avg", "exp_avg_sq"}) {
      state.optimizer[kind].push_back(
          whole_tensor(spec.name, random_normal(spec.shape, {.seed = ++seed})));
    }
  }
  state.iteration = 20;
  state.consumed_train_samples = 160;
  state.scalars["optimizer"] = {{"group_steps", std::vector<int64_t>{17, 17}}};
  state.scalars["opt_param_scheduler"] = {{"max_lr", 1e-3}, {"num_steps", int64_t{160}}};
  state.scalars["progress"] = {{"floating_point_operations", 2.5e9}};
  if (style.dtype == DType::kFloat16) {
    state.scalars["grad_scaler"] = {
        {"scale", 65536.0}, {"growth_tracker", int64_t{5}}, {"hysteresis_tracker", int64_t{2}}};
  }
  return contents_of(state);
}

void expect_same_sections(const CheckpointContents& got, const CheckpointContents& want) {
  for (const auto& [section, tensors] : want.sections) {
    ASSERT_TRUE(got.sections.contains(section)) << section;
    ASSERT_EQ(got.sections.at(section).size(), tensors.size()) << section;
    for (const auto& [name, tensor] : tensors) {
      expect_identical(read_whole(got.sections.at(section).at(name)), read_whole(tensor), name);
    }
  }
}

struct Case {
  MegatronNaming naming;
  int64_t tensor;
  int64_t pipeline;
  int64_t chunks;
};

class MegatronFilesTest : public testing::TestWithParam<Case> {
 protected:
  TemporaryDirectory directory_;
};

TEST_P(MegatronFilesTest, RoundTrip) {
  const Case& c = GetParam();
  for (const Style& style :
       {Style{}, Style{true, DType::kBFloat16}, Style{false, DType::kFloat16}}) {
    const CheckpointContents want = sample_run(style);
    const std::filesystem::path path =
        directory_.path() / (style.is_llama ? "llama" : std::string(name_of(style.dtype)));
    write_megatron_files(path, want,
                         {.naming = c.naming,
                          .tensor_model_parallel_size = c.tensor,
                          .pipeline_model_parallel_size = c.pipeline,
                          .virtual_pipeline_model_parallel_size = c.chunks});
    const CheckpointContents got = open_megatron_checkpoint(path);
    expect_same_sections(got, want);
    EXPECT_EQ(got.iteration, 20);
    EXPECT_EQ(got.consumed_train_samples, 160);
    EXPECT_EQ(std::get<int64_t>(got.scalars.at("optimizer").at("step")), 17);
    EXPECT_EQ(std::get<double>(got.scalars.at("progress").at("floating_point_operations")), 2.5e9);
    EXPECT_EQ(got.scalars.contains("grad_scaler"), style.dtype == DType::kFloat16);
    for (const char* scalars : {"grad_scaler", "opt_param_scheduler"}) {
      if (want.scalars.contains(scalars)) {
        EXPECT_EQ(got.scalars.at(scalars), want.scalars.at(scalars));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, MegatronFilesTest,
                         testing::Values(Case{MegatronNaming::kLegacy, 1, 1, 1},
                                         Case{MegatronNaming::kLegacy, 2, 2, 2},
                                         Case{MegatronNaming::kLegacyLayerNorm, 2, 1, 1},
                                         Case{MegatronNaming::kLegacyFused, 1, 2, 1},
                                         Case{MegatronNaming::kCore, 1, 4, 1},
                                         Case{MegatronNaming::kCore, 2, 2, 2},
                                         Case{MegatronNaming::kCoreFused, 2, 2, 1}));

// State in the flat buffers of the distributed optimizer, whatever multiple their ends are of.
TEST_P(MegatronFilesTest, RoundTripOfFlatBuffers) {
  const Case& c = GetParam();
  int i = 0;
  for (const Style& style :
       {Style{}, Style{true, DType::kBFloat16}, Style{false, DType::kFloat16}}) {
    for (const int64_t data : {1, 3}) {
      const CheckpointContents want = sample_run(style);
      const std::filesystem::path path = directory_.path() / std::to_string(i++);
      write_megatron_files(path, want,
                           {.naming = c.naming,
                            .tensor_model_parallel_size = c.tensor,
                            .pipeline_model_parallel_size = c.pipeline,
                            .virtual_pipeline_model_parallel_size = c.chunks,
                            .use_distributed_optimizer = true,
                            .data_parallel_size = data});
      const CheckpointContents got = open_megatron_checkpoint(path);
      expect_same_sections(got, want);
      EXPECT_EQ(std::get<int64_t>(got.scalars.at("optimizer").at("step")), 17);
      EXPECT_EQ(got.scalars.contains("grad_scaler"), style.dtype == DType::kFloat16);
      const std::string rank = c.pipeline > 1 ? "mp_rank_00_000" : "mp_rank_00";
      const TorchFile flat(path / rank / "distrib_optim.pt");
      const auto numel = [&](const char* key) {
        return flat.root().find(key)->items()[0].entries()[0].second.items()[0].integer().value();
      };
      EXPECT_EQ(numel("per_bucket_numel") % data, 0);
      EXPECT_LT(numel("per_bucket_numel") - numel("per_bucket_numel_unpadded"), data);
    }
  }
}

TEST(MegatronWriterTest, ReportsAllProblems) {
  const CheckpointContents run = sample_run({true});
  const std::vector<std::string> found =
      problems(run, {.tensor_model_parallel_size = 3, .pipeline_model_parallel_size = 3});
  EXPECT_THAT(found,
              testing::Contains(HasSubstr(
                  "4 layers cannot be divided among 3 pipeline stages; choose a divisor of 4")));
  EXPECT_THAT(found, testing::Contains(HasSubstr("2 query groups cannot be divided among 3 tensor "
                                                 "parallel ranks; choose a divisor of 2")));
  EXPECT_THAT(found, testing::Contains(HasSubstr("[16, 8] does not divide into 3 equal parts")));
  TemporaryDirectory directory;
  EXPECT_THROW(write_megatron_files(directory.path(), run, {.tensor_model_parallel_size = 3}),
               ConfigError);
}

// fc1 of a gated activation is cut half by half, however the settings ask for the gate.
TEST(MegatronWriterTest, NoticesHalvesThatDoNotDivide) {
  CheckpointContents run = sample_run({});
  const std::string fc1 = "decoder.layers.0.mlp.linear_fc1.weight";
  run.sections.at(kWeightsSection).at(fc1).shape = {6, 8};
  const MegatronLayout layout{.tensor_model_parallel_size = 2};
  EXPECT_THAT(problems(run, layout), testing::IsEmpty());
  const ArgMap gated[] = {{{"swiglu", true}}, {{"glu_activation", std::string("geglu")}}};
  for (const ArgMap& setting : gated) {
    CheckpointContents with_gate = run;
    with_gate.args.insert(setting.begin(), setting.end());
    EXPECT_THAT(problems(with_gate, layout), testing::ElementsAre(HasSubstr(fc1)));
  }
}

TEST(MegatronReaderTest, NoticesMissingRanks) {
  TemporaryDirectory directory;
  write_megatron_files(directory.path(), sample_run({}),
                       {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2});
  std::filesystem::remove_all(directory.path() / "mp_rank_01_001");
  EXPECT_THAT(message_of<FormatError>([&] { open_megatron_checkpoint(directory.path()); }),
              HasSubstr("a folder is missing"));
  std::filesystem::remove_all(directory.path() / "mp_rank_00_001");
  EXPECT_THAT(message_of<FormatError>([&] { open_megatron_checkpoint(directory.path()); }),
              HasSubstr("was saved by 2 x 2 ranks"));
}

// Rounding the main parameters gives the weights: proof that both were named rightly.
class GoldenMainParamTest : public testing::TestWithParam<const char*> {};

TEST_P(GoldenMainParamTest, MainParametersRoundToTheWeights) {
  MG_NEEDS_SHARED("golden/megatron");
  const CheckpointContents run = open_megatron_checkpoint(shared_data("golden/megatron") /
                                                          GetParam() / "ckpt" / "iter_0000020");
  const StoredSection& weights = run.sections.at(kWeightsSection);
  EXPECT_EQ(weights.size(), 52u);
  for (const auto& [name, tensor] : run.sections.at(kMainParamSection)) {
    const Tensor want = read_whole(weights.at(name));
    expect_identical(cast(read_whole(tensor), want.dtype()), want, name);
  }
  EXPECT_EQ(run.sections.at("exp_avg").size(), weights.size());
  EXPECT_EQ(run.sections.at("exp_avg_sq").size(), weights.size());
}

INSTANTIATE_TEST_SUITE_P(Runs, GoldenMainParamTest,
                         testing::Values("dist", "fp16", "gpt", "core", "tp2pp2", "coretp2pp2"));

// Our file of a run has the keys, shapes and types that Megatron-LM's own has.
TEST(MegatronWriterTest, WritesTheStructureThatMegatronWrites) {
  MG_NEEDS_SHARED("golden/megatron");
  for (const auto& [name, naming] :
       {std::pair("gpt", MegatronNaming::kLegacy), std::pair("tp2pp2", MegatronNaming::kLegacy),
        std::pair("fp16", MegatronNaming::kLegacy), std::pair("core", MegatronNaming::kCore),
        std::pair("coretp2pp2", MegatronNaming::kCore)}) {
    const std::filesystem::path golden =
        shared_data("golden/megatron") / name / "ckpt" / "iter_0000020";
    const bool is_parallel = std::string(name).ends_with("tp2pp2");
    const int64_t ranks = is_parallel ? 2 : 1;
    TemporaryDirectory directory;
    write_megatron_files(directory.path(), open_megatron_checkpoint(golden),
                         {.naming = naming,
                          .tensor_model_parallel_size = ranks,
                          .pipeline_model_parallel_size = ranks});
    for (const char* rank : {"mp_rank_00", "mp_rank_00_000", "mp_rank_01_001"}) {
      const std::filesystem::path file = std::filesystem::path(rank) / "model_optim_rng.pt";
      if (!std::filesystem::exists(golden / file)) continue;
      const TorchFile want(golden / file);
      const TorchFile got(directory.path() / file);
      const std::function<void(PyValue, PyValue, const std::string&)> compare =
          [&](PyValue ours, PyValue theirs, const std::string& where) {
            if (const PyTensor* tensor = theirs.tensor()) {
              ASSERT_NE(ours.tensor(), nullptr) << where;
              expect_identical(copy_of(got.elements(*ours.tensor()).view),
                               copy_of(want.elements(*tensor).view), where);
              return;
            }
            EXPECT_EQ(ours.is_dict(), theirs.is_dict()) << where;
            EXPECT_EQ(ours.items().size(), theirs.items().size()) << where;
            for (size_t i = 0; i < std::min(ours.items().size(), theirs.items().size()); ++i) {
              compare(ours.items()[i], theirs.items()[i], where + "[]");
            }
            if (!theirs.is_dict()) return;
            for (const auto& [key, value] : theirs.entries()) {
              const auto is_key = [name = key.description()](const auto& entry) {
                return entry.first.description() == name;
              };
              const auto found = std::ranges::find_if(ours.entries(), is_key);
              ASSERT_NE(found, ours.entries().end()) << where << " " << key.description();
              compare(found->second, value, where + "." + key.description());
            }
          };
      for (const char* key : {"model"}) compare(*got.root().find(key), *want.root().find(key), key);
      const auto state = [](const TorchFile& f) {
        const PyValue optimizer = *f.root().find("optimizer");
        const PyValue* inner = optimizer.find("optimizer");
        return *(inner != nullptr ? *inner : optimizer).find("state");
      };
      compare(state(got), state(want), "state");
      if (want.root().find("optimizer")->find("fp32_from_fp16_params") != nullptr) {
        compare(*got.root().find("optimizer")->find("fp32_from_fp16_params"),
                *want.root().find("optimizer")->find("fp32_from_fp16_params"), "main");
      }
    }
  }
}

// Our distrib_optim.pt of a run has the keys, sizes and elements of Megatron-LM's own.
TEST(MegatronWriterTest, WritesTheFlatBuffersThatMegatronWrites) {
  MG_NEEDS_SHARED("golden/megatron");
  const std::filesystem::path golden = shared_data("golden/megatron") / "dist/ckpt/iter_0000020";
  TemporaryDirectory directory;
  write_megatron_files(directory.path(), open_megatron_checkpoint(golden),
                       {.tensor_model_parallel_size = 2,
                        .use_distributed_optimizer = true,
                        .data_parallel_size = 2});
  for (const char* rank : {"mp_rank_00", "mp_rank_01"}) {
    const TorchFile want(golden / rank / "distrib_optim.pt");
    const TorchFile got(directory.path() / rank / "distrib_optim.pt");
    const std::function<void(PyValue, PyValue)> compare = [&](PyValue ours, PyValue theirs) {
      ASSERT_EQ(ours.description(), theirs.description());
      if (const PyTensor* tensor = theirs.tensor()) {
        expect_identical(copy_of(got.elements(*ours.tensor()).view),
                         copy_of(want.elements(*tensor).view));
      }
      ASSERT_EQ(ours.entries().size(), theirs.entries().size());
      for (size_t i = 0; i < theirs.entries().size(); ++i) {
        compare(ours.entries()[i].first, theirs.entries()[i].first);
        compare(ours.entries()[i].second, theirs.entries()[i].second);
      }
      ASSERT_EQ(ours.items().size(), theirs.items().size());
      for (size_t i = 0; i < theirs.items().size(); ++i)
        compare(ours.items()[i], theirs.items()[i]);
    };
    compare(got.root(), want.root());
    // The state is not beside the weights a second time.
    const TorchFile model(directory.path() / rank / "model_optim_rng.pt");
    const PyValue optimizer = *model.root().find("optimizer");
    EXPECT_EQ(optimizer.find("fp32_from_fp16_params"), nullptr);
    EXPECT_EQ(optimizer.find("optimizer")->entries().size(), 1u);
    for (const PyValue group : optimizer.find_path({"optimizer", "param_groups"})->items()) {
      EXPECT_EQ(group.find("params"), nullptr);
      EXPECT_NE(group.find("step"), nullptr);
    }
  }
}

// The released models of 345M parameters have 1024 channels and no settings.
TEST(MegatronReaderTest, KnowsTheHeadsOfTheReleasedModels) {
  const auto args_of = [](int64_t channels) {
    const TemporaryDirectory directory;
    const auto file = directory.path() / "model_optim_rng.pt";
    TorchWriter writer(file);
    writer.pickle().begin_dict();
    writer.pickle().text("model"), writer.pickle().begin_dict();
    writer.pickle().text("language_model.embedding.word_embeddings.weight");
    writer.tensor(DType::kFloat32, {2, channels});
    writer.pickle().end_dict();
    writer.pickle().end_dict();
    writer.write(zeros({2, channels}, DType::kFloat32, Stream{}).view());
    writer.commit();
    return MegatronCheckpoint(file).contents({}).args;
  };
  EXPECT_EQ(args_of(1024).at("num_attention_heads"), ArgValue(int64_t{16}));
  EXPECT_FALSE(args_of(1040).contains("num_attention_heads"));
}

}  // namespace
}  // namespace megatron
