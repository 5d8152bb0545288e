#include <cmath>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "megatron/core/file.h"
#include "megatron/formats/json_file.h"
#include "tests/program/finetuning.h"
#include "tests/program/terminal.h"

// `megatron finetune`.
namespace megatron::program {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class FinetuneTest : public FinetuningTest {
 protected:
  // The run of tests/golden/finetune.
  Flags golden_finetuning(const std::string& output) const {
    return finetuning(output)
        .with("--model_name_or_path", golden("hf/gpt2").string())
        .with("--train_file", golden("finetune/train.txt").string())
        .with("--validation_file", golden("finetune/valid.txt").string())
        .with("--no_keep_linebreaks")
        .with("--tokenizer-type", "NullTokenizer")
        .with("--vocab-size", "130")
        .with("--block_size", "16");
  }
  static nlohmann::json reference() { return read_json(golden("finetune/reference.json")); }

  static std::vector<double> eval_losses_of(const std::string& output) {
    return epochs_of(output, "eval_loss: ");
  }
  void expect_reference(const std::string& output, const Outcome& outcome) const {
    const nlohmann::json want = reference();
    expect_near(column(output, "lm loss"), want["losses"], 1e-5);
    expect_near(column(output, "grad_norm"), want["grad_norms"], 1e-4);
    expect_near(eval_losses_of(outcome.out), want["eval_losses"], 1e-5);
    const nlohmann::json results = read_json(path(output) / "all_results.json");
    EXPECT_NEAR(results["perplexity"].get<double>(), want["perplexity"].get<double>(), 1e-3);
  }
};

TEST_F(FinetuneTest, EqualsAPlainPyTorchLoop) {
  const Outcome outcome = finetune(golden_finetuning("out"));
  expect_reference("out", outcome);
  EXPECT_THAT(outcome.out, HasSubstr("  Num examples = 72\n"));
  EXPECT_THAT(outcome.out, HasSubstr("  Num Epochs = 2\n"));
  EXPECT_THAT(outcome.out, HasSubstr("  Total optimization steps = 18\n"));
}

// A terminal has a bar below the lines: no line is written beside a bar, which is erased before.
TEST_F(FinetuneTest, ATerminalShowsTheProgress) {
  const Outcome outcome = run_on_terminal("finetune", golden_finetuning("out").words());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  const std::string erase = "\r\x1b[K";
  int bars = 0;
  std::string lines;  // without the bars
  for (size_t begin = 0; begin < outcome.out.size();) {
    const size_t end = std::min(outcome.out.find(erase, begin), outcome.out.size());
    const std::string part = outcome.out.substr(begin, end - begin);
    begin = end + erase.size();
    if (part.starts_with("evaluating: ") && part.ends_with(" left")) continue;
    if (!part.starts_with("[#") && !part.starts_with("[-")) {
      lines += part;
      continue;
    }
    ++bars;
    EXPECT_THAT(part, testing::MatchesRegex("\\[[#-]+\\] [0-9]+/18  loss [0-9.]+  [0-9]+ tokens/s  "
                                            ".* left"));
  }
  EXPECT_GE(bars, 1) << "the first update is always drawn";
  EXPECT_EQ(eval_losses_of(lines).size(), 2u) << "a line for each epoch";
  EXPECT_THAT(lines, HasSubstr("Total optimization steps = 18"));
}

TEST_F(FinetuneTest, EqualsItOnFourRanks) {
  const Flags flags = golden_finetuning("out").with("--tensor-model-parallel-size", "2");
  expect_reference("out", finetune(flags.with("--pipeline-model-parallel-size", "2")
                                       .with("--decoder-first-pipeline-num-layers", "1"),
                                   4));
}

// What two runs of the golden fine-tuning have left must not differ.
void expect_same_results(const std::filesystem::path& got, const std::filesystem::path& want) {
  expect_identical(read_saved_run(iteration_in(got / "checkpoints", 18)),
                   read_saved_run(iteration_in(want / "checkpoints", 18)));
  for (const char* file : {"model.safetensors", "config.json", "all_results.json"}) {
    EXPECT_EQ(read_text(got / file), read_text(want / file)) << file;
  }
}

TEST_F(FinetuneTest, ResumesAfterAKill) {
  finetune(golden_finetuning("straight"));
  const Flags flags = golden_finetuning("killed").with("--checkpointing_steps", "1");
  Running running("finetune", flags.words());
  ASSERT_TRUE(running.wait_for("successfully saved checkpoint at iteration      11"));
  running.send(SIGKILL);
  running.finish();
  const Outcome resumed = finetune(flags.with("--resume_from_checkpoint", path("killed").string()));
  EXPECT_THAT(resumed.out, HasSubstr("  successfully loaded checkpoint from "));
  expect_same_results(path("killed"), path("straight"));
}

TEST_F(FinetuneTest, ARunThatIsCompleteEndsWellOnceMore) {
  const Flags flags = golden_finetuning("out");
  finetune(flags);
  const std::string weights = read_text(path("out") / "model.safetensors");
  const Outcome again = finetune(flags.with("--resume_from_checkpoint", path("out").string()));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_text(path("out") / "model.safetensors"), weights);
}

