#include "megatron/settings/training_args.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "tests/support/source_path.h"

namespace megatron {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// The words of a command line, split at spaces.
std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(source_path(path));
  EXPECT_TRUE(file.is_open()) << path;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// The smallest command line without a problem.
const char* const kMinimal =
    "--num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 16 "
    "--max-position-embeddings 16 --micro-batch-size 2 --train-iters 10 --lr 0.001 "
    "--tokenizer-type NullTokenizer --vocab-size 100 --mock-data ";

TrainingArgs parsed(const std::string& more, ModelKind model = ModelKind::kGpt) {
  return parse_training_args(words(kMinimal + more), model, 1);
}

// The problems of a command line, as the program prints them.
std::vector<std::string> problems_of(const std::string& line, ModelKind model = ModelKind::kGpt,
                                     int64_t world_size = 1) {
  std::vector<std::string> problems;
  try {
    parse_training_args(words(line), model, world_size);
  } catch (const ConfigError& error) {
    std::istringstream stream(error.what());
    for (std::string problem; std::getline(stream, problem);) problems.push_back(problem);
  }
  return problems;
}

// The flags of the runs whose logs are in tests/golden/megatron.
const char* const kGoldenRun =
    "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 8 --train-iters 20 "
    "--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-iters 4 --lr-decay-iters 20 "
    "--weight-decay 0.1 --clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.95 "
    "--attention-dropout 0.0 --hidden-dropout 0.0 --data-path /data/oracles/corpus_text_document "
    "--vocab-file /data/oracles/vocab.json --merge-file /data/oracles/merges.txt --split 80,15,5 "
    "--data-cache-path /run/public/gpt/cache --save /run/public/gpt/ckpt --save-interval 10 "
    "--eval-interval 10 --eval-iters 2 --log-interval 1 --no-bias-dropout-fusion "
    "--no-masked-softmax-fusion --no-persist-layer-norm --no-gradient-accumulation-fusion ";

struct GoldenRun {
  const char* name;
  const char* flags;  // after kGoldenRun
  int64_t world_size;
  ModelKind model;
};

void PrintTo(const GoldenRun& run, std::ostream* out) { *out << run.name; }

class GoldenRunTest : public testing::TestWithParam<GoldenRun> {};

// tests/golden/megatron/gpt/arguments.txt is the argument dump of a real run; the other folders
// hold the lines that differ from it.
TEST_P(GoldenRunTest, HasTheSameArgumentDump) {
  const GoldenRun& run = GetParam();
  const auto name_of_line = [](const std::string& line) { return words(line).at(0); };
  std::map<std::string, std::string> want;
  for (const std::string& line : lines_of("tests/golden/megatron/gpt/arguments.txt")) {
    want[name_of_line(line)] = line;
  }
  for (const std::string& line :
       lines_of(std::string("tests/golden/megatron/") + run.name + "/arguments.txt")) {
    want[name_of_line(line)] = line;
  }

  std::vector<std::string> problems;
  const TrainingArgs args =
      resolved(parsed_flags(words(std::string(kGoldenRun) + run.flags), run.model, problems),
               run.world_size, problems);
  EXPECT_THAT(problems, IsEmpty());
  std::map<std::string, std::string> got;
  for (const std::string& line : argument_dump(arg_map(args))) got[name_of_line(line)] = line;
  for (const auto& [name, line] : want) EXPECT_EQ(got[name], line);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, GoldenRunTest,
    testing::Values(
        GoldenRun{"gpt", "", 1, ModelKind::kGpt},
        GoldenRun{"fp16",
                  "--fp16 --initial-loss-scale 4294967296 --save /run/public/fp16/ckpt "
                  "--data-cache-path /run/public/fp16/cache",
                  1, ModelKind::kGpt},
        GoldenRun{"llama",
                  "--swiglu --normalization RMSNorm --use-rotary-position-embeddings "
                  "--disable-bias-linear --untie-embeddings-and-output-weights "
                  "--group-query-attention --num-query-groups 2 --save /run/public/llama/ckpt "
                  "--data-cache-path /run/public/llama/cache",
                  1, ModelKind::kGpt},
        GoldenRun{"dist",
                  "--bf16 --use-distributed-optimizer --tensor-model-parallel-size 2 --save "
                  "/run/public/dist/ckpt --data-cache-path /run/public/dist/cache",
                  4, ModelKind::kGpt},
        GoldenRun{"tp2pp2",
                  "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
                  "--sequence-parallel --save /run/public/tp2pp2/ckpt --data-cache-path "
                  "/run/public/tp2pp2/cache",
                  4, ModelKind::kGpt}),
    [](const auto& run) { return std::string(run.param.name); });

// Runs without a merge file.
const char* const kWordPieceRun =
    "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 8 --global-batch-size 8 --train-iters 20 "
    "--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-iters 4 --lr-decay-iters 20 "
    "--weight-decay 0.1 --adam-beta2 0.95 --vocab-file /data/oracles/bert-vocab.txt "
    "--data-path /data/oracles/sentences_text_sentence ";

TEST(ArgumentDumpTest, BertTakesItsOwnDefaults) {
  std::vector<std::string> problems;
  const TrainingArgs args =
      resolved(parsed_flags(words(kWordPieceRun), ModelKind::kBert, problems), 1, problems);
  EXPECT_THAT(problems, IsEmpty());
  const std::vector<std::string> dump = argument_dump(arg_map(args));
  for (const std::string& line : lines_of("tests/golden/megatron/bert/arguments.txt")) {
    if (line.find("/run/") != std::string::npos) continue;
    EXPECT_THAT(dump, Contains(line));
  }
}

// Megatron-LM's fused GELU is that of the layers alone.
TEST(ArgumentDumpTest, TheHeadOfABertHasItsOwnActivation) {
  const auto head = [](const std::string& more) {
    std::vector<std::string> problems;
    const TrainingArgs args = resolved(
        parsed_flags(words(kWordPieceRun + more), ModelKind::kBert, problems), 1, problems);
    const ActivationFlags again = activation_flags(args.transformer);  // of what they mean
    EXPECT_EQ(again.openai_gelu, args.activation.openai_gelu);
    EXPECT_EQ(again.onnx_safe, args.activation.onnx_safe);
    return args.transformer.head_activation;
  };
  EXPECT_EQ(head(""), Activation::kGeluErf);
  EXPECT_EQ(head("--openai-gelu"), Activation::kGeluTanh);
  EXPECT_EQ(head("--onnx-safe true"), Activation::kGeluOnnx);
}

TEST(ArgumentDumpTest, T5HasTwoStacks) {
  std::vector<std::string> problems;
  const std::string flags =
      " --num-layers=2 --decoder-seq-length 16 --vocab-extra-ids 100 --micro-batch-size 2 "
      "--ffn-hidden-size 64";
  const TrainingArgs args =
      resolved(parsed_flags(words(kWordPieceRun + flags), ModelKind::kT5, problems), 1, problems);
  EXPECT_THAT(problems, IsEmpty());
  const std::vector<std::string> dump = argument_dump(arg_map(args));
  for (const std::string& line : lines_of("tests/golden/megatron/t5/arguments.txt")) {
    if (line.find("/run/") != std::string::npos) continue;
    EXPECT_THAT(dump, Contains(line));
  }
}

TEST(ArgumentDumpTest, IsSortedBetweenItsTwoRules) {
  const std::vector<std::string> dump =
      argument_dump({{"beta", int64_t{2}}, {"alpha_b", 1e-5}, {"Alpha", true}, {"gamma", {}}});
  EXPECT_THAT(dump, ElementsAre("------------------------ arguments ------------------------",
                                "  Alpha ........................................... True",
                                "  alpha_b ......................................... 1e-05",
                                "  beta ............................................ 2",
                                "  gamma ........................................... None",
                                "-------------------- end of arguments ---------------------"));
}

// Every accepted flag: spellings, type, dest, default and status.
TEST(FlagListTest, IsTheGoldenList) {
  TrainingArgs args;
  std::string list;
  const FlagTable flags = training_flags(args);
  for (const Flag& flag : flags.rows()) {
    std::string names;
    for (const std::string& name : flag.names) names += (names.empty() ? "" : ",") + name;
    const char* const status[] = {"", " ignored", " refused", " removed"};
    list += names + " | " + std::string(name_of(flag.type)) + " | " + flag.dest + " | " +
            text_of(flag.fallback) + " |" + status[static_cast<int>(flag.status)] + "\n";
  }
  std::string golden;
  for (const std::string& line : lines_of("tests/golden/flags.txt")) golden += line + "\n";
  if (list != golden) std::ofstream(testing::TempDir() + "flags.txt") << list;
  EXPECT_EQ(list, golden) << "the flags now are in " << testing::TempDir() << "flags.txt";
}

TEST(FlagListTest, EveryFlagIsDescribed) {
  const std::string help = training_help("pretrain-gpt", ModelKind::kGpt, HelpScope::kAll);
  EXPECT_THAT(help, HasSubstr("usage: megatron pretrain-gpt [flags]"));
  for (const char* group : {"network size", "regularization", "training", "initialization",
                            "learning rate", "checkpointing", "mixed precision", "distributed",
                            "validation", "data and tokenizer", "logging", "machine"}) {
    EXPECT_THAT(help, HasSubstr(std::string("\n") + group + ":\n"));
  }
  TrainingArgs args;
  const FlagTable flags = training_flags(args);
  for (const Flag& flag : flags.rows()) {
    if (flag.status == FlagStatus::kRemoved) continue;
    EXPECT_GT(flag.help.size(), 10U) << flag.names.front();
    EXPECT_EQ(flag.help.back(), '.') << flag.names.front();
    EXPECT_THAT(help, HasSubstr("\n  " + flag.names.front()));
  }
  std::istringstream stream(help);
  for (std::string line; std::getline(stream, line);) {
    const bool is_long_choice = line.find('{') != std::string::npos;
    EXPECT_TRUE(line.size() <= 100 || is_long_choice) << line;
  }
}

TEST(FlagListTest, HelpShowsWhatWorks) {
  const std::string help = training_help("pretrain-gpt", ModelKind::kGpt, HelpScope::kUseful);
  for (const char* flag : {"--num-layers", "--lr", "--tensor-model-parallel-size", "--save"}) {
    EXPECT_THAT(help, HasSubstr(std::string("\n  ") + flag + " "));
  }
  for (const char* flag : {"--num-experts", "--retro-return-doc-ids", "--use-flash-attn",
                           "--mask-prob", "--ddp-num-buckets", "\nvision:"}) {
    EXPECT_THAT(help, testing::Not(HasSubstr(flag)));
  }
  EXPECT_THAT(help, HasSubstr("--help-all also lists"));
  EXPECT_THAT(training_help("pretrain-bert", ModelKind::kBert, HelpScope::kUseful),
              HasSubstr("\n  --mask-prob "));
}

TEST(ParseTest, DigitsMayBeGrouped) {
  EXPECT_EQ(parsed("--hidden-size 1_024").transformer.hidden_size, 1024);
  EXPECT_EQ(parsed("--adam-eps 1_0e-8").optimizer.adam_eps, 1e-7);
  EXPECT_THAT(parsed("--iterations-to-skip 1_000 -2_0").training.iterations_to_skip,
              ElementsAre(1000, -20));
}

TEST(ParseTest, AValueMayBeginWithAMinus) {
  std::vector<std::string> problems;
  EXPECT_EQ(parsed_flags(words("--split -1,2,3"), ModelKind::kGpt, problems).data.split, "-1,2,3");
  EXPECT_THAT(problems, IsEmpty());
}

TEST(ParseTest, LastOccurrenceWinsInEitherForm) {
  EXPECT_EQ(parsed("--hidden-size 16 --hidden-size=32").transformer.hidden_size, 32);
}

TEST(ParseTest, HyphenAndUnderscoreAreTheSame) {
  EXPECT_TRUE(parsed("--override_opt-param_scheduler").optimizer.override_opt_param_scheduler);
  EXPECT_EQ(parsed("--hidden_size 16").transformer.hidden_size, 16);
}

TEST(ParseTest, AListEndsAtTheNextFlag) {
  const TrainingArgs args = parsed("--iterations-to-skip 3 -4 5 --bf16 --profile-ranks 1 2");
  EXPECT_THAT(args.training.iterations_to_skip, ElementsAre(3, -4, 5));
  EXPECT_THAT(args.training.profile_ranks, ElementsAre(1, 2));
  EXPECT_TRUE(args.optimizer.bf16);
}

TEST(ParseTest, ANegativeNumberIsAValue) {
  std::vector<std::string> problems;
  const TrainingArgs args = parsed_flags(words("--min-lr -1e-3"), ModelKind::kGpt, problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(args.optimizer.min_lr, -1e-3);
}

TEST(ParseTest, ABooleanTakesAWord) {
  EXPECT_EQ(parsed("--onnx-safe False").transformer.activation, Activation::kGeluTanh);
  EXPECT_EQ(parsed("--onnx-safe true").transformer.activation, Activation::kGeluOnnx);
}

TEST(ParseTest, HelpEndsTheChecks) {
  const std::vector<std::string> argv = {"--help"};
  EXPECT_TRUE(parse_training_args(argv, ModelKind::kGpt, 1).wants_help);
}

TEST(ParseTest, FlagsWithoutEffectGiveOneWarning) {
  EXPECT_THAT(parsed("--use-flash-attn --manual-gc --manual-gc-interval 5").warnings,
              ElementsAre("no effect here: --use-flash-attn --manual-gc --manual-gc-interval"));
}

TEST(ParseTest, ARefusedFlagMayRepeatItsDefault) {
  EXPECT_THAT(problems_of(std::string(kMinimal) + "--zero-stage 0"), IsEmpty());
}

TEST(ParseTest, AllProblemsAreInOneError) {
  try {
    parsed("--hiden-size 3 --fp16 --bf16 --num-layers x");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean --hidden-size?"));
    EXPECT_THAT(error.what(), HasSubstr("--num-layers x must be an integer"));
    EXPECT_THAT(error.what(), HasSubstr("--fp16 and --bf16 exclude each other"));
  }
}

// tests/cases/flag_errors.txt: a command line after "$", then the problems it has, one a line.
// MINIMAL stands for a command line without a problem; "bert", "t5" and "ranks=N" may stand before.
TEST(FlagErrorsTest, AreTheCases) {
  std::vector<std::string> lines = lines_of("tests/cases/flag_errors.txt");
  lines.emplace_back();
  std::string command;
  std::vector<std::string> want;
  int cases = 0;
  for (const std::string& line : lines) {
    if (line.starts_with("#")) continue;
    if (line.starts_with("$")) {
      command = line.substr(1);
    } else if (!line.empty()) {
      want.push_back(line);
    } else if (!command.empty()) {
      ModelKind model = ModelKind::kGpt;
      int64_t world_size = 1;
      std::string flags;
      for (const std::string& word : words(command)) {
        if (word == "bert") {
          model = ModelKind::kBert;
        } else if (word == "t5") {
          model = ModelKind::kT5;
        } else if (word.starts_with("ranks=")) {
          world_size = std::stoll(word.substr(6));
        } else {
          flags += (word == "MINIMAL" ? kMinimal : word + " ");
        }
      }
      EXPECT_EQ(problems_of(flags, model, world_size), want) << command;
      command.clear();
      want.clear();
      cases += 1;
    }
  }
  EXPECT_GT(cases, 40);
}

struct ActivationCase {
  const char* flags;
  Activation want;
};

TEST(ResolveTest, ActivationFollowsTheFlags) {
  for (const auto& [flags, want] :
       std::vector<ActivationCase>{{"", Activation::kGeluTanh},
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
              ElementsAre("--fp8-param-gather has no effect with one data-parallel rank, which "
                          "has all weights"));
}

TEST(ResolveTest, InputsOnTheHostAreThoseOfFullRecomputation) {
  EXPECT_THAT(
      parsed("--checkpoint-in-cpu --recompute-activations").warnings,
      ElementsAre("--checkpoint-in-cpu has no effect without --recompute-granularity full"));
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
  EXPECT_THAT(warnings_of(""),
              ElementsAre("--use-precision-aware-optimizer has no effect without --bf16 and with "
                          "all types fp32"));
  EXPECT_THAT(warnings_of("--bf16 --optimizer-cpu-offload"),
              ElementsAre("--use-precision-aware-optimizer has no effect: --optimizer-cpu-offload "
                          "keeps main parameters in fp32"));
  EXPECT_THAT(warnings_of("--bf16"), IsEmpty());
  EXPECT_THAT(warnings_of("--bf16 --optimizer-cpu-offload --exp-avg-dtype bf16"), IsEmpty());
  EXPECT_THAT(warnings_of("--bf16 --optimizer sgd --exp-avg-dtype bf16"),
              ElementsAre("--exp-avg-dtype and --exp-avg-sq-dtype have no effect with --optimizer "
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

// What the rows say of --use-checkpoint-args, compared with Megatron-LM's own list.
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

TEST(ArgMapTest, KeepsTypes) {
  const ArgMap map = arg_map(parsed("--data-parallel-random-init --adam-eps 1e-6"));
  EXPECT_EQ(map.at("hidden_size"), ArgValue(int64_t{8}));
  EXPECT_EQ(map.at("adam_eps"), ArgValue(1e-6));
  EXPECT_EQ(map.at("data_parallel_random_init"), ArgValue(true));
  EXPECT_EQ(map.at("tokenizer_type"), ArgValue("NullTokenizer"));
  EXPECT_EQ(map.at("params_dtype"), ArgValue(DType::kFloat32));
  EXPECT_EQ(map.at("num_experts"), ArgValue());
}

TEST(ArgMapTest, TextIsPythons) {
  EXPECT_EQ(text_of(ArgValue(1.0)), "1.0");
  EXPECT_EQ(text_of(ArgValue(1e-8)), "1e-08");
  EXPECT_EQ(text_of(ArgValue(1e16)), "1e+16");
  EXPECT_EQ(text_of(ArgValue(123456.75)), "123456.75");
  EXPECT_EQ(text_of(ArgValue(std::vector<std::string>{"a", "it's"})), "['a', \"it's\"]");
  EXPECT_EQ(text_of(ArgValue(std::vector<int64_t>{1, 2})), "[1, 2]");
  EXPECT_EQ(text_of(ArgValue(DType::kBFloat16)), "torch.bfloat16");
}

}  // namespace
}  // namespace megatron
