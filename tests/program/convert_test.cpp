#include <csignal>
#include <fstream>
#include <set>

#include "megatron/core/file.h"
#include "megatron/formats/sharded.h"
#include "megatron/formats/torch_file.h"
#include "megatron/formats/torch_writer.h"
#include "megatron/formats/zip.h"
#include "megatron/interchange/deepspeed.h"
#include "megatron/interchange/megatron/files.h"
#include "tests/program/inference_test.h"
#include "tests/support/shared_data.h"
#include "tests/support/tensors.h"

// Files that convert-checkpoint protects and copies, and its messages.
namespace megatron::program {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class ConvertTest : public InferenceTest {
 protected:
  static fs::path source() { return golden("megatron/gpt/ckpt/iter_0000010"); }
  static Outcome convert(const fs::path& from, const fs::path& to, const Words& more = {}) {
    Words words = {"--load-dir", from.string(), "--save-dir", to.string()};
    words.insert(words.end(), more.begin(), more.end());
    return run("convert-checkpoint", words);
  }
  static void expect_converted(const Outcome& outcome) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  }
  static std::set<std::string> names_in(const fs::path& directory) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
};

TEST_F(ConvertTest, TheSourceIsNeverWrittenTo) {
  expect_converted(convert(source(), path("run"), {"--saver", "native"}));
  const fs::path iteration = iteration_in(path("run"), 10);
  fs::create_directory_symlink(path("run"), path("link"));
  fs::create_directories(path("other"));
  fs::create_directory_symlink(iteration, iteration_in(path("other"), 10));
  const std::string before = read_text(iteration / "manifest.json");
  for (const auto& [from, to] : {std::pair{path("run"), path("run")},
                                 {path("run"), path("link")},
                                 {path("link"), path("run")},
                                 {iteration, path("run")},
                                 {path("run"), iteration / "converted"},
                                 {path("run"), path("other")}}) {
    const Outcome outcome = convert(from, to, {"--saver", "native", "--no-optimizer"});
    EXPECT_EQ(outcome.exit_code, 2) << from << " to " << to;
    EXPECT_THAT(errors_of(outcome), ElementsAre(HasSubstr("would be overwritten; choose a")));
  }
  EXPECT_EQ(read_text(iteration / "manifest.json"), before);
  EXPECT_EQ(convert(golden("hf/gpt2"), path("hf"), {"--saver", "hf"}).exit_code, 0);
  EXPECT_EQ(convert(path("hf"), path("hf"), {"--saver", "hf"}).exit_code, 2);
}

// Writes the weights of a rank's file again, without the arguments of the run.
void write_without_settings(const fs::path& to, const fs::path& from, double version) {
  const TorchFile file(from / "mp_rank_00/model_optim_rng.pt");
  fs::create_directories(to / "mp_rank_00");
  TorchWriter writer(to / "mp_rank_00/model_optim_rng.pt");
  PickleWriter& pickle = writer.pickle();
  std::vector<const PyTensor*> tensors;
  pickle.begin_dict();
  pickle.text("checkpoint_version"), pickle.number(version);
  pickle.text("model"), pickle.begin_dict();
  for (const auto& [path, value] : flattened(*file.root().find("model"))) {
    const PyTensor* tensor = value.tensor();
    if (tensor == nullptr) continue;
    pickle.text(path), writer.tensor(tensor->dtype, tensor->shape);
    tensors.push_back(tensor);
  }
  pickle.end_dict();
  pickle.end_dict();
  for (const PyTensor* tensor : tensors) writer.write(file.elements(*tensor).view);
  writer.commit();
}