TEST_F(FinetuneTest, ResumesFromANamedEpoch) {
  const Flags flags = golden_finetuning("out").with("--checkpointing_steps", "epoch");
  finetune(golden_finetuning("straight"));
  finetune(flags);
  const Outcome resumed =
      finetune(flags.with("--resume_from_checkpoint", (path("out") / "epoch_0").string()));
  EXPECT_THAT(resumed.out, HasSubstr(" at iteration 9\n"));
  EXPECT_EQ(eval_losses_of(resumed.out).size(), 1u);
  expect_same_results(path("out"), path("straight"));
}

// The last batch of an epoch is filled; an evaluation counts each block once, in every layout.
TEST_F(FinetuneTest, BatchesThatDoNotFillAnEpoch) {
  const Flags flags = golden_finetuning("one").with("--per_device_train_batch_size", "10");
  const Outcome one = finetune(flags.with("--gradient_accumulation_steps", "1"));
  EXPECT_THAT(one.out, HasSubstr("  Total optimization steps = 16\n"));
  const Outcome two = finetune(golden_finetuning("two")
                                   .with("--per_device_train_batch_size", "5")
                                   .with("--gradient_accumulation_steps", "1"),
                               2);
  const std::vector<double> losses = eval_losses_of(one.out);
  ASSERT_EQ(losses.size(), 2u);
  expect_near(eval_losses_of(two.out), losses, 2e-6);
}

TEST_F(FinetuneTest, EvaluatesWhereTheTrainingEnds) {
  const Outcome outcome = finetune(golden_finetuning("out").with("--max_train_steps", "11"));
  EXPECT_EQ(eval_losses_of(outcome.out).size(), 2u);
  EXPECT_THAT(outcome.out, HasSubstr("validation loss at iteration 11 on validation set"));
}

// The result is a model that the next run, and every other command, can load.
TEST_F(FinetuneTest, ItsResultTrainsFurther) {
  finetune(golden_finetuning("first"));
  const Outcome second =
      finetune(golden_finetuning("second").with("--model_name_or_path", path("first").string()));
  const double first_loss = reference()["eval_losses"][1];
  EXPECT_LT(eval_losses_of(second.out).back(), first_loss);
  const Outcome third = finetune(golden_finetuning("third").with(
      "--model_name_or_path", (path("first") / "checkpoints").string()));
  EXPECT_EQ(eval_losses_of(third.out), eval_losses_of(second.out));
}

TEST_F(FinetuneTest, TextsAndTheirTokenizer) {
  const auto data = golden("megatron/data");
  std::filesystem::create_directory(path("tokenizer"));
  std::filesystem::copy(data / "vocab.json", path("tokenizer") / "vocab.json");
  std::filesystem::copy(data / "merges.txt", path("tokenizer") / "merges.txt");
  std::ofstream(path("texts.csv")) << "id,text\n1,\"the first, longer text of this small file\"\n"
                                   << "2,and the second one\n3,a third text for the training\n";
  const Flags flags = Flags()
                          .with("--config_name", golden("hf/gpt2").string())
                          .with("--tokenizer_name", path("tokenizer").string())
                          .with("--train_file", path("texts.csv").string())
                          .with("--validation_split_percentage", "34")
                          .with("--block_size", "4")
                          .with("--per_device_train_batch_size", "2")
                          .with("--num_train_epochs", "1")
                          .with("--output_dir", path("out").string())
                          .with("--with_tracking")
                          .with("--device", "cpu");
  const Outcome outcome = finetune(flags);
  EXPECT_EQ(eval_losses_of(outcome.out).size(), 1u);
  for (const char* file : {"config.json", "model.safetensors", "vocab.json", "merges.txt",
                           "all_results.json", "metrics.jsonl", "tensorboard"}) {
    EXPECT_TRUE(std::filesystem::exists(path("out") / file)) << file;
  }
  const Outcome generated =
      run("generate", {"--load", path("out").string(), "--prompt", "the first", "--device", "cpu",
                       "--max-new-tokens", "4"});
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
}

