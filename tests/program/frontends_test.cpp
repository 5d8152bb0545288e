#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "megatron/core/file.h"
#include "tests/program/program_test.h"

// The command lines of Accelerate, DeepSpeed and torchrun, as their users type them.
namespace megatron::program {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class FrontendsTest : public ProgramTest {
 protected:
  Flags flags(const std::string& name) const {
    return golden_flags()
        .with("--train-iters", "3")
        .with("--eval-iters", "0")
        .without("--save")
        .with("--metrics-jsonl", path(name + ".jsonl").string());
  }
  std::vector<double> losses(const Outcome& outcome, const std::string& name) const {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    EXPECT_THAT(errors_of(outcome), IsEmpty());
    std::vector<double> values;
    for (const Metrics& line : metrics_of(path(name + ".jsonl"))) {
      const auto loss = line.find("lm loss");
      if (loss != line.end()) values.push_back(loss->second);
    }
    EXPECT_EQ(values.size(), 3u);
    return values;
  }
  // What the same training gives with flags of our own.
  std::vector<double> wanted(const Words& launch, const Flags& of_command) const {
    return losses(
        run("launch",
            joined(joined(launch, {"pretrain-gpt"}),
                   of_command.with("--metrics-jsonl", path("wanted.jsonl").string()).words())),
        "wanted");
  }
};

TEST_F(FrontendsTest, AccelerateLaunchTrainsAsItsFileSays) {
  std::ofstream(path("config.yaml"))
      << "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n"
         "  megatron_lm_gradient_clipping: 0.5\n  megatron_lm_num_micro_batches: 2\n"
         "  megatron_lm_pp_degree: 1\n  megatron_lm_sequence_parallelism: true\n"
         "  megatron_lm_tp_degree: 2\nmixed_precision: bf16\nnum_processes: 2\n";
  const Words launch = {"launch", "--config_file", path("config.yaml").string(),
                        "examples/pretrain_gpt.py"};
  const Outcome outcome = run("accelerate", joined(launch, flags("got").words()));
  EXPECT_THAT(outcome.out, HasSubstr("tensor_model_parallel_size ...................... 2"));
  EXPECT_THAT(outcome.err, HasSubstr("overriding arguments for clip_grad:1.0 with clip_grad:0.5"));
  EXPECT_EQ(losses(outcome, "got"),
            wanted({"--nproc-per-node", "2"}, flags("wanted")
                                                  .with("--tensor-model-parallel-size", "2")
                                                  .with("--sequence-parallel")
                                                  .with("--clip-grad", "0.5")
                                                  .with("--global-batch-size", "4")
                                                  .with("--bf16")));
}

TEST_F(FrontendsTest, LaunchReadsTheFileToo) {
  std::ofstream(path("config.yaml")) << "distributed_type: NO\nnum_processes: 1\nuse_cpu: true\n";
  const Words launch = {"--config-file=" + path("config.yaml").string(), "pretrain-gpt"};
  EXPECT_EQ(losses(run("launch", joined(launch, flags("got").words())), "got"),
            wanted({}, flags("wanted")));
}

TEST_F(FrontendsTest, DeepSpeedStartsARankForEachSlot) {
  const Words launch = {"--num_gpus", "2", "pretrain_gpt.py"};
  EXPECT_EQ(losses(run("deepspeed", joined(launch, flags("got").words())), "got"),
            wanted({"--nproc-per-node", "2"}, flags("wanted")));
}

// `exec -a` gives the program the name that a link would give it.
RunOptions called(const std::string& name) {
  return {.launcher = {"bash", "-c", "exec -a " + name + " \"$@\"", "bash"}};
}

TEST_F(FrontendsTest, NamesOfLinksAreCommands) {
  const Words standalone = {"--nproc_per_node=2", "pretrain_gpt.py"};
  EXPECT_EQ(losses(run("--standalone", joined(standalone, flags("got").words()),
                       called("/usr/bin/torchrun")),
                   "got"),
            wanted({"--nproc-per-node", "2"}, flags("wanted")));
  const std::string file = path("default.yaml").string();
  EXPECT_THAT(run("default", {"--config_file", file}, called("accelerate-config")).out,
              HasSubstr("accelerate configuration saved at " + file));
  EXPECT_THAT(run("--include", {"a", "pretrain_gpt.py"}, called("deepspeed")).err,
              HasSubstr("--include a: there is no host \"a\""));
}

TEST_F(FrontendsTest, ACommandWithoutRanksRunsOnce) {
  const Outcome outcome = run("deepspeed", {"--num_gpus", "2", "tools/preprocess_data.py"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("preprocess-data does not run on several ranks"));
  EXPECT_THAT(outcome.err, HasSubstr("--input"));
}

TEST_F(FrontendsTest, EnvironmentAndMemoryAreTold) {
  std::ofstream(path("config.yaml")) << "distributed_type: NO\nnum_processes: 1\n";
  const Outcome env = run("env", {"--config_file", path("config.yaml").string()});
  EXPECT_EQ(env.exit_code, 0) << env.err;
  EXPECT_THAT(env.out, testing::AllOf(HasSubstr("- platform: Linux"), HasSubstr("- memory: "),
                                      HasSubstr("\t- distributed_type: \"NO\"")));
  std::ofstream(path("config.json"))
      << R"({"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768,
             "n_layer": 12, "n_head": 12})";
  const Outcome memory =
      run("accelerate", {"estimate-memory", path("config.json").string(), "--dtypes", "float16"});
  EXPECT_THAT(memory.out, testing::AllOf(HasSubstr("73.62 MB"), HasSubstr("ZeRO 3")));
}

