// Resolution of flags, and the effect of a checkpoint's settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/settings/training_args.h"
#include "tests/settings/command_line.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

struct ActivationCase {
  const char* flags;
  Activation want;
};

TEST(ResolveTest, ActivationFollowsTheFlags) {
  for (const auto& [flags, want] : std::vector<ActivationCase>{
           {"", Activation::kGeluTanh},
           {"--no-bias-gelu-fusion", Activation::kGeluErf},
           {"--disable-bias-linear", Activation::kGeluErf},
           {"--openai-gelu --no-bias-gelu-fusion", Activation::kGeluTanh},
           {"--onnx-safe 1", Activation::kGeluOnnx},
           {"--squared-relu", Activation::kSquaredRelu},
           {"--swiglu", Activation::kSwiglu},
           {"--glu-activation geglu", Activation::kGeglu},
           {"--glu-activation liglu", Activation::kLiglu},
           {"--glu-activation reglu", Activation::kReglu},
           {"--glu-activation swiglu", Activation::kSwigluSecond},
           {"--glu-activation geglu_tanh", Activation::kGegluTanh},
           {"--glu-activation geglu_tanh_first", Activation::kGegluTanhFirst},
           {"--quick-geglu", Activation::kQuickGeglu},
           {"--quick-geglu --glu-linear-offset 1 "
            "--activation-func-clamp-value 7",
            Activation::kClampedQuickGeglu},
           {"--relu", Activation::kRelu}}) {
    const TransformerConfig config =
        parsed(std::string("--ffn-hidden-size 16 ") + flags).transformer;
    EXPECT_EQ(config.activation, want) << flags;
    EXPECT_EQ(config.is_gated(), want >= Activation::kSwiglu) << flags;
  }
}

TEST(ResolveTest, SwigluHasTwoThirdsOfTheHiddenSize) {
  const std::map<int64_t, int64_t> want = {
      {1024, 2688}, {2048, 5440}, {4096, 10880}, {5120, 13632}, {8192, 21824}};
  for (const auto& [hidden, ffn] : want) {
    TransformerConfig config;
    config.hidden_size = hidden;
    config.activation = Activation::kSwiglu;
    EXPECT_EQ(resolved(config).ffn_hidden_size, ffn);
  }
}

TEST(ResolveTest, GroupsAreTheHeadsWithoutTheSwitch) {
  EXPECT_EQ(parsed("").transformer.num_query_groups, 2);
  EXPECT_EQ(parsed("--group-query-attention").transformer.num_query_groups, 1);
}

TEST(ResolveTest, RecomputeFlagsOfAllVersions) {
  const TransformerConfig selective = parsed("--recompute-activations").transformer;
  EXPECT_EQ(selective.recompute_granularity, RecomputeGranularity::kSelective);
  const TransformerConfig full = parsed("--checkpoint-activations").transformer;
  EXPECT_EQ(full.recompute_granularity, RecomputeGranularity::kFull);
  EXPECT_EQ(full.recompute_method, RecomputeMethod::kUniform);
  EXPECT_EQ(full.recompute_num_layers, 1);
}

TEST(ResolveTest, Bf16SumsGradientsInFp32UnlessToldOtherwise) {
  EXPECT_TRUE(parsed("--bf16").parallel.accumulate_allreduce_grads_in_fp32);
  EXPECT_FALSE(parsed("--bf16 --grad-reduce-in-bf16").parallel.accumulate_allreduce_grads_in_fp32);
  EXPECT_EQ(parsed("--bf16").transformer.params_dtype, DType::kBFloat16);
  EXPECT_FALSE(parsed("--fp16").parallel.accumulate_allreduce_grads_in_fp32);
  const std::string aware = "--bf16 --zero-stage 1 --use-precision-aware-optimizer";
  EXPECT_TRUE(parsed(aware).parallel.accumulate_allreduce_grads_in_fp32);
  EXPECT_FALSE(
      parsed(aware + " --main-grads-dtype bf16").parallel.accumulate_allreduce_grads_in_fp32);
}