// A name of a model in the cache of Hugging Face's hub.
TEST_F(FinetuneTest, DownloadedModelsHaveNames) {
  const auto model = path("home") / "hub" / "models--tiny--gpt2";
  std::filesystem::create_directories(model / "refs");
  std::filesystem::create_directories(model / "snapshots");
  std::ofstream(model / "refs" / "main") << "abc123";
  std::filesystem::copy(golden("hf/gpt2"), model / "snapshots" / "abc123");
  const Flags flags =
      golden_finetuning("out").with("--max_train_steps", "1").with("--num_warmup_steps", "0");
  const RunOptions options{.environment = {{"HF_HOME", path("home").string()}}};
  const Outcome found =
      run("finetune", flags.with("--model_name_or_path", "tiny/gpt2").words(), options);
  EXPECT_EQ(found.exit_code, 0) << found.err;
  const Outcome missing =
      run("finetune", flags.with("--model_name_or_path", "tiny/other").words(), options);
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("--model_name_or_path tiny/other: there is no such file or "
                                     "folder, and no model of that name in "));
}

// Parquet files in the hub's cache, by the name of the data set; the losses are those of the texts.
TEST_F(FinetuneTest, DownloadedDataSetsHaveNames) {
  const auto set = path("home") / "hub" / "datasets--tiny--texts";
  std::filesystem::create_directories(set / "refs");
  std::filesystem::create_directories(set / "snapshots" / "abc123");
  std::ofstream(set / "refs" / "main") << "abc123";
  std::filesystem::copy(golden("parquet/dataset"), set / "snapshots" / "abc123" / "plain");
  const Flags flags = golden_finetuning("out")
                          .without("--train_file")
                          .without("--validation_file")
                          .with("--dataset_name", "tiny/texts")
                          .with("--dataset_config_name", "plain");
  const RunOptions options{.environment = {{"HF_HOME", path("home").string()}}};
  const Outcome outcome = run("finetune", flags.words(), options);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<double> losses = eval_losses_of(outcome.out);
  const auto expected = reference().at("eval_losses").get<std::vector<double>>();
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-5);
  const Outcome missing =
      run("finetune", flags.with("--dataset_config_name", "other").words(), options);
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("--dataset_config_name other: there is no folder "));
}

TEST_F(FinetuneTest, IndexedData) {
  write_periodic_dataset(path("data"),
                         {5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61});
  const Outcome outcome = finetune(golden_finetuning("out")
                                       .without("--train_file")
                                       .without("--validation_file")
                                       .with("--megatron_dataset_flag")
                                       .with("--data-path", path("data").string())
                                       .with("--split", "1")
                                       .with("--eval-iters", "0")
                                       .with("--max_train_steps", "5")
                                       .with("--checkpointing_steps", "2"));
  EXPECT_EQ(iterations_of(outcome.out).size(), 5u);
  EXPECT_TRUE(std::filesystem::exists(iteration_in(path("out") / "checkpoints", 4)));
  EXPECT_TRUE(std::filesystem::exists(path("out") / "model.safetensors"));
}

TEST_F(FinetuneTest, EveryKindOfCheckpointBecomesTheResult) {
  const auto two_steps = [this](const std::string& output) {
    return golden_finetuning(output).with("--num_warmup_steps", "0").with("--max_train_steps", "2");
  };
  finetune(two_steps("native"));
  const std::string weights = read_text(path("native") / "model.safetensors");
  for (const std::string format : {"megatron", "megatron-core", "torch_dist", "hf"}) {
    finetune(two_steps(format).with("--save-format", format));
    EXPECT_EQ(read_text(path(format) / "model.safetensors"), weights) << format;
  }
  finetune(two_steps("precise")
               .with("--use-distributed-optimizer")
               .with("--use-precision-aware-optimizer")
               .with("--exp-avg-dtype", "bf16"));
  EXPECT_TRUE(std::filesystem::exists(path("precise") / "model.safetensors"));
  finetune(two_steps("none").with("--skip-train"));
  EXPECT_FALSE(std::filesystem::exists(path("none") / "model.safetensors"));
}