// The words of the row that begins with `name`, in a table of estimate-memory.
std::string row_of(const std::string& output, const std::string& name) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(std::regex_replace(line, std::regex("│"), " "));
    std::string row;
    for (std::string word; cells >> word;) row += (row.empty() ? "" : " ") + word;
    if (row.starts_with(name + " ")) return row;
  }
  return "no row " + name + " in:\n" + output;
}

TEST_F(FrontendsTest, MemoryOfAModelThatFlagsDescribe) {
  const Words model = {"--num-layers",
                       "12",
                       "--hidden-size",
                       "768",
                       "--num-attention-heads",
                       "12",
                       "--bf16",
                       "--seq-length",
                       "256",
                       "--micro-batch-size",
                       "2",
                       "--vocab-size",
                       "50256",
                       "--device",
                       "cuda",
                       "--tensor-model-parallel-size",
                       "2"};
  const Outcome outcome =
      run("estimate-memory", joined(model, {"--data-parallel-size", "4", "--dtypes", "float32"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  // 50432 rows of words, 256 positions, 12 layers, and the last norm.
  const int64_t layer = 12 * 768 * 768 + 13 * 768;
  const int64_t parameters = (50432 + 256) * 768 + 12 * layer + 2 * 768;
  EXPECT_THAT(outcome.out, HasSubstr("Training " + std::to_string(parameters) + " parameters"));
  EXPECT_EQ(row_of(outcome.out, "float32"), "float32 147.75 MB 472.96 MB 1.85 GB");

  // The rows are those of the plan of the same training.
  const Outcome plan =
      run("plan", joined(model, {"--world-size", "8", "--json", "--use-distributed-optimizer"}));
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const nlohmann::json stage = nlohmann::json::parse(plan.out)["stages"][0];
  const double megabytes = stage["total_bytes"].get<double>() / (1 << 20);
  std::istringstream cells(row_of(outcome.out, "ZeRO 1"));
  Words row;
  for (std::string word; cells >> word;) row.push_back(word);
  ASSERT_GT(row.size(), 14u) << outcome.out;
  EXPECT_EQ(Words(row.begin(), row.begin() + 5), (Words{"ZeRO", "1", "2", "1", "4"}));
  const double unit = row[14] == "GB" ? 1024 : 1;
  EXPECT_NEAR(std::stod(row[13]) * unit, megabytes, 0.006 * unit) << outcome.out;
}

TEST_F(FrontendsTest, MemoryOfOtherModelsAndOfCheckpoints) {
  const Outcome t5 = run("estimate-memory", {golden("hf/t5-v1.1").string()});
  EXPECT_EQ(t5.exit_code, 0) << t5.err;
  EXPECT_THAT(row_of(t5.out, "ZeRO 0"), testing::StartsWith("ZeRO 0 1 1 1 "));
  const std::string save = path("save").string();
  train(golden_flags()
            .with("--save", save)
            .with("--save-interval", "1")
            .with("--exit-interval", "1"));
  const Outcome trained = run("estimate-memory", {save, "--pipeline-model-parallel-size", "2"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(row_of(trained.out, "ZeRO 1"), testing::StartsWith("ZeRO 1 1 2 1 "));
  EXPECT_THAT(trained.out, HasSubstr("ZeRO 2: "));  // not with a pipeline
  EXPECT_THAT(errors_of(run("estimate-memory", {})),
              ElementsAre(HasSubstr("there is no model; name a config.json")));
  EXPECT_THAT(errors_of(run("estimate-memory", {"--num-layers", "2"})),
              testing::Contains(HasSubstr("--hidden-size")));
}

// The script of BigScience's document, with its flags and its file.
TEST_F(FrontendsTest, BigSciencesDeepSpeedScriptTrains) {
  std::ofstream(path("ds.json")) << R"({
    "train_micro_batch_size_per_gpu": 1,  # as --micro-batch-size
    "train_batch_size": 16,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 1},
    "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2,
             "min_loss_scale": 1, "initial_scale_power": 12},
    "steps_per_print": 2000,
    "wall_clock_breakdown": false
  })";
  const Flags flags = golden_flags()
                          .without("--train-iters")
                          .without("--lr-decay-iters")
                          .without("--lr-warmup-iters")
                          .without("--save")
                          .with("--micro-batch-size", "1")
                          .with("--global-batch-size", "16")
                          .with_words("--rampup-batch-size", {"2", "2", "1_000"})
                          .with("--train-samples", "100")
                          .with("--lr-warmup-samples", "5")
                          .with("--exit-interval", "3")
                          .with("--eval-iters", "0")
                          .with("--optimizer", "adam")
                          .with("--fp16")
                          .with("--checkpoint-activations")
                          .with("--zero-stage", "1")
                          .with("--deepspeed")
                          .with("--deepspeed_config", path("ds.json").string())
                          .with("--deepspeed-activation-checkpointing")
                          .with("--codecarbon-dir", path("codecarbon").string())
                          .with("--log-path", path("arguments").string())
                          .with("--metrics-jsonl", path("got.jsonl").string());
  const Outcome outcome =
      run("deepspeed", joined({"--num_gpus", "2", "pretrain_gpt.py"}, flags.words()));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("iteration        3/     129"));
  EXPECT_THAT(outcome.out, HasSubstr("use_distributed_optimizer ....................... True"));
  EXPECT_THAT(outcome.err, HasSubstr("no effect here: steps_per_print"));
  const auto file = std::filesystem::directory_iterator(path("arguments"));
  EXPECT_THAT(file->path().filename().string(), testing::StartsWith("args_2"));
  EXPECT_THAT(read_text(file->path()), HasSubstr("\n  adam_beta1 ......"));
  const std::string emissions = read_text(path("codecarbon") / "emissions.csv");
  EXPECT_THAT(emissions, testing::StartsWith("timestamp,project_name,run_id,duration,"));
  EXPECT_EQ(std::count(emissions.begin(), emissions.end(), '\n'), 2);
}