TEST(ResolveTest, NotesAreMegatronsLines) {
  EXPECT_THAT(parsed("--bf16").notes,
              ElementsAre("using world size: 1, data-parallel size: 1, context-parallel size: 1 "
                          "tensor-model-parallel size: 1, pipeline-model-parallel size: 1 ",
                          "accumulate and all-reduce gradients in fp32 for bfloat16 data type.",
                          "using torch.bfloat16 for parameters ..."));
}

// Compat: Megatron-LM core_r0.5.0 scales fp32 losses with the distributed optimizer only.
TEST(ResolveTest, AFixedLossScaleOfFp32NeedsTheDistributedOptimizer) {
  const TrainingArgs distributed = parsed("--loss-scale 128 --use-distributed-optimizer");
  EXPECT_EQ(distributed.optimizer.loss_scale, 128);
  EXPECT_THAT(distributed.warnings, IsEmpty());
  const TrainingArgs plain = parsed("--loss-scale 128");
  EXPECT_EQ(plain.optimizer.loss_scale, 0);
  EXPECT_THAT(plain.warnings, ElementsAre("--loss-scale has no effect with fp32 parameters without "
                                          "--use-distributed-optimizer"));
}

TEST(ResolveTest, SettingsOfTheOtherKindOfScaleOrOptimizerAreWarnings) {
  EXPECT_THAT(parsed("--fp16 --loss-scale 128 --hysteresis 3").warnings,
              ElementsAre(HasSubstr("have no effect with a fixed --loss-scale")));
  EXPECT_THAT(parsed("--bf16 --initial-loss-scale 128").warnings,
              ElementsAre(HasSubstr("have no effect without --fp16")));
  EXPECT_THAT(parsed("--fp16 --initial-loss-scale 128").warnings, IsEmpty());
  EXPECT_THAT(parsed("--optimizer sgd --adam-eps 1e-6").warnings,
              ElementsAre(HasSubstr("have no effect with --optimizer sgd")));
  const std::string saving = "--save s --save-interval 5 --save-format megatron --optimizer ";
  EXPECT_THAT(parsed(saving + "muon").warnings,
              ElementsAre(HasSubstr("hold the state of --optimizer adam alone")));
  EXPECT_THAT(parsed(saving + "sgd").warnings,
              ElementsAre(HasSubstr("hold the state of --optimizer adam alone")));
  EXPECT_THAT(parsed(saving + "adam").warnings, IsEmpty());
  const std::string dist = "--save s --save-interval 5 --ckpt-format torch_dist --optimizer ";
  EXPECT_THAT(parsed(dist + "sgd").warnings,
              ElementsAre(HasSubstr("this run saves as --save-format native")));
  EXPECT_THAT(parsed(dist + "adam").warnings, IsEmpty());
  EXPECT_THAT(parsed("--muon-use-nesterov").warnings,
              ElementsAre("--muon-... has no effect without --optimizer muon"));
  EXPECT_THAT(parsed("--optimizer muon --muon-use-nesterov").warnings, IsEmpty());
  EXPECT_THAT(parsed("--optimizer muon --muon-tp-mode duplicated").warnings,
              ElementsAre("--muon-tp-mode has no effect with --tensor-model-parallel-size 1"));
  EXPECT_THAT(parsed("--sgd-momentum 0.5").warnings,
              ElementsAre("--sgd-momentum has no effect without --optimizer sgd"));
  const std::string gathering = "--fp8-param-gather --use-distributed-optimizer";
  EXPECT_THAT(parsed(gathering).warnings,
              ElementsAre("--fp8-param-gather has no effect without --fp8-format"));
  EXPECT_THAT(parsed(gathering + " --hidden-size 32 --fp8-format hybrid").warnings,
              ElementsAre("--fp8-param-gather has no effect where each data-parallel rank has "
                          "all weights"));
}