// A new model, with what the flags say of its architecture.
class NewModelTest : public FinetuneTest {
 protected:
  Flags new_model(const std::string& output) const {
    return golden_finetuning(output)
        .without("--model_name_or_path")
        .with("--config_name", golden("hf/gpt2").string())
        .with("--num_warmup_steps", "0")
        .with("--max_train_steps", "1");
  }
};

TEST_F(NewModelTest, StartsWithTheStandardDeviationOfItsConfig) {
  nlohmann::json config = read_json(golden("hf/gpt2") / "config.json");
  config["initializer_range"] = 0.5;
  std::ofstream(path("wide.json")) << config;
  const Outcome wide = finetune(
      new_model("out").without("--config_name").with("--config_name", path("wide.json").string()));
  EXPECT_THAT(wide.out, testing::ContainsRegex("init_method_std [.]+ 0.5\n"));
  EXPECT_EQ(read_json(path("out") / "config.json").at("initializer_range"), 0.5);
}

TEST_F(NewModelTest, ArchitectureFlagsAreObeyed) {
  finetune(new_model("llama")
               .with("--position-embedding-type", "rope")
               .with("--normalization", "RMSNorm")
               .with("--swiglu")
               .with("--disable-bias-linear")
               .with("--untie-embeddings-and-output-weights")
               .with("--group-query-attention")
               .with("--num-query-groups", "2"));
  const nlohmann::json llama = read_json(path("llama") / "config.json");
  EXPECT_EQ(llama.at("model_type"), "llama");
  EXPECT_EQ(llama.at("num_key_value_heads"), 2);
  EXPECT_EQ(llama.at("tie_word_embeddings"), false);

  // Sizes that config.json does not state follow.
  finetune(new_model("wide").with("--hidden-size", "64").with("--num-attention-heads", "8"));
  const nlohmann::json wide = read_json(path("wide") / "config.json");
  EXPECT_EQ(wide.at("model_type"), "gpt2");
  EXPECT_EQ(wide.at("n_head"), 8);
  EXPECT_EQ(wide.at("n_inner"), 256);
}

TEST_F(NewModelTest, WithoutAFamilyItStaysInItsCheckpoints) {
  const Flags flags = new_model("out").with("--position-embedding-type", "alibi");
  const Outcome outcome = finetune(flags);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("gpt2 differs in the kind of position embedding"),
                    HasSubstr("So " + (path("out") / "checkpoints").string() + " is the result")));
  EXPECT_FALSE(std::filesystem::exists(path("out") / "config.json"));
  EXPECT_TRUE(std::filesystem::exists(path("out") / "all_results.json"));
  const Outcome scored =
      run("score", {"--load", (path("out") / "checkpoints").string(), "--device", "cpu"},
          {.input = "{\"ids\": [1, 2, 3, 5]}\n"});
  EXPECT_EQ(scored.exit_code, 0) << scored.err;

  // The model of another run must not be taken for its result.
  std::ofstream(path("out") / "config.json") << "{}";
  std::filesystem::remove_all(path("out") / "checkpoints");
  const Outcome refused = run("finetune", flags.words());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("has the config.json of another model"));
  EXPECT_THAT(iterations_of(refused.out), testing::IsEmpty());
}

TEST_F(NewModelTest, WeightsFitTheirArchitectureAlone) {
  const auto error_of = [&](const Flags& flags) {
    const Outcome outcome = run("finetune", flags.words());
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(iterations_of(outcome.out), testing::IsEmpty());
    return outcome.err;
  };
  EXPECT_THAT(error_of(golden_finetuning("out").with("--swiglu")),
              HasSubstr("--swiglu is False in the checkpoint, but True on the command line; its "
                        "weights fit no other model"));
  EXPECT_THAT(error_of(golden_finetuning("out").with("--attention-head-type", "multiquery")),
              HasSubstr("--group-query-attention is False in the checkpoint, but True"));
  EXPECT_THAT(error_of(golden_finetuning("out").with("--save", "")),
              HasSubstr("--save is empty, but the result in --output_dir"));
}