TEST_F(FrontendsTest, FaultsOfTorchrunsFlagsHaveSentences) {
  const auto errors = [](const Words& words) {
    return errors_of(run("launch", joined(words, {"pretrain-gpt"})));
  };
  EXPECT_THAT(errors({"--rdzv-backend", "etcd"}),
              ElementsAre(HasSubstr("--rdzv-backend etcd is not available; use static or c10d")));
  EXPECT_THAT(errors({"--nnodes", "1:4"}), ElementsAre(HasSubstr("a job cannot grow or shrink")));
  EXPECT_THAT(errors({"--standalone", "--rdzv-endpoint", "a:1"}),
              ElementsAre(HasSubstr("--standalone is for one host")));
  EXPECT_THAT(errors({"--rdzv-endpoint", "a:b"}),
              ElementsAre(HasSubstr("--rdzv-endpoint a:b must be ADDRESS:PORT")));
  EXPECT_THAT(errors({"--rdzv-endpoint", "a:1", "--master-addr", "b"}),
              ElementsAre(HasSubstr("--master-addr b and --rdzv-endpoint a:1 differ")));
  EXPECT_THAT(errors({"--nproc-per-node", "many"}),
              ElementsAre(HasSubstr("--nproc-per-node many must be at least 1")));
}

TEST_F(FrontendsTest, FaultsOfTheLaunchersHaveSentences) {
  EXPECT_THAT(errors_of(run("accelerate", {"launch", "--config_file", "/no/such.yaml", "x"})),
              ElementsAre(HasSubstr("--config_file /no/such.yaml does not exist")));
  EXPECT_THAT(errors_of(run("accelerate", {"merge-weights"})),
              ElementsAre("accelerate merge-weights is not available"));
  EXPECT_EQ(run("accelerate", {}).exit_code, 1);
  EXPECT_EQ(run("accelerate", {"--help"}).exit_code, 0);
  EXPECT_THAT(
      errors_of(run("estimate-memory", {"/no/such"})),
      ElementsAre(HasSubstr("/no/such does not exist, and Hugging Face's cache has no model")));
  EXPECT_THAT(errors_of(run("deepspeed", {"--autotuning", "run", "pretrain_gpt.py"})),
              ElementsAre(HasSubstr("autotuning and elastic training are not available")));
  EXPECT_THAT(errors_of(run("deepspeed", {"pretrain_ict.py"})),
              ElementsAre(HasSubstr("pretrain_ict.py has no command here yet")));
  EXPECT_THAT(errors_of(run("config", {"defaults"})),
              ElementsAre(HasSubstr("config defaults is not a command")));
}