TEST(ResolveTest, InputsOnTheHostAreThoseOfFullRecomputation) {
  EXPECT_THAT(parsed("--recompute-modules mlp moe --recompute-granularity selective").warnings,
              ElementsAre("--recompute-modules moe has no effect without --num-experts"));
  EXPECT_THAT(parsed("--recompute-modules mlp").warnings,
              ElementsAre("--recompute-modules has no effect without --recompute-granularity "
                          "selective"));
  EXPECT_THAT(
      parsed("--checkpoint-in-cpu --recompute-activations").warnings,
      ElementsAre("--checkpoint-in-cpu has no effect without --recompute-granularity full"));
  EXPECT_THAT(parsed("--min-offloaded-tensor-size 9").warnings,
              ElementsAre("--min-offloaded-tensor-size has no effect without "
                          "--cpu-offloading-num-layers"));
  const TrainingArgs full = parsed("--checkpoint-in-cpu --checkpoint-activations");
  EXPECT_TRUE(full.transformer.stores_inputs_on_host());
  for (const std::string& warning : full.warnings) {
    EXPECT_THAT(warning, Not(HasSubstr("--checkpoint-in-cpu")));
  }
}

// A checkpoint that names "vocab.json" could be used from one directory only.
TEST(ResolveTest, TokenizerPathsAreAbsolute) {
  const std::filesystem::path here = std::filesystem::current_path();
  const std::filesystem::path directory = std::filesystem::path(testing::TempDir()) / "paths";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "vocab.json") << "{}";
  std::filesystem::current_path(directory);
  const TrainingArgs args = parsed("--vocab-file vocab.json --tokenizer-model name/on-a-hub");
  std::filesystem::current_path(here);
  EXPECT_EQ(args.tokenizer.vocab_file, std::filesystem::canonical(directory / "vocab.json"));
  EXPECT_EQ(args.tokenizer.tokenizer_model, "name/on-a-hub");
}

TEST(ResolveTest, EmptyDirectoriesAreWarnings) {
  const std::vector<std::string> words_of_line = words(kMinimal);
  std::vector<std::string> line = words_of_line;
  for (const char* word : {"--save", "", "--load", ""}) line.emplace_back(word);
  EXPECT_THAT(parse_training_args(line, ModelKind::kGpt, 1).warnings,
              ElementsAre("--save is empty: this run saves nothing",
                          "--load is empty: this run starts from random weights"));
}

TEST(ResolveTest, SizesAreLoweredToTheRanksWithAWarning) {
  const TrainingArgs args = parsed("--tensor-model-parallel-size 8 --sequence-parallel");
  EXPECT_EQ(args.parallel.tensor_model_parallel_size, 1);
  EXPECT_THAT(args.warnings,
              ElementsAre("--tensor-model-parallel-size 8 is lowered to 1: this run has 1 rank",
                          "--sequence-parallel has no effect with --tensor-model-parallel-size 1"));
}

TEST(ResolveTest, AnOverlapWithoutWorkBesideItIsAWarning) {
  EXPECT_THAT(parsed("--tp-comm-overlap").warnings,
              ElementsAre("--tp-comm-overlap has no effect with --tensor-model-parallel-size 1"));
  const auto warnings = [](const std::string& flags) {
    std::vector<std::string> problems;
    TrainingArgs args = parsed_flags(
        words(std::string(kMinimal) + "--tp-comm-overlap --tensor-model-parallel-size 2 " + flags),
        ModelKind::kGpt, problems);
    return resolved(std::move(args), 2, problems).warnings;
  };
  EXPECT_THAT(warnings("--sequence-parallel --device cuda"),
              ElementsAre("--tp-comm-overlap has no effect on a GPU: pieces of 16 tokens are fewer "
                          "than 1024; raise --micro-batch-size"));
  EXPECT_THAT(warnings("--sequence-parallel --device cpu"), IsEmpty());
  EXPECT_THAT(warnings("--sequence-parallel --device cuda --micro-batch-size 128"), IsEmpty());
  EXPECT_THAT(warnings(""),
              ElementsAre("--tp-comm-overlap has no effect without --sequence-parallel"));
}