TEST_F(NewModelTest, FlagsThatLoseAreWarnedOf) {
  const Flags flags = new_model("out")
                          .with("--gradient_accumulation_steps", "8")
                          .with("--lr", "0.002")
                          .with("--validation_split_percentage", "7")
                          .with("--data-path", "none");
  const Outcome outcome = run("finetune", flags.words(),
                              {.environment = {{"ACCELERATE_USE_MEGATRON_LM", "true"},
                                               {"MEGATRON_LM_NUM_MICRO_BATCHES", "2"}}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("  Gradient Accumulation steps = 2\n"));
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("--gradient_accumulation_steps has no effect: --global-batch-size, "
                              "or the launcher in its place, says global_batch_size 8 instead of "
                              "32"),
                    HasSubstr("--learning_rate has no effect: --lr, or the launcher"),
                    HasSubstr("--validation_split_percentage has no effect beside "
                              "--validation_file"),
                    HasSubstr("--data-path has no effect without --megatron_dataset_flag")));
}

// Low-rank adapters.
class LoraTest : public FinetuneTest {
 protected:
  Flags lora(const std::string& output) const {
    return golden_finetuning(output)
        .with("--lora-rank", "4")
        .with("--lora-alpha", "16")
        .with_words("--lora-target-modules", {"c_attn", "c_proj", "c_fc"});
  }
};

