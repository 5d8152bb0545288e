#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megatron/checkpoint/load.h"
#include "megatron/core/file.h"
#include "megatron/interchange/megatron/reader.h"
#include "tests/optim/golden_log.h"
#include "tests/program/program_test.h"
#include "tests/support/shared_data.h"
#include "tests/support/tensors.h"

// Checkpoints that Megatron-LM wrote, against the logs of the runs that wrote them.
namespace megatron::program {
namespace {

class MegatronTest : public ProgramTest {
 protected:
  static std::filesystem::path shared_run(const std::string& name) {
    return shared_data("golden/megatron") / name / "ckpt";
  }
};

// Megatron-LM trained to iteration 10 and saved; we go on and must follow its log.
TEST_F(MegatronTest, GoesOnWhereMegatronStopped) {
  const std::vector<LoggedIteration> want = logged_iterations("gpt");
  const Outcome outcome =
      train(golden_flags()
                .with("--load", (golden("megatron/gpt/ckpt/iter_0000010")).string())
                .with("--save", path("save").string())
                .with("--repeat-last-evaluation")
                .with("--save-interval", "100"));
  const std::vector<IterationText> got = iterations_of(outcome.out);
  ASSERT_EQ(got.size(), 10u);
  for (size_t i = 0; i < got.size(); ++i) {
    const LoggedIteration& line = want[i + 10];
    for (const char* name : {"learning rate", "consumed samples", "global batch size", "loss scale",
                             "number of skipped iterations", "number of nan iterations"}) {
      EXPECT_EQ(got[i].text(name), line.text(name)) << name << " of iteration " << i + 11;
    }
    const double loss = line.number("lm loss");
    const double norm = line.number("grad norm");
    EXPECT_NEAR(got[i].number("lm loss"), loss, 1e-4 * loss) << "iteration " << i + 11;
    EXPECT_NEAR(got[i].number("grad norm"), norm, 1e-3 * norm) << "iteration " << i + 11;
  }
  const std::map<std::string, double> losses = validations_of(outcome.out);
  EXPECT_NEAR(losses.at("iteration 20"), 5.954006, 6e-4);
  EXPECT_NEAR(losses.at("iteration 20 on validation set"), 5.950473, 6e-4);
  EXPECT_NEAR(losses.at("iteration 20 on test set"), 5.947258, 6e-4);

  MG_NEEDS_SHARED("golden/megatron/gpt/ckpt");
  const CheckpointContents ours = open_checkpoint(iteration_in(path("save"), 20));
  const CheckpointContents theirs = open_megatron_checkpoint(iteration_in(shared_run("gpt"), 20));
  EXPECT_EQ(ours.consumed_train_samples, theirs.consumed_train_samples);
  for (const auto& [name, tensor] : theirs.sections.at(kWeightsSection)) {
    expect_close(read_whole(ours.sections.at(kWeightsSection).at(name)), read_whole(tensor),
                 {.relative = 1e-4, .absolute = 1e-4}, name);
  }
}

// The same with Megatron Core's format torch_dist: runs of its library went on as ours must.
struct DistRun {
  const char* name;
  const char* layers;
  const char* hidden_size;
  const char* heads;
  const char* ffn_hidden_size;
  const char* stages;  // of four ranks that go on with it
};

class DistRunTest : public MegatronTest, public testing::WithParamInterface<DistRun> {};
INSTANTIATE_TEST_SUITE_P(Runs, DistRunTest,
                         testing::Values(DistRun{"gpt", "2", "16", "4", "64", "2"},
                                         DistRun{"buckets", "1", "8", "2", "16", "1"}),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(DistRunTest, GoesOnWhereMegatronCoreStopped) {
  const DistRun& model = GetParam();
  const std::filesystem::path saved = golden(std::string("torch_dist/") + model.name);
  const Flags flags = golden_flags()
                          .with("--num-layers", model.layers)
                          .with("--hidden-size", model.hidden_size)
                          .with("--num-attention-heads", model.heads)
                          .with("--ffn-hidden-size", model.ffn_hidden_size)
                          .with("--eval-iters", "0")
                          .with("--load", saved.string());
  const std::vector<IterationText> got = iterations_of(train(flags).out);
  ASSERT_EQ(got.size(), 10u);
  std::ifstream log(saved / "iterations.txt");
  size_t i = 0;
  for (double iteration, rate, loss, norm; log >> iteration >> rate >> loss >> norm;) {
    if (iteration <= 10) continue;
    ASSERT_LT(i, got.size());
    EXPECT_NEAR(got[i].number("lm loss"), loss, 1e-5 * loss) << "iteration " << iteration;
    EXPECT_NEAR(got[i].number("grad norm"), norm, 6e-4) << "iteration " << iteration;
    // The log has the rate of the next iteration, in four digits.
    if (i > 0) {
      EXPECT_NEAR(got[i - 1].number("learning rate"), rate, 5e-4 * rate);
    }
    ++i;
  }
  EXPECT_EQ(i, 10u);

  // Four ranks read their parts of it.
  Words words = {"--nproc-per-node", "4", "pretrain-gpt"};
  for (const std::string& word : flags.with("--tensor-model-parallel-size", "2")
                                     .with("--pipeline-model-parallel-size", model.stages)
                                     .with("--use-distributed-optimizer")
                                     .words()) {
    words.push_back(word);
  }
  const Outcome outcome = run("launch", words);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<IterationText> parallel = iterations_of(outcome.out);
  ASSERT_EQ(parallel.size(), 10u);
  for (size_t k = 0; k < 10; ++k) {
    const double loss = got[k].number("lm loss");
    EXPECT_NEAR(parallel[k].number("lm loss"), loss, 1e-5 * loss);
  }
}

Words conversion(const std::filesystem::path& from, const std::filesystem::path& to,
                 const Words& more = {}) {
  Words words = {"--load-dir", from.string(), "--save-dir", to.string()};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The same on four ranks, each with its part of what one rank saved.
TEST_F(MegatronTest, GoesOnAsTensorAndPipelineRanks) {
  const std::vector<LoggedIteration> want = logged_iterations("gpt");
  const Flags flags = golden_flags()
                          .with("--tensor-model-parallel-size", "2")
                          .with("--pipeline-model-parallel-size", "2")
                          .with("--load", golden("megatron/gpt/ckpt/iter_0000010").string())
                          .with("--save", path("save").string())
                          .with("--save-interval", "10")
                          .with("--save-format", "megatron");
  Words words = {"--nproc-per-node", "4", "pretrain-gpt"};
  for (const std::string& word : flags.words()) words.push_back(word);
  const Outcome outcome = run("launch", words);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<IterationText> got = iterations_of(outcome.out);
  ASSERT_EQ(got.size(), 10u);
  for (size_t i = 0; i < got.size(); ++i) {
    const double loss = want[i + 10].number("lm loss");
    const double norm = want[i + 10].number("grad norm");
    EXPECT_EQ(got[i].text("learning rate"), want[i + 10].text("learning rate"));
    EXPECT_NEAR(got[i].number("lm loss"), loss, 1e-4 * loss) << "iteration " << i + 11;
    EXPECT_NEAR(got[i].number("grad norm"), norm, 1e-3 * norm) << "iteration " << i + 11;
  }
  EXPECT_TRUE(std::filesystem::exists(iteration_in(path("save"), 20) / "mp_rank_01_001"));

  MG_NEEDS_SHARED("golden/megatron/gpt/ckpt");
  const CheckpointContents ours = open_megatron_checkpoint(iteration_in(path("save"), 20));
  const CheckpointContents theirs = open_megatron_checkpoint(iteration_in(shared_run("gpt"), 20));
  for (const char* section : {kWeightsSection, "exp_avg", "exp_avg_sq"}) {
    for (const auto& [name, tensor] : theirs.sections.at(section)) {
      expect_close(read_whole(ours.sections.at(section).at(name)), read_whole(tensor),
                   {.relative = 1e-4, .absolute = 1e-4}, name);
    }
  }
}

// Through other layouts and formats and back, nothing of a run is lost.
TEST_F(MegatronTest, ConvertedRunsGoOnTheSame) {
  const auto convert = [&](const std::filesystem::path& from, const char* to, const Words& more) {
    const Outcome outcome = run("convert-checkpoint", conversion(from, path(to), more));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, testing::HasSubstr("every tensor was read again and is the same"));
    EXPECT_THAT(outcome.out, testing::HasSubstr("logits of 16 tokens differ by 0 at most"));
  };
  convert(golden("megatron/gpt/ckpt/iter_0000010"), "core",
          {"--saver", "core", "--target-tensor-parallel-size", "2",
           "--target-pipeline-parallel-size", "2", "--target-virtual-pipeline-size", "2"});
  convert(path("core"), "native", {"--saver", "native"});
  convert(path("native"), "legacy",
          {"--target-tensor-parallel-size", "4", "--target-pipeline-parallel-size", "1"});
  convert(path("core"), "flat",
          {"--use_distributed_optimizer", "--target_data_parallel_size", "4"});
  EXPECT_TRUE(
      std::filesystem::exists(iteration_in(path("flat"), 10) / "mp_rank_01_001/distrib_optim.pt"));
  const std::vector<LoggedIteration> want = logged_iterations("gpt");
  for (const char* name : {"core", "native", "legacy", "flat"}) {
    const std::vector<IterationText> got =
        iterations_of(train(golden_flags().with("--load", path(name).string())).out);
    ASSERT_EQ(got.size(), 10u) << name;
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].text("learning rate"), want[i + 10].text("learning rate"));
      EXPECT_NEAR(got[i].number("lm loss"), want[i + 10].number("lm loss"), 6e-4) << name;
      EXPECT_NEAR(got[i].number("grad norm"), want[i + 10].number("grad norm"), 1e-3) << name;
    }
  }
}