TEST(ResolveTest, AProfileOfRanksThatAreNotThereIsAWarning) {
  EXPECT_THAT(
      parsed("--profile --profile-ranks 3 1").warnings,
      ElementsAre("--profile has no effect: --profile-ranks names none of the ranks of this "
                  "run, 0 to 0"));
  EXPECT_THAT(parsed("--profile --profile-ranks 3 0").warnings, IsEmpty());
}

TEST(ResolveTest, AnOverlapThatAStageOfZeroHasAnywayIsAWarning) {
  const auto warnings_of = [](const std::string& flags) { return parsed(flags).warnings; };
  const std::string sums =
      "--overlap-grad-reduce has no effect with --zero-stage 3, which always sums gradients beside "
      "the backward pass";
  const std::string gathers =
      "--overlap-param-gather has no effect with --zero-stage 3, which gathers parameters ahead of "
      "their use";
  EXPECT_THAT(warnings_of("--zero-stage 3 --overlap-grad-reduce --overlap-param-gather"),
              ElementsAre(sums, gathers));
  EXPECT_THAT(warnings_of("--zero-stage 2 --overlap-param-gather"), IsEmpty());
  EXPECT_THAT(warnings_of("--zero-stage 1 --overlap-grad-reduce"), IsEmpty());
}

TEST(ResolveTest, TypesOfTheOptimizerWithoutEffectOrUseAreAWarning) {
  const auto warnings_of = [](const std::string& flags) {
    return parsed("--zero-stage 1 --use-precision-aware-optimizer " + flags).warnings;
  };
  const char* const in_vain =
      "--use-precision-aware-optimizer has no effect with all types fp32; main parameters take 2 "
      "bytes with --bf16 anyway";
  EXPECT_THAT(warnings_of(""), ElementsAre(in_vain));
  EXPECT_THAT(warnings_of("--bf16"), ElementsAre(in_vain));
  EXPECT_THAT(warnings_of("--bf16 --optimizer-cpu-offload --exp-avg-dtype bf16"), IsEmpty());
  EXPECT_THAT(warnings_of("--bf16 --optimizer sgd --exp-avg-dtype bf16"),
              ElementsAre(in_vain,
                          "--exp-avg-dtype and --exp-avg-sq-dtype have no effect with --optimizer "
                          "sgd"));
  const std::string second = "--bf16 --exp-avg-sq-dtype ";
  EXPECT_THAT(warnings_of(second + "bf16 --adam-beta2 0.996"),
              ElementsAre("--exp-avg-sq-dtype bf16 with --adam-beta2 0.996: the second moment "
                          "cannot fall, because so small changes are rounded away; use "
                          "--adam-beta2 0.99, or --exp-avg-sq-dtype fp16"));
  EXPECT_THAT(warnings_of(second + "bf16 --adam-beta2 0.99"), IsEmpty());
  EXPECT_THAT(warnings_of(second + "fp16 --adam-beta2 0.9995"),
              ElementsAre(HasSubstr("use --adam-beta2 0.999, or --exp-avg-sq-dtype fp32")));
  EXPECT_THAT(warnings_of(second + "fp16"), IsEmpty());
}

TEST(ResolveTest, VirtualStagesComeFromEitherFlag) {
  for (const char* flag :
       {"--num-layers-per-virtual-pipeline-stage 2", "--num-virtual-stages-per-pipeline-rank 2"}) {
    std::vector<std::string> problems;
    const std::string line =
        std::string(kMinimal) +
        "--num-layers 16 --pipeline-model-parallel-size 4 --global-batch-size 8 " + flag;
    const TrainingArgs args =
        resolved(parsed_flags(words(line), ModelKind::kGpt, problems), 4, problems);
    EXPECT_THAT(problems, IsEmpty());
    EXPECT_EQ(args.parallel.virtual_pipeline_model_parallel_size, 2);
    EXPECT_TRUE(args.parallel.overlap_p2p_comm);
  }
}

