#include "megatron/settings/training_args.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/parts.h"
#include "megatron/settings/flag_table.h"
#include "tests/settings/command_line.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(source_path(path));
  EXPECT_TRUE(file.is_open()) << path;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
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

TEST(ArgumentDumpTest, SetArgumentsLeaveOutDefaultsAndOtherModels) {
  const std::vector<std::string> lines = argument_dump(set_arguments(
      parsed(std::string(kMinimal) + "--tensor-model-parallel-size 1 --use-flash-attn")));
  for (const char* shown : {"hidden_size", "ffn_hidden_size", "world_size", "data_parallel_size",
                            "params_dtype", "tensor_model_parallel_size", "use_flash_attn"}) {
    EXPECT_THAT(lines, Contains(testing::StartsWith(std::string("  ") + shown + " ")));
  }
  for (const char* hidden : {"adam_beta1", "dino_bottleneck_size", "retro_workdir", "rank"}) {
    EXPECT_THAT(lines, Not(Contains(testing::StartsWith(std::string("  ") + hidden + " "))));
  }
  EXPECT_LT(lines.size(), 40U) << testing::PrintToString(lines);
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
  for (const char* flag : {"--moe-latent-size", "--retro-return-doc-ids", "--use-flash-attn",
                           "--mask-prob", "--ddp-num-buckets", "\nvision:"}) {
    EXPECT_THAT(help, testing::Not(HasSubstr(flag)));
  }
  EXPECT_THAT(help, HasSubstr("--help-all also lists"));
  EXPECT_THAT(training_help("pretrain-bert", ModelKind::kBert, HelpScope::kUseful),
              HasSubstr("\n  --mask-prob "));
}

TEST(FlagListTest, AnEmptyTextIsNoDefaultToShow) {
  std::string name;
  FlagTable table;
  table.add("--name", name, "A name.");
  EXPECT_EQ(table.help().substr(0, 17), "\nflags:\n  --name ");
  EXPECT_THAT(table.help(), testing::EndsWith("A name.\n"));
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
      if (kHasRetro || command.find("--retro-add-retriever") == std::string::npos) {
        EXPECT_EQ(problems_of(flags, model, world_size), want) << command;
      }
      command.clear();
      want.clear();
      cases += 1;
    }
  }
  EXPECT_GT(cases, 40);
}

// Checkpoints keep every setting as JSON: found at the start, not when the first one is saved.
TEST(FlagErrorsTest, TextsMustBeUtf8) {
  EXPECT_THAT(problems_of(std::string(kMinimal) + "--save n\xff --save-interval 5"),
              ElementsAre("--save n\\xff must be UTF-8, because checkpoints and logs keep it as "
                          "JSON; rename the file, or write the text in UTF-8"));
  EXPECT_THAT(problems_of(std::string(kMinimal) + "--csv-dir=\xed\xa0\x80"),
              ElementsAre(testing::StartsWith("--csv-dir=\\xed\\xa0\\x80 must be UTF-8")));
  EXPECT_THAT(problems_of(std::string(kMinimal) + "--wandb-exp-name na\xc3\xafve"), IsEmpty());
  TrainingArgs args;
  FlagTable flags = training_flags(args);
  EXPECT_THROW(flags.assign("save", std::string("\xff")), ConfigError);
  EXPECT_THROW(flags.assign("lr", std::numeric_limits<double>::infinity()), ConfigError);
}

// Checkpoints keep the whole paths of the tokenizer's files.
TEST(FlagErrorsTest, TheWorkingDirectoryMustBeUtf8) {
  const std::filesystem::path before = std::filesystem::current_path();
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path() / "n\xff");
  std::filesystem::current_path(directory.path() / "n\xff");
  std::ofstream("v") << "a file";
  const std::vector<std::string> problems = problems_of(std::string(kMinimal) + "--vocab-file v");
  std::filesystem::current_path(before);
  EXPECT_THAT(problems, ElementsAre(HasSubstr("the working directory's name is not UTF-8")));
}

// Before anything is done for each layer or head: two thousand million take half a minute.
TEST(FlagErrorsTest, HugeNumbersOfHeadsAreRefusedAtOnce) {
  TransformerConfig config;
  config.num_layers = std::numeric_limits<int32_t>::max();
  config.hidden_size = 8;
  config.num_attention_heads = std::numeric_limits<int32_t>::max();
  EXPECT_THAT(problems(resolved(config), 2),
              ElementsAre("--num-layers 2147483647 must be at most 100000",
                          "--num-attention-heads 2147483647 must be at most 16777216",
                          "--num-query-groups 2147483647 must be at most 16777216"));
  config.num_layers = 1;
  config.max_position_embeddings = config.seq_length = 8;
  config.num_attention_heads = 16'777'213;
  config.kv_channels = 1;
  EXPECT_THAT(problems(resolved(config), 2),
              Contains("--num-attention-heads 16777213 must be a multiple of "
                       "--tensor-model-parallel-size 2; use one of 1, 16777213"));
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