// Names of models that Hugging Face's tools have downloaded.
TEST_F(FrontendsTest, DownloadedTokenizersHaveNames) {
  namespace fs = std::filesystem;
  const fs::path model = path("home") / "hub" / "models--tiny--gpt2";
  const fs::path snapshot = model / "snapshots" / "abc123";
  fs::create_directories(model / "refs");
  fs::create_directories(snapshot);
  std::ofstream(model / "refs" / "main") << "abc123";
  fs::copy(golden("hf/gpt2/config.json"), snapshot);
  for (const char* name : {"vocab.json", "merges.txt"}) {
    fs::copy(golden("megatron/data") / name, snapshot);
  }
  const RunOptions options{.environment = {{"HF_HOME", path("home").string()}}};
  const Words tokenizer = {"--tokenizer-type", "PretrainedFromHF", "--tokenizer-name-or-path"};
  const auto preprocess = [&](const std::string& name) {
    return run("tools/preprocess_data.py",
               joined(joined({"--input", golden("megatron/data/corpus.jsonl").string(),
                              "--output-prefix", path("corpus").string(), "--append-eod"},
                             tokenizer),
                      {name}),
               options);
  };
  EXPECT_EQ(preprocess("tiny/gpt2").exit_code, 0);
  EXPECT_EQ(read_text(path("corpus_text_document.bin")),
            read_text(golden("megatron/data/corpus_text_document.bin")));
  EXPECT_THAT(errors_of(preprocess("tiny/other")),
              ElementsAre(HasSubstr("--tokenizer-name-or-path tiny/other: there is no such file or "
                                    "folder, and no model of that name in ")));

  // A checkpoint keeps a copy of the files.
  const Outcome trained = run("pretrain-gpt",
                              joined(golden_flags()
                                         .without("--vocab-file")
                                         .without("--merge-file")
                                         .with("--train-iters", "1")
                                         .with("--eval-iters", "0")
                                         .with("--save-interval", "1")
                                         .with("--save", path("checkpoint").string())
                                         .words(),
                                     joined(tokenizer, {"tiny/gpt2"})),
                              options);
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  const Words generation = {"--load",
                            path("checkpoint").string(),
                            "--prompt",
                            "The",
                            "--max-new-tokens",
                            "4",
                            "--greedy",
                            "--device",
                            "cpu"};
  const Outcome generated = run("generate", generation);
  EXPECT_EQ(generated.exit_code, 0) << generated.err;

  // Accelerate's file says how many ranks share the model.
  std::ofstream(path("config.yaml"))
      << "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_pp_degree: 2\n"
         "  megatron_lm_tp_degree: 2\nmixed_precision: 'no'\nnum_processes: 4\n";
  const Outcome shared =
      run("accelerate", joined({"launch", "--config_file", path("config.yaml").string(),
                                "megatron_gpt2_generation.py"},
                               generation));
  EXPECT_EQ(shared.exit_code, 0) << shared.err;
  EXPECT_EQ(shared.out, generated.out);

  const Outcome estimated = run("estimate-memory", {"tiny/gpt2"}, options);
  EXPECT_EQ(estimated.exit_code, 0) << estimated.err;
  EXPECT_THAT(estimated.out, HasSubstr("tiny/gpt2"));
}