TEST(ResolveTest, RampupIsRead) {
  std::vector<std::string> problems;
  const std::string line =
      "--num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 16 "
      "--max-position-embeddings 16 --micro-batch-size 2 --global-batch-size 1536 "
      "--rampup-batch-size 16 16 5859375 --train-samples 146484375 --lr 0.001 "
      "--tokenizer-type NullTokenizer --vocab-size 100";
  const TrainingArgs args =
      resolved(parsed_flags(words(line), ModelKind::kGpt, problems), 1, problems);
  EXPECT_THAT(problems, IsEmpty());
  const RampupBatchSize rampup = rampup_of(args.training);
  EXPECT_EQ(rampup.start, 16);
  EXPECT_EQ(rampup.increment, 16);
  EXPECT_EQ(rampup.samples, 5859375);
  EXPECT_EQ(text_of(arg_map(args).at("rampup_batch_size")), "['16', '16', '5859375']");
}

TEST(ResolveTest, CheckpointArgumentsFillWhatTheCommandLineLeaves) {
  const ArgMap stored =
      arg_map(parsed("--swiglu --hidden-size 64 --normalization RMSNorm "
                     "--position-embedding-type rope --kv-channels 16"));
  std::vector<std::string> problems;
  TrainingArgs args = parsed_flags(words("--num-layers 3"), ModelKind::kGpt, problems);
  use_checkpoint_args(args, stored);
  EXPECT_EQ(args.transformer.num_layers, 3);
  EXPECT_EQ(args.transformer.hidden_size, 64);
  EXPECT_EQ(args.transformer.kv_channels, 16);
  EXPECT_EQ(args.transformer.normalization, Normalization::kRmsNorm);
  EXPECT_EQ(args.transformer.position_embedding_type, PositionEmbedding::kRope);
  EXPECT_TRUE(args.activation.swiglu);
}

TEST(ResolveTest, WindowsComeFromFlagsConfigsAndCheckpoints) {
  const TrainingArgs given = parsed("--num-layers 4 --window-size 7,0 --window-attn-skip-freq 2");
  EXPECT_EQ(given.transformer.attention_window, 8);
  EXPECT_THAT(given.transformer.window_layers, ElementsAre(1, 0, 1, 0));
  EXPECT_THAT(parsed("--window-size 7,0 --window-attn-skip-freq [1,0]").transformer.window_layers,
              ElementsAre(1, 0));

  TrainingArgs of_config = parsed("--num-layers 4");
  of_config.transformer.attention_window = 8;  // no flag gave it
  of_config.transformer.window_layers = {1, 0, 1, 0};
  for (const ArgMap& stored : {arg_map(given), arg_map(of_config)}) {
    std::vector<std::string> problems;
    TrainingArgs args = parsed_flags(words(""), ModelKind::kGpt, problems);
    use_checkpoint_args(args, stored);
    const TransformerConfig config = resolved(args, 1, problems).transformer;
    EXPECT_EQ(config.attention_window, 8);
    EXPECT_EQ(config.window_layers, given.transformer.window_layers);
  }
}

// Whether they were given or not.
TEST(ResolveTest, SettingsOfExpertsAreReadAsTheyAreStored) {
  for (const char* line :
       {"--num-experts 4",
        "--num-experts 4 --moe-layer-freq [0]+[1] --moe-router-load-balancing-type aux_loss "
        "seq_aux_loss --moe-aux-loss-coeff 0.1 0.2 --moe-router-dtype fp32"}) {
    const TransformerConfig want = parsed(line).transformer;
    TrainingArgs args;
    FlagTable flags = training_flags(args);
    for (const auto& [name, value] : arg_map(parsed(line))) {
      const bool is_set = !std::holds_alternative<std::monostate>(value);
      if (is_set && (name.starts_with("moe_") || name == "num_experts")) flags.assign(name, value);
    }
    const TransformerConfig& got = args.transformer;
    EXPECT_EQ(got.num_experts, want.num_experts);
    EXPECT_EQ(got.moe_router_load_balancing_type, want.moe_router_load_balancing_type);
    EXPECT_EQ(got.moe_aux_loss_coeff, want.moe_aux_loss_coeff);
    EXPECT_EQ(got.moe_router_dtype, want.moe_router_dtype);
    EXPECT_EQ(resolved(got).has_experts(0), want.has_experts(0));
  }
}