TEST_F(LoraTest, EqualsPeft) {
  const Outcome outcome = finetune(lora("out"));
  const nlohmann::json want = read_json(golden("finetune/lora.json"));
  expect_near(column("out", "lm loss"), want["losses"], 1e-5);
  expect_near(column("out", "grad_norm"), want["grad_norms"], 1e-4);
  expect_near(eval_losses_of(outcome.out), want["eval_losses"], 1e-5);
  EXPECT_TRUE(std::filesystem::exists(path("out") / "adapter_model.safetensors"));
  const nlohmann::json config = read_json(path("out") / "adapter_config.json");
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 16);
  EXPECT_EQ(config["target_modules"],
            nlohmann::json({"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}));
}

// Every layout, with recomputation, trains the same adapters.
TEST_F(LoraTest, EveryLayoutTrainsTheSame) {
  finetune(lora("one"));
  const std::vector<double> losses = column("one", "lm loss");
  const Flags flags = lora("four")
                          .with("--tensor-model-parallel-size", "2")
                          .with("--pipeline-model-parallel-size", "2")
                          .with("--decoder-first-pipeline-num-layers", "1")
                          .with("--sequence-parallel")
                          .with("--recompute-granularity", "full")
                          .with("--recompute-method", "uniform")
                          .with("--recompute-num-layers", "1");
  finetune(flags, 4);
  expect_near(column("four", "lm loss"), losses, 5e-6);
  finetune(lora("two").with("--use-distributed-optimizer"), 2);
}

// The model's products are in FP8 and its adapters are not; scales are no adapters.
TEST_F(LoraTest, TheModelMayComputeInFp8) {
  finetune(lora("wide"));
  const std::vector<double> want = column("wide", "lm loss");
  for (const std::string recipe : {"delayed", "blockwise"}) {
    finetune(lora(recipe).with("--fp8-format", "hybrid").with("--fp8-recipe", recipe));
    const std::vector<double> got = column(recipe, "lm loss");
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.02 * want[i]) << i;
    EXPECT_NE(got, want);
    EXPECT_TRUE(std::filesystem::exists(path(recipe) / "adapter_model.safetensors"));
  }
}

TEST_F(LoraTest, OnlyAdaptersAreTrained) {
  finetune(lora("out"));
  const SavedRun saved = read_saved_run(iteration_in(path("out") / "checkpoints", 18));
  int adapters = 0;
  for (const auto& [name, tensor] : saved.tensors) {
    if (name.starts_with("weights/")) continue;
    EXPECT_THAT(name, HasSubstr(".adapter."));
    adapters += 1;
  }
  EXPECT_EQ(adapters, 2 * 2 * 4 * 3);  // two moments of A and B in four layers of each of three
}

TEST_F(LoraTest, MergedModelComputesTheSame) {
  const Flags flags = lora("out").with("--merge_lora");
  finetune(flags);
  const std::string ids = "{\"ids\": [1, 2, 3, 5, 8, 13, 21, 34, 55, 89]}\n";
  const auto score_of = [&](const std::filesystem::path& model) {
    const Outcome outcome =
        run("score", {"--load", model.string(), "--device", "cpu"}, {.input = ids});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    double sum = 0;
    const nlohmann::json answer = nlohmann::json::parse(outcome.out);
    for (const nlohmann::json& value : answer["logprobs"]) {
      if (value.is_number()) sum += value.get<double>();
    }
    return sum;
  };
  const double apart = score_of(path("out") / "checkpoints");
  EXPECT_NEAR(score_of(path("out")), apart, 1e-4);
  EXPECT_GT(std::abs(score_of(golden("hf/gpt2")) - apart), 0.1);
  const Outcome converted =
      run("convert-checkpoint", {"--load-dir", (path("out") / "checkpoints").string(), "--save-dir",
                                 path("hf").string(), "--saver", "hf"});
  EXPECT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_NEAR(score_of(path("hf")), apart, 1e-4);
}

// The folder of a run's adapters is a model for every command.
TEST_F(LoraTest, AFolderOfPeftIsAModel) {
  finetune(lora("out"));
  const std::string ids = "{\"ids\": [1, 2, 3, 5, 8, 13, 21, 34, 55, 89]}\n";
  const auto answer_of = [&](const std::filesystem::path& model) {
    const Outcome outcome =
        run("score", {"--load", model.string(), "--device", "cpu"}, {.input = ids});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(answer_of(path("out")), answer_of(path("out") / "checkpoints"));

  finetune(golden_finetuning("further").with("--model_name_or_path", path("out").string()));
  const std::vector<double> first = column("out", "lm loss");
  const std::vector<double> second = column("further", "lm loss");
  EXPECT_LT(second.front(), first.front()) << "it goes on from the trained adapters";
  EXPECT_LT(second.back(), first.back());
  const nlohmann::json config = read_json(path("further") / "adapter_config.json");
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 16);
  EXPECT_EQ(config["base_model_name_or_path"], golden("hf/gpt2").string());
  const Outcome merged =
      run("convert-checkpoint",
          {"--load-dir", path("out").string(), "--save-dir", path("hf").string(), "--saver", "hf"});
  EXPECT_EQ(merged.exit_code, 0) << merged.err;
}

TEST_F(LoraTest, ResumesWithTheSameBits) {
  finetune(lora("straight").with("--merge_lora"));
  const Flags flags = lora("out").with("--checkpointing_steps", "epoch").with("--merge_lora");
  finetune(flags);
  finetune(flags.with("--resume_from_checkpoint", (path("out") / "epoch_0").string()));
  expect_same_results(path("out"), path("straight"));
}

// The masks belong to the samples, whatever the layout is and whether a layer runs again.
TEST_F(LoraTest, EveryLayoutDropsTheSameElements) {
  const auto losses_of = [this](const std::string& output, const Flags& flags, int ranks) {
    finetune(flags, ranks);
    return column(output, "lm loss");
  };
  const auto dropped = [this](const std::string& output) {
    return lora(output).with("--lora-dropout", "0.5");
  };
  const std::vector<double> losses = losses_of("one", dropped("one"), 1);
  EXPECT_GT(std::abs(losses.back() - losses_of("none", lora("none"), 1).back()), 1e-3);
  const Flags four = dropped("four")
                         .with("--tensor-model-parallel-size", "2")
                         .with("--pipeline-model-parallel-size", "2")
                         .with("--decoder-first-pipeline-num-layers", "1")
                         .with("--sequence-parallel");
  expect_near(losses_of("four", four, 4), losses, 5e-6);
  const Flags two = dropped("two").with("--per_device_train_batch_size", "2");
  expect_near(losses_of("two", two, 2), losses, 5e-6);
}

TEST_F(LoraTest, RecomputationAndResumingDropTheSameElements) {
  const auto dropped = [this](const std::string& output) {
    return lora(output).with("--lora-dropout", "0.5").with("--merge_lora");
  };
  finetune(dropped("straight"));
  finetune(dropped("again")
               .with("--recompute-granularity", "full")
               .with("--recompute-method", "uniform")
               .with("--recompute-num-layers", "1"));
  EXPECT_EQ(read_text(path("again") / "model.safetensors"),
            read_text(path("straight") / "model.safetensors"));
  const Flags flags = dropped("out").with("--checkpointing_steps", "epoch");
  finetune(flags);
  finetune(flags.with("--resume_from_checkpoint", (path("out") / "epoch_0").string()));
  expect_same_results(path("out"), path("straight"));
}

// adapter_config.json has the dropout; the command line wins over it.
TEST_F(LoraTest, TheDropoutTravelsWithTheAdapters) {
  finetune(lora("out").with("--lora-dropout", "0.25"));
  EXPECT_EQ(read_json(path("out") / "adapter_config.json")["lora_dropout"], 0.25);
  const auto further = [this](const std::string& output) {
    return golden_finetuning(output).with("--model_name_or_path", path("out").string());
  };
  finetune(further("same"));
  EXPECT_EQ(read_json(path("same") / "adapter_config.json")["lora_dropout"], 0.25);
  finetune(further("none").with("--lora-dropout", "0"));
  EXPECT_EQ(read_json(path("none") / "adapter_config.json")["lora_dropout"], 0.0);
}

TEST_F(LoraTest, MistakesAreNamed) {
  const Outcome outcome = run("finetune", lora("out")
                                              .with("--lora-dropout", "1")
                                              .with("--lora-target-modules", "wte")
                                              .with("--lora-alpha", "0")
                                              .with("--save-format", "hf")
                                              .words());
  EXPECT_EQ(outcome.exit_code, 2);
  const std::vector<std::string> errors = errors_of(outcome);
  EXPECT_THAT(errors, testing::Contains("--lora-alpha 0 must be greater than 0"));
  EXPECT_THAT(errors, testing::Contains("--lora-dropout 1 must be in [0, 1)"));
  EXPECT_THAT(errors, testing::Contains(HasSubstr("--lora-target-modules wte is no linear layer")));
  EXPECT_THAT(errors, testing::Contains(HasSubstr("--lora-rank needs --save-format native")));
}

TEST_F(FinetuneTest, MistakesAreNamed) {
  const auto errors = [](const Flags& flags) {
    const Outcome outcome = run("finetune", flags.words());
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    return errors_of(outcome);
  };
  const Flags flags = golden_finetuning("out");
  EXPECT_THAT(
      errors(flags.with("--block_size", "-1").with("--num_train_epochs", "0")),
      ElementsAre("--block_size -1 must be at least 0", "--num_train_epochs 0 must be at least 1"));
  EXPECT_THAT(errors(flags.with("--block_size", "1")),
              ElementsAre("--block_size 1 must be at least 2: a block of one token has nothing to "
                          "predict"));
  EXPECT_THAT(errors(flags.without("--model_name_or_path")),
              ElementsAre(HasSubstr("--model_name_or_path or --config_name is required")));
  EXPECT_THAT(errors(flags.without("--train_file")),
              ElementsAre("--train_file is required: the texts to train on"));
  EXPECT_THAT(errors(flags.with("--block_size", "60").with("--max-position-embeddings", "2000")),
              ElementsAre(HasSubstr("--max-position-embeddings is 64 in the model's config.json")));
  EXPECT_THAT(errors(flags.without("--tokenizer-type").without("--vocab-size")),
              ElementsAre(HasSubstr("no tokenizer is there (tokenizer.json, or vocab.json and "
                                    "merges.txt); give its folder with --tokenizer_name")));
  EXPECT_THAT(errors(flags.with("--lr_scheduler_type", "polynomial")),
              ElementsAre(HasSubstr("--lr_scheduler_type polynomial is not available; use")));
  EXPECT_THAT(
      errors(flags.with("--dataset_name", "wikitext").without("--train_file")),
      ElementsAre(HasSubstr("--dataset_name wikitext: there is no such file or folder, and no "
                            "data set of that name in ")));
  EXPECT_THAT(errors(flags.with("--train_file", golden("finetune/reference.json").string())
                         .with("--text_column", "torch")),
              ElementsAre(HasSubstr("reference.json: line 1: ")));
  std::ofstream(path("short.txt")) << "1 2 3\n";
  EXPECT_THAT(errors(flags.with("--train_file", path("short.txt").string())),
              ElementsAre("the training texts fill no block of 16 tokens: there are 1 texts with 3 "
                          "tokens; lower --block_size or add texts"));
}

}  // namespace
}  // namespace megatron::program