TEST_F(ConvertTest, FlagsStandInForSettingsThatACheckpointLacks) {
  write_without_settings(path("plain"), source(), 3.0);
  write_without_settings(path("old"), source(), 0.0);
  const std::string ids = json_lines({{1, 2, 3}});
  const auto scored = [&](const fs::path& model, const Words& more) {
    Words words = {"--load", model.string(), "--device", "cpu"};
    words.insert(words.end(), more.begin(), more.end());
    return run("score", words, {.input = ids});
  };
  for (const char* folder : {"plain", "old"}) {
    const Outcome refused = scored(path(folder), {});
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(errors_of(refused), Contains(HasSubstr("--num-attention-heads"))) << folder;
  }
  const Words heads = {"--num-attention-heads", "4"};
  const Outcome known = scored(path("plain"), heads);
  EXPECT_EQ(known.exit_code, 0) << known.err;
  EXPECT_EQ(known.out, scored(source(), {}).out);
  EXPECT_EQ(run("generate",
                {"--load", path("plain").string(), "--num-attention-heads", "4", "--device", "cpu",
                 "--prompt-file", "-", "--max-new-tokens", "2"},
                {.input = ids})
                .exit_code,
            0);
  expect_converted(
      convert(path("plain"), path("hf"), {"--saver", "hf", "--num-attention-heads", "4"}));
  train(golden_flags()
            .with("--load", path("plain").string())
            .with("--finetune")
            .with("--train-iters", "1")
            .with("--eval-iters", "0"));
}

// An archive of a release, with a folder around it, as it is downloaded.
void write_archive(const fs::path& to, const fs::path& rank_file) {
  ZipWriter writer(to);
  writer.add("gpt/latest_checkpointed_iteration.txt", "release");
  writer.add("gpt/release/mp_rank_00/model_optim_rng.pt", read_text(rank_file));
  writer.commit();
}

TEST_F(ConvertTest, FilesOfRanksAndArchivesAreRead) {
  const fs::path rank = source() / "mp_rank_00";
  fs::copy(rank / "model_optim_rng.pt", path("weights.pt"));
  write_archive(path("release.zip"), rank / "model_optim_rng.pt");
  expect_converted(convert(source(), path("want"), {"--saver", "hf"}));
  for (const fs::path& from :
       {rank, rank / "model_optim_rng.pt", path("weights.pt"), path("release.zip")}) {
    expect_converted(convert(from, path("got"), {"--saver", "hf"}));
    EXPECT_EQ(read_text(path("got/model.safetensors")), read_text(path("want/model.safetensors")))
        << from;
  }
}