// Of state in the buffers of ranks there is no use here; the weights can be had.
TEST_F(MegatronTest, SaysThatBuffersOfRanksAreNotRead) {
  const std::filesystem::path copy = path("copy");
  std::filesystem::copy(golden("torch_dist/gpt/iter_0000010"), copy);
  std::string text = read_text(copy / ".metadata");
  const std::string from = "optimizer.state.";
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;) {
    text.replace(at, from.size(), "optimizer.buffr.");
  }
  std::ofstream(copy / ".metadata", std::ios::binary) << text;
  const Flags flags = golden_flags()
                          .with("--num-layers", "2")
                          .with("--hidden-size", "16")
                          .with("--train-iters", "11");
  const Outcome outcome = run("pretrain-gpt", flags.with("--load", copy.string()).words());
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, testing::HasSubstr("has no optimizer state that can be read"));
  EXPECT_THAT(outcome.err, testing::HasSubstr("use --no-load-optim to go on without"));
  const Outcome converted = run("convert-checkpoint", conversion(copy, path("converted")));
  EXPECT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_THAT(converted.out, testing::HasSubstr("the optimizer's state is left out"));
}

// A run that saves in Megatron-LM's format and goes on from that is the run that does not stop.
TEST_F(MegatronTest, ResumesFromItsOwnFilesBitForBit) {
  for (const auto& [format, is_distributed] :
       {std::pair("megatron", false), std::pair("megatron-core", false),
        std::pair("megatron", true)}) {
    Flags flags = golden_flags().with("--bf16").with("--train-iters", "6");
    if (is_distributed) flags = flags.with("--use-distributed-optimizer");
    const auto save = path(std::string(format) + (is_distributed ? "-distributed" : ""));
    const std::vector<IterationText> want = iterations_of(train(flags).out);
    train(flags.with("--save", save.string())
              .with("--save-interval", "3")
              .with("--save-format", format));
    EXPECT_EQ(std::filesystem::exists(iteration_in(save, 3) / "mp_rank_00/distrib_optim.pt"),
              is_distributed);
    const std::vector<IterationText> got =
        iterations_of(train(flags.with("--load", save.string()).with("--ckpt-step", "3")).out);
    ASSERT_EQ(got.size(), 3u);
    for (size_t i = 0; i < got.size(); ++i) {
      for (const char* name : {"lm loss", "grad norm", "learning rate", "consumed samples"}) {
        EXPECT_EQ(got[i].text(name), want[i + 3].text(name)) << name;
      }
    }
  }
}