// The command of Accelerate's document, with other data and sizes.
TEST_F(FrontendsTest, AccelerateFineTunes) {
  std::ofstream(path("config.yaml"))
      << "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n"
         "  megatron_lm_gradient_clipping: 1.0\n  megatron_lm_num_micro_batches: 2\n"
         "  megatron_lm_pp_degree: 1\n  megatron_lm_tp_degree: 2\n"
         "  other_megatron_args:\n    vocab_size: 130\n    tokenizer_type: NullTokenizer\n"
         "mixed_precision: 'no'\nnum_processes: 2\n";
  const Outcome outcome = run("accelerate", {"launch",
                                             "--config_file",
                                             path("config.yaml").string(),
                                             "examples/by_feature/megatron_lm_gpt_pretraining.py",
                                             "--config_name",
                                             golden("hf/gpt2").string(),
                                             "--train_file",
                                             golden("finetune/train.txt").string(),
                                             "--block_size",
                                             "16",
                                             "--learning_rate",
                                             "5e-5",
                                             "--per_device_train_batch_size",
                                             "4",
                                             "--per_device_eval_batch_size",
                                             "4",
                                             "--num_train_epochs",
                                             "2",
                                             "--with_tracking",
                                             "--report_to",
                                             "jsonl",
                                             "--output_dir",
                                             path("awesome_model").string(),
                                             "--no_keep_linebreaks",
                                             "--tokenizer-type",
                                             "NullTokenizer",
                                             "--vocab-size",
                                             "130",
                                             "--device",
                                             "cpu"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("tensor_model_parallel_size ...................... 2"));
  EXPECT_THAT(outcome.out, HasSubstr("Total train batch size (w. parallel, distributed & "
                                     "accumulation) = 8"));
  EXPECT_THAT(outcome.out, HasSubstr("epoch 1: perplexity: "));
  EXPECT_TRUE(std::filesystem::exists(path("awesome_model") / "all_results.json"));
}

TEST_F(FrontendsTest, RanksAreTested) {
  for (const char* ranks : {"1", "2", "4"}) {
    const Outcome outcome =
        run("launch", {"--nproc-per-node", ranks, "test", "--device", "cpu", "--megabytes", "1"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    EXPECT_THAT(outcome.out, HasSubstr("data parallel: sums over all groups are right"));
    EXPECT_THAT(outcome.out, HasSubstr("data parallel: two steps have the losses of one rank"));
    EXPECT_THAT(outcome.out, HasSubstr("Test is a success"));
  }
  std::ofstream(path("config.yaml"))
      << "distributed_type: MULTI_CPU\nmixed_precision: 'no'\nnum_processes: 2\nuse_cpu: true\n";
  const Outcome outcome =
      run("accelerate", {"test", "--config_file", path("config.yaml").string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("pipeline parallel: two steps have the losses of one rank"));
}

// The workload alone has a batch of 2.
TEST_F(FrontendsTest, BenchReadsDeepSpeedsFile) {
  std::ofstream(path("ds.json"))
      << R"({"train_batch_size": 6, "train_micro_batch_size_per_gpu": 2})";
  const Outcome outcome =
      run("bench", {"--workload", "tiny", "--steps", "1", "--warmup", "0", "--device", "cpu",
                    "--deepspeed_config", path("ds.json").string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\"global_batch_size\":6,"));
}

}  // namespace
}  // namespace megatron::program