// A new model with a known configuration has what the command line says of it.
TEST(ResolveTest, TheCommandLineMayWinOverAllStoredArguments) {
  const ArgMap stored = arg_map(parsed("--openai-gelu --group-query-attention"));
  const auto with = [&](const std::string& line, GivenSetting given) {
    std::vector<std::string> problems;
    TrainingArgs args = parsed_flags(words(line), ModelKind::kGpt, problems);
    use_checkpoint_args(args, stored, given);
    return resolved(args, 1, problems).transformer;
  };
  const std::string line =
      "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear "
      "--untie-embeddings-and-output-weights";
  const TransformerConfig theirs = with(line, GivenSetting::kByRow);
  EXPECT_EQ(theirs.position_embedding_type, PositionEmbedding::kLearnedAbsolute);
  EXPECT_EQ(theirs.normalization, Normalization::kLayerNorm);
  const TransformerConfig ours = with(line, GivenSetting::kCommandLine);
  EXPECT_EQ(ours.position_embedding_type, PositionEmbedding::kRope);
  EXPECT_EQ(ours.normalization, Normalization::kRmsNorm);
  EXPECT_EQ(ours.activation, Activation::kSwiglu);
  EXPECT_FALSE(ours.add_bias_linear);
  EXPECT_TRUE(ours.untie_embeddings_and_output_weights);
  EXPECT_TRUE(ours.group_query_attention) << "not given";
  EXPECT_EQ(with("--no-bias-gelu-fusion", GivenSetting::kCommandLine).activation,
            Activation::kGeluTanh)
      << "it chooses no activation";
}

// The table's rows for --use-checkpoint-args against Megatron-LM's own list.
TEST(ResolveTest, CheckpointArgumentsAreTheMarkedRows) {
  TrainingArgs args;
  const FlagTable flags = training_flags(args);
  std::vector<std::string> always;
  for (const Flag& flag : flags.rows()) {
    if (flag.is_architecture) {
      EXPECT_NE(flag.taken_from_checkpoint, FromCheckpoint::kNever) << flag.dest;
    }
    if (flag.taken_from_checkpoint == FromCheckpoint::kAlways) always.push_back(flag.dest);
  }
  EXPECT_THAT(always, testing::UnorderedElementsAre(
                          "num_query_groups", "group_query_attention", "position_embedding_type",
                          "add_position_embedding", "use_rotary_position_embeddings", "rotary_base",
                          "rotary_percent", "rotary_interleaved", "add_bias_linear", "add_qkv_bias",
                          "swiglu", "untie_embeddings_and_output_weights", "apply_layernorm_1p",
                          "normalization"));
  for (const char* dest : {"num_layers", "hidden_size", "qk_layernorm", "bias_gelu_fusion"}) {
    EXPECT_TRUE(flags.find(dest)->is_architecture) << dest;
  }
  for (const char* dest : {"lr", "seq_length", "save", "bf16"}) {
    EXPECT_FALSE(flags.find(dest)->is_architecture) << dest;
  }
}

TEST(ResolveTest, CheckpointArgumentsKeepTheFormOfGelu) {
  const ArgMap stored = arg_map(parsed("--no-bias-gelu-fusion"));
  std::vector<std::string> problems;
  TrainingArgs args = parsed_flags({}, ModelKind::kGpt, problems);
  use_checkpoint_args(args, stored);
  EXPECT_EQ(resolved(args, 1, problems).transformer.activation, Activation::kGeluErf);
}

TEST(ResolveTest, ACheckpointArgumentOfAnotherTypeIsAnError) {
  TrainingArgs args;
  try {
    use_checkpoint_args(args, {{"hidden_size", "wide"}});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "hidden_size cannot take the value wide; it must be of type INT");
  }
}

}  // namespace
}  // namespace megatron