// transformers' option names, and a model that can be loaded again.
TEST_F(MegatronTest, ConvertsToHuggingFaceAndBack) {
  const Outcome outcome =
      run("convert-checkpoint",
          {"--convert_checkpoint_from_megatron_to_transformers", "--load_path",
           golden("megatron/gpt/ckpt/iter_0000010").string(), "--save_path", path("hf").string(),
           "--max_shard_size", "100KB", "--print-checkpoint-structure"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              testing::HasSubstr("decoder.layers.3.mlp.linear_fc1.weight float32 [128, 32]"));
  EXPECT_TRUE(std::filesystem::exists(path("hf") / "model.safetensors.index.json"));
  const Outcome back =
      run("convert-checkpoint", conversion(path("hf"), path("back"),
                                           {"--target_tensor_model_parallel_size", "2",
                                            "--make_vocab_size_divisible_by", "64"}));
  ASSERT_EQ(back.exit_code, 0) << back.err;
  const StoredSection want =
      open_megatron_checkpoint(golden("megatron/gpt/ckpt/iter_0000010")).sections.at("weights");
  const CheckpointContents got = open_megatron_checkpoint(path("back") / "release");
  EXPECT_FALSE(got.has_optimizer());
  for (const auto& [name, tensor] : want) {
    expect_identical(read_whole(got.sections.at(kWeightsSection).at(name)), read_whole(tensor));
  }
}

// The options of Megatron-LM's tools for other layers and for releases.
TEST_F(MegatronTest, ConvertsToReleasesOfOtherLayers) {
  const Outcome outcome =
      run("convert-checkpoint",
          conversion(golden("megatron/gpt/ckpt/iter_0000010"), path("to"),
                     {"--saver", "core", "--saver-transformer-impl", "transformer_engine",
                      "--for_release", "--loader", "megatron", "--loader-transformer-impl", "local",
                      "--position-embedding-type", "learned_absolute", "--bf16"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Outcome shown =
      run("inspect-checkpoint",
          {"--load", (path("to") / "release/mp_rank_00" / "model_optim_rng.pt").string()});
  EXPECT_THAT(shown.out, testing::HasSubstr(
                             "'decoder.layers.0.mlp.linear_fc1.layer_norm_weight': tensor bfl"));
}

// Rounded weights: logits differ, by the rounding. --no-checking says nothing of either.
TEST_F(MegatronTest, ConvertsToPyTorchFilesOfAnotherType) {
  const Outcome outcome = run(
      "convert-checkpoint",
      conversion(golden("megatron/gpt/ckpt/iter_0000010"), path("bin"),
                 {"--saver", "hf", "--no-safe-serialization", "--target_params_dtype", "bf16"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::exists(path("bin") / "pytorch_model.bin"));
  EXPECT_THAT(outcome.out, testing::HasSubstr("logits of 16 tokens differ by 0.0"));
  const Outcome back =
      run("convert-checkpoint", conversion(path("bin"), path("back"), {"--no-checking"}));
  ASSERT_EQ(back.exit_code, 0) << back.err;
  EXPECT_THAT(back.out, testing::Not(testing::HasSubstr("logits")));
  const CheckpointContents want =
      open_megatron_checkpoint(golden("megatron/gpt/ckpt/iter_0000010"));
  const CheckpointContents got = open_megatron_checkpoint(path("back") / "release");
  for (const auto& [name, tensor] : want.sections.at(kWeightsSection)) {
    expect_identical(read_whole(got.sections.at(kWeightsSection).at(name)),
                     cast(read_whole(tensor), DType::kBFloat16), name);
  }
}

TEST_F(MegatronTest, ConversionsThatCannotBeAreExplained) {
  const auto errors = [&](const Words& more) {
    const Outcome outcome =
        run("convert-checkpoint",
            conversion(golden("megatron/gpt/ckpt/iter_0000010"), path("to"), more));
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(errors({"--target-pipeline-parallel-size", "3"}),
              testing::HasSubstr("4 layers cannot be divided among 3"));
  EXPECT_THAT(errors({"--target-tensor-parallel-size", "3"}),
              testing::HasSubstr("give --true-vocab-size"));
  EXPECT_THAT(errors({"--target-expert-parallel-size", "2", "--checkpoint-type", "meta", "--bf16",
                      "--fp16"}),
              testing::AllOf(testing::HasSubstr("--target-expert-parallel-size 2 must be 1"),
                             testing::HasSubstr("--checkpoint-type meta must be hf"),
                             testing::HasSubstr("give one of them")));
  EXPECT_THAT(errors({"--saver-transformer-impl", "x"}),
              testing::HasSubstr("must be local or transformer_engine"));
  EXPECT_THAT(errors({"--saver", "zarr"}), testing::HasSubstr("--saver zarr is not known"));
  EXPECT_THAT(errors({"--true-vocab-size", "600"}), testing::HasSubstr("fewer than 600 ids"));
  EXPECT_THAT(errors({"--saver", "hf", "--max_shard_size", "10 apples"}),
              testing::HasSubstr("is not a size"));
  EXPECT_FALSE(std::filesystem::exists(path("to") / "latest_checkpointed_iteration.txt"));
}

struct GoldenRun {
  const char* name;
  const char* precision;  // a flag
  bool is_core;
  double tolerance;  // relative
  double validation;
  double test;
};

class MegatronRunTest : public MegatronTest, public testing::WithParamInterface<GoldenRun> {};

// The last lines of each log.
TEST_P(MegatronRunTest, EvaluatesAsMegatronDid) {
  const GoldenRun& log = GetParam();
  MG_NEEDS_SHARED("golden/megatron");
  Flags flags = golden_flags()
                    .with("--load", shared_run(log.name).string())
                    .with("--use-checkpoint-args")
                    .with("--skip-train");
  if (*log.precision != '\0') flags = flags.with(log.precision);
  if (log.is_core) {
    flags = flags.with("--tokenizer-type", "NullTokenizer").with("--vocab-size", "501");
  }
  const auto check = [&](const Flags& evaluation) {
    const std::map<std::string, double> losses = validations_of(train(evaluation).out);
    EXPECT_NEAR(losses.at("iteration 20 on validation set"), log.validation,
                log.tolerance * log.validation);
    EXPECT_NEAR(losses.at("iteration 20 on test set"), log.test, log.tolerance * log.test);
  };
  check(flags);
  // On four ranks.
  Words words = {"--nproc-per-node", "4", "pretrain-gpt"};
  for (const std::string& word : flags.with("--tensor-model-parallel-size", "2")
                                     .with("--pipeline-model-parallel-size", "2")
                                     .words()) {
    words.push_back(word);
  }
  const std::map<std::string, double> losses = validations_of(run("launch", words).out);
  EXPECT_NEAR(losses.at("iteration 20 on validation set"), log.validation,
              log.tolerance * log.validation);
  EXPECT_NEAR(losses.at("iteration 20 on test set"), log.test, log.tolerance * log.test);
  // And from files of two other layouts.
  for (const Words& layout :
       {Words{"--target-tensor-parallel-size", "1", "--target-pipeline-parallel-size", "2"},
        Words{"--target-tensor-parallel-size", "2", "--target-pipeline-parallel-size", "4"}}) {
    const std::filesystem::path to = path("pp" + layout[3]);
    const Outcome outcome = run("convert-checkpoint", conversion(shared_run(log.name), to, layout));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    check(flags.with("--load", to.string()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, MegatronRunTest,
    testing::Values(GoldenRun{"llama", "", false, 1e-4, 5.988967, 5.992552},
                    GoldenRun{"llamatp2", "", false, 1e-4, 6.004418, 5.995871},
                    GoldenRun{"tp2pp2", "", false, 1e-4, 5.940788, 5.932002},
                    GoldenRun{"dist", "--bf16", false, 1e-3, 5.946577, 5.936210},
                    GoldenRun{"fp16", "--fp16", false, 1e-3, 6.157897, 6.149078},
                    GoldenRun{"core", "", true, 1e-4, 5.950725, 5.946228},
                    GoldenRun{"coretp2pp2", "", true, 1e-4, 5.938065, 5.928354}),
    [](const auto& one) { return std::string(one.param.name); });

TEST_F(MegatronTest, InspectShowsWhatThereIs) {
  const std::filesystem::path folder = golden("megatron/gpt/ckpt/iter_0000010");
  const Outcome text = run("inspect-checkpoint", {"--load", folder.string()});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  for (const char* line : {"format megatron, iteration 10, consumed samples 80 (training)",
                           "exp_avg: 52 tensors", "lr_decay_style = cosine", "hidden_size = 32"}) {
    EXPECT_THAT(text.out, testing::HasSubstr(line));
  }
  const Outcome json = run("inspect-checkpoint", {"--load", folder.string(), "--json"});
  const nlohmann::json document = nlohmann::json::parse(json.out);
  EXPECT_EQ(document["iteration"], 10);
  EXPECT_EQ(document["sections"]["weights"]["decoder.final_layernorm.bias"]["shape"][0], 32);
  EXPECT_EQ(document["args"]["tokenizer_type"], "GPT2BPETokenizer");
  const Outcome file =
      run("inspect-checkpoint", {"--load", (folder / "mp_rank_00/model_optim_rng.pt").string()});
  EXPECT_THAT(file.out, testing::HasSubstr("'weight': tensor float32 [512, 32]"));
  EXPECT_THAT(file.out, testing::HasSubstr("object megatron.core.enums.ModelType"));
}

TEST_F(MegatronTest, LoadFormatMustAgree) {
  const Outcome outcome =
      run("pretrain-gpt", golden_flags()
                              .with("--load", golden("megatron/gpt/ckpt/iter_0000010").string())
                              .with("--load-format", "native")
                              .words());
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, testing::HasSubstr("is of the format megatron; use it, or auto"));
}

TEST_F(MegatronTest, GeneratesWithoutFlagsOfTheModel) {
  const std::filesystem::path data = golden("megatron/data");
  const Outcome outcome =
      run("generate", {"--load", golden("megatron/gpt/ckpt/iter_0000010").string(), "--prompt",
                       "the", "--vocab-file", (data / "vocab.json").string(), "--merge-file",
                       (data / "merges.txt").string(), "--max-new-tokens", "8", "--device", "cpu"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_FALSE(outcome.out.empty());
}

}  // namespace
}  // namespace megatron::program