// Iterations without the file that names the latest.
TEST_F(ConvertTest, AnArchiveOfOneIterationNeedsNoTracker) {
  const std::string rank = read_text(source() / "mp_rank_00/model_optim_rng.pt");
  const auto write = [&](const char* name, const std::vector<int>& iterations) {
    ZipWriter writer(path(name));
    for (const int iteration : iterations) {
      writer.add("gpt/iter_000000" + std::to_string(iteration) + "/mp_rank_00/model_optim_rng.pt",
                 rank);
    }
    writer.commit();
  };
  write("one.zip", {3});
  expect_converted(convert(path("one.zip"), path("got"), {"--saver", "hf"}));
  expect_converted(convert(path("one.zip"), path("got"), {"--saver", "hf", "--ckpt-step", "3"}));
  write("two.zip", {3, 5});
  const Outcome refused = convert(path("two.zip"), path("got"), {"--saver", "hf"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(errors_of(refused),
              ElementsAre(AllOf(HasSubstr(path("two.zip/gpt").string() + ": has no latest"),
                                HasSubstr("choose one with --ckpt-step 5"))));
  expect_converted(convert(path("two.zip"), path("got"), {"--saver", "hf", "--ckpt-step", "3"}));
}

// The line of transformers' documents, for a release that stores no settings.
TEST_F(ConvertTest, TheScriptOfTransformersWritesBesideItsInput) {
  const char* script = "src/transformers/models/megatron_gpt2/convert_megatron_gpt2_checkpoint.py";
  write_without_settings(path("old"), source(), 0.0);
  fs::create_directories(path("download"));
  const std::string archive = path("download/release.zip").string();
  write_archive(archive, path("old/mp_rank_00/model_optim_rng.pt"));
  const Outcome refused = run(script, {archive});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(errors_of(refused), ElementsAre(HasSubstr("give --num-attention-heads")));

  std::ofstream(path("config.json")) << R"({"n_head": 4})";
  const Outcome converted = run(script, {"--config_file", path("config.json").string(),
                                         "--print-checkpoint-structure", archive});
  expect_converted(converted);
  EXPECT_THAT(converted.out, HasSubstr("embedding.word_embeddings.weight"));
  EXPECT_THAT(names_in(path("download")),
              ElementsAre("checksums.crc32c", "config.json", "pytorch_model.bin", "release.zip"));
  expect_converted(
      convert(path("old"), path("hf"), {"--saver", "hf", "--num-attention-heads", "4"}));
  EXPECT_EQ(score(path("download"), {{1, 2, 3}}), score(path("hf"), {{1, 2, 3}}));
  EXPECT_THAT(errors_of(run(script, {})), ElementsAre(HasSubstr("the path of the checkpoint")));

  const Outcome with_tokenizer =
      run(script, {"--config_file", path("config.json").string(), "--tokenizer_name",
                   golden("megatron/data").string(), archive});
  expect_converted(with_tokenizer);
  EXPECT_THAT(names_in(path("download")),
              ElementsAre("checksums.crc32c", "config.json", "merges.txt", "pytorch_model.bin",
                          "release.zip", "vocab.json"));
}

// A pipeline in fp16: the weights of its layers are rounded, the main parameters are not.
TEST_F(ConvertTest, ZeroToFp32WritesTheMainParameters) {
  const std::string run_of = golden("deepspeed/checkpoints").string();
  const Outcome converted =
      run("ckpt/zero_to_fp32.py", {run_of, path("model").string(), "-t", "pipeline",
                                   "--safe_serialization", "--num-attention-heads", "2"});
  expect_converted(converted);
  EXPECT_THAT(names_in(path("model")),
              ElementsAre("checksums.crc32c", "config.json", "model.safetensors"));
  const CheckpointContents from = open_deepspeed_checkpoint(fs::path(run_of) / "pipeline");
  const ShardedWeights file(path("model"));
  const FileElements norm = whole_elements(*file.find("transformer.ln_f.weight"));
  const char* const ours = "decoder.final_layernorm.weight";
  expect_identical(copy_of(norm.view), read_whole(from.sections.at(kMainParamSection).at(ours)));
  EXPECT_EQ(from.sections.at(kWeightsSection).at(ours).dtype, DType::kFloat16);

  EXPECT_THAT(errors_of(run("zero_to_fp32.py", {run_of})), ElementsAre(HasSubstr("two paths")));
  EXPECT_THAT(errors_of(run("zero_to_fp32.py", {run_of, "pytorch_model.bin"})),
              ElementsAre(HasSubstr("pytorch_model.bin must be a directory")));
}

TEST_F(ConvertTest, NothingOfAnEarlierConversionStays) {
  const Words hf = {"--saver", "hf", "--max_shard_size"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const fs::path model = golden("hf/gpt2");
  expect_converted(convert(model, path("hf"), with(hf, {"20KB"})));
  EXPECT_THAT(names_in(path("hf")), Contains("model.safetensors.index.json"));
  fs::create_directories(path("hf/.converting/rest"));  // of a conversion that was killed
  expect_converted(convert(model, path("hf"), with(hf, {"10GB"})));
  EXPECT_THAT(names_in(path("hf")),
              ElementsAre("checksums.crc32c", "config.json", "model.safetensors"));
  expect_converted(convert(model, path("hf"), with(hf, {"10GB", "--no-safe-serialization"})));
  EXPECT_THAT(names_in(path("hf")),
              ElementsAre("checksums.crc32c", "config.json", "pytorch_model.bin"));
  EXPECT_EQ(score(path("hf"), {{1, 2, 3}}), score(model, {{1, 2, 3}}));
}

TEST_F(ConvertTest, HuggingFaceModelsComeWithTheirTokenizer) {
  expect_converted(convert(trained(), path("hf"), {"--saver", "hf"}));
  EXPECT_EQ(read_text(path("hf/vocab.json")), read_text(golden("megatron/data/vocab.json")));
  EXPECT_EQ(read_text(path("hf/merges.txt")), read_text(golden("megatron/data/merges.txt")));
  const auto ids = nlohmann::json::parse(read_text(path("hf/vocab.json")));
  const auto config = nlohmann::json::parse(read_text(path("hf/config.json")));
  EXPECT_EQ(config.at("eos_token_id"), ids.at("<|endoftext|>"));
  EXPECT_EQ(config.at("bos_token_id"), ids.at("<|endoftext|>"));

  // Those of a Hugging Face model survive other formats.
  fs::create_directories(path("tokenizer"));
  std::ofstream(path("tokenizer/tokenizer.json")) << "{}";
  std::ofstream(path("tokenizer/chat_template.jinja")) << "{{ one }}";
  fs::create_directories(path("tokenizer/additional_chat_templates"));
  std::ofstream(path("tokenizer/additional_chat_templates/rag.jinja")) << "{{ two }}";
  expect_converted(convert(golden("hf/gpt2"), path("native"), {"--saver", "native"}));
  expect_converted(convert(path("native"), path("megatron")));
  for (int round = 0; round < 2; ++round) {
    expect_converted(convert(path("megatron"), path("back"),
                             {"--saver", "hf", "--tokenizer_name", path("tokenizer").string()}));
  }
  const auto back = nlohmann::json::parse(read_text(path("back/config.json")));
  EXPECT_EQ(back.at("eos_token_id"), 50256);
  EXPECT_TRUE(fs::exists(path("back/tokenizer.json")));
  EXPECT_EQ(read_text(path("back/chat_template.jinja")), "{{ one }}");
  EXPECT_EQ(read_text(path("back/additional_chat_templates/rag.jinja")), "{{ two }}");

  const Outcome without =
      convert(path("megatron"), path("without"),
              {"--saver", "hf", "--tokenizer_name", golden("hf/gpt2").string()});
  expect_converted(without);
  EXPECT_THAT(without.err, HasSubstr("has no tokenizer (tokenizer.json"));
  EXPECT_THAT(
      convert(path("megatron"), path("none"), {"--saver", "hf", "--tokenizer_name", "no/x"}).err,
      HasSubstr("--tokenizer_name no/x: there is no such folder, and no model"));
}

// A checkpoint has a copy of its tokenizer, which outlives the files that the run read.
TEST_F(ConvertTest, ACheckpointGivesItsTokenizerAndTemplates) {
  fs::create_directories(path("words"));
  for (const char* name : {"vocab.json", "merges.txt"}) {
    fs::copy(golden("megatron/data") / name, path("words") / name);
  }
  std::ofstream(path("words/chat_template.jinja")) << "<|im_start|>";
  train(golden_flags()
            .without("--vocab-file")
            .without("--merge-file")
            .with("--tokenizer-type", "HuggingFaceTokenizer")
            .with("--tokenizer-model", path("words").string())
            .with("--eval-iters", "0")
            .with("--train-iters", "1")
            .with("--save", path("save").string())
            .with("--save-interval", "1"));
  fs::remove_all(path("words"));
  const Outcome outcome = convert(path("save"), path("hf"), {"--saver", "hf"});
  expect_converted(outcome);
  EXPECT_THAT(outcome.err, Not(HasSubstr("eos_token_id")));
  EXPECT_EQ(nlohmann::json::parse(read_text(path("hf/config.json"))).at("eos_token_id"), 501);
  EXPECT_EQ(read_text(path("hf/vocab.json")), read_text(golden("megatron/data/vocab.json")));
  EXPECT_EQ(read_text(path("hf/chat_template.jinja")), "<|im_start|>");

  for (const char* model : {"save", "hf"}) {
    Running server("serve", {"--load", path(model).string(), "--port", "0", "--device", "cpu"});
    EXPECT_TRUE(server.wait_for("(chat template chat_template.jinja)"));
    server.send(SIGTERM);
    EXPECT_EQ(server.finish().exit_code, 0);
  }
}

// A model without them does not stop in transformers: whoever converts it is told.
TEST_F(ConvertTest, AnUnknownEndOfTextIsSaid) {
  const Outcome without = convert(source(), path("without"), {"--saver", "hf"});
  expect_converted(without);
  EXPECT_THAT(without.err, HasSubstr("config.json gets no eos_token_id, and transformers' "
                                     "generate() will not stop by itself: the source names no "
                                     "token that ends a text and no tokenizer; give "
                                     "--tokenizer_name"));
  const Outcome by_default =
      convert(source(), path("default"), {"--saver", "hf", "--default-eos-token-id", "7"});
  expect_converted(by_default);
  EXPECT_THAT(by_default.err, HasSubstr("config.json gets the eos_token_id 7 by default: the "
                                        "source names no token that ends a text"));
  const auto config = nlohmann::json::parse(read_text(path("default/config.json")));
  EXPECT_EQ(config.at("eos_token_id"), 7);
  EXPECT_EQ(config.at("bos_token_id"), 7);
  const Outcome named =
      convert(source(), path("named"),
              {"--saver", "hf", "--tokenizer_name", golden("megatron/data").string()});
  expect_converted(named);
  EXPECT_THAT(named.err, Not(HasSubstr("eos_token_id")));
  EXPECT_EQ(nlohmann::json::parse(read_text(path("named/config.json"))).at("eos_token_id"), 501);
}

TEST_F(ConvertTest, FlagsOfAnAbsentOptimizerAreWarnedOf) {
  const Outcome outcome =
      convert(golden("hf/gpt2"), path("to"), {"--use_distributed_optimizer", "--target_dp", "2"});
  expect_converted(outcome);
  EXPECT_THAT(outcome.err, HasSubstr("--use_distributed_optimizer has no effect: the source has"));
  EXPECT_THAT(outcome.err, HasSubstr("--target_data_parallel_size 2 has no effect: the source"));
}

// As with Megatron-LM: only weights are taken, and the run begins.
TEST_F(ConvertTest, ReleasesBeginAtIterationZero) {
  expect_converted(convert(source(), path("release"), {"--for_release"}));
  ASSERT_TRUE(fs::exists(path("release/release/mp_rank_00/model_optim_rng.pt")));
  const Outcome outcome = train(golden_flags().with("--load", path("release").string()));
  const std::vector<IterationText> lines = iterations_of(outcome.out);
  ASSERT_EQ(lines.size(), 20u);
  EXPECT_LT(lines.front().number("lm loss"), 6.5);              // the weights are trained
  EXPECT_EQ(lines.front().text("learning rate"), "2.500E-04");  // the schedule begins
  const Outcome shown = run("inspect-checkpoint", {"--load", path("release").string()});
  EXPECT_THAT(shown.out, HasSubstr("iteration 0"));
  EXPECT_THAT(shown.out, Not(HasSubstr("exp_avg")));
}

// The line of Megatron-LM's documents, for a checkpoint of two tensor-parallel ranks.
TEST_F(ConvertTest, PartitionsAreMergedByTheOlderScript) {
  const std::filesystem::path model = trained();
  ASSERT_EQ(
      run("convert-checkpoint", {"--load-dir", model.string(), "--save-dir", path("parts").string(),
                                 "--target-tensor-parallel-size", "2"})
          .exit_code,
      0);
  const Words line = {"--model-type",
                      "GPT",
                      "--tensor-model-parallel-size",
                      "2",
                      "--pipeline-model-parallel-size",
                      "1",
                      "--target-pipeline-model-parallel-size",
                      "2",
                      "--num-layers",
                      "2",
                      "--hidden-size",
                      "64",
                      "--tokenizer-type",
                      "GPT2BPETokenizer",
                      "--load",
                      path("parts").string(),
                      "--save",
                      path("merged").string()};
  const Outcome outcome = run("tools/merge_mp_partitions.py", line);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("every tensor was read again and is the same"));
  const std::filesystem::path merged = iteration_in(path("merged"), 20);
  EXPECT_TRUE(std::filesystem::exists(merged / "mp_rank_00_001"));
  EXPECT_FALSE(std::filesystem::exists(merged / "mp_rank_01_000"));
  EXPECT_THAT(run("merge-mp-partitions", {"--load", path("parts").string()}).err,
              HasSubstr("--save is missing"));
}

TEST_F(ConvertTest, OtherModelsAreNamed) {
  MG_NEEDS_SHARED("golden/megatron/t5/ckpt");
  for (const auto& [folder, name] : {std::pair{"bert", "BERT"}, {"t5", "T5"}}) {
    const Outcome outcome =
        run("pretrain-gpt",
            golden_flags()
                .with("--load", (shared_data("golden/megatron") / folder / "ckpt").string())
                .words());
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(errors_of(outcome),
                ElementsAre(HasSubstr(std::string(": is a ") + name +
                                      ", and pretrain-gpt trains a GPT; use pretrain-")));
    EXPECT_LT(errors_of(outcome)[0].size(), 300u);
  }
}

}  // namespace
}  // namespace megatron::program
