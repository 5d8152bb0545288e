#include <fstream>

#include "megatron/checkpoint/manifest.h"
#include "megatron/core/file.h"
#include "tests/program/program_test.h"

namespace megatron::program {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

class BadCheckpointTest : public ProgramTest {
 protected:
  // Checkpoints of iterations 5 and 10 in path("save").
  void SetUp() override {
    train(golden_flags()
              .with("--eval-iters", "0")
              .with("--save", save().string())
              .with("--save-interval", "5")
              .with("--exit-interval", "10"));
  }
  fs::path save() const { return path("save"); }
  fs::path weights() const {
    return iteration_in(save(), 10) / "weights-00000-of-00001.safetensors";
  }
  Flags loading() const {
    return golden_flags().with("--eval-iters", "0").with("--load", save().string());
  }
  static std::vector<std::string> refused(const Flags& flags) {
    const Outcome outcome = run("pretrain-gpt", flags.words());
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_EQ(iterations_of(outcome.out).size(), 0u);
    EXPECT_LT(outcome.seconds, 5);
    return errors_of(outcome);
  }
  // Going back to iteration 5 works whatever happened to iteration 10.
  void expect_earlier_loads() const {
    const Outcome outcome = train(loading().with("--ckpt-step", "5").with("--exit-interval", "1"));
    EXPECT_EQ(iterations_of(outcome.out).size(), 1u);
  }
};

TEST_F(BadCheckpointTest, AnotherShape) {
  const std::vector<std::string> errors =
      refused(loading().with("--num-layers", "2").with("--hidden-size", "64"));
  EXPECT_THAT(errors, AllOf(testing::SizeIs(2), Contains(HasSubstr("is 4 in the checkpoint")),
                            Contains(HasSubstr("is 32 in the checkpoint"))));
  EXPECT_THAT(refused(loading().with("--ffn-hidden-size", "64")),
              Contains(HasSubstr("decoder.layers.0.mlp.linear_fc1.weight is [128, 32] in the "
                                 "checkpoint, [64, 32] in the model")));
  EXPECT_THAT(
      refused(loading().with("--finetune").with("--swiglu").with("--ffn-hidden-size", "64")),
      Contains(HasSubstr("decoder.layers.3.mlp.linear_fc2.weight")));
}

TEST_F(BadCheckpointTest, AnotherVocabulary) {
  const Flags other = loading()
                          .with("--tokenizer-type", "NullTokenizer")
                          .without("--vocab-file")
                          .without("--merge-file")
                          .with("--vocab-size", "600");
  EXPECT_THAT(refused(other), Contains(HasSubstr("padded_vocab_size is 512 in the checkpoint, but "
                                                 "640 now")));
  EXPECT_THAT(refused(other.with("--finetune")), Contains(HasSubstr("vocabulary")));
  EXPECT_THAT(refused(other.with("--finetune").with("--use-checkpoint-args")),
              ElementsAre(HasSubstr("the tokenizer has 601 ids, the model 512 rows")));
}

TEST_F(BadCheckpointTest, FlippedBytes) {
  std::string bytes = read_text(weights());
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(weights(), std::ios::binary) << bytes;
  EXPECT_THAT(refused(loading()),
              ElementsAre(AllOf(HasSubstr(weights().string()), HasSubstr("damaged"),
                                HasSubstr("--ckpt-step"))));
  expect_earlier_loads();
}

// Memory that changed between the hash and the file: every checksum fits.
TEST_F(BadCheckpointTest, HashesOfOtherTensors) {
  const fs::path directory = iteration_in(save(), 10);
  const Manifest saved = read_manifest(directory);
  const std::string norm = "decoder.final_layernorm.weight";
  const std::string matrix = "decoder.layers.1.mlp.linear_fc1.weight";
  for (const auto& [section, name] : {std::pair<std::string, std::string>{"weights", norm},
                                      {"weights", matrix},
                                      {"exp_avg_sq", matrix}}) {
    Manifest changed = saved;
    Manifest::Tensor& tensor = changed.sections.at(section).at(name);
    ASSERT_TRUE(tensor.hash);
    *tensor.hash ^= 1;
    write_manifest(directory, changed);
    const auto names_it =
        AllOf(HasSubstr("1 loaded tensors do not have the hashes of the saved ones"),
              HasSubstr(name + "; memory was changed"), HasSubstr("--ckpt-step"));
    EXPECT_THAT(refused(loading()), ElementsAre(names_it));
    Words on_ranks = {"--nproc-per-node", "2", "pretrain-gpt"};
    for (const std::string& word : loading().with("--tensor-model-parallel-size", "2").words()) {
      on_ranks.push_back(word);
    }
    EXPECT_THAT(run("launch", on_ranks).err, names_it);
    for (const std::string ranks : {"1", "2"}) {
      const Outcome generated = run(
          "launch", {"--nproc-per-node", ranks, "generate", "--load", save().string(),
                     "--tensor-model-parallel-size", ranks, "--prompt", "a", "--device", "cpu"});
      if (section == "weights") {
        EXPECT_THAT(generated.err, names_it) << ranks;
      }
    }
  }
  write_manifest(directory, saved);
  train(loading().with("--exit-interval", "1"));
}

TEST_F(BadCheckpointTest, TruncatedOrMissingShard) {
  fs::resize_file(weights(), fs::file_size(weights()) - 1);
  EXPECT_THAT(refused(loading()), ElementsAre(AllOf(HasSubstr(weights().string()),
                                                    HasSubstr("bytes"), HasSubstr("damaged"))));
  fs::remove(weights());
  EXPECT_THAT(refused(loading()),
              ElementsAre(AllOf(HasSubstr(weights().string()), HasSubstr("--ckpt-step"))));
  expect_earlier_loads();
}

TEST_F(BadCheckpointTest, ManifestMissingOrSpoilt) {
  const fs::path manifest = iteration_in(save(), 10) / "manifest.json";
  std::ofstream(manifest, std::ios::app) << " ";
  EXPECT_THAT(refused(loading()), ElementsAre(HasSubstr(manifest.string())));
  fs::remove(manifest);
  EXPECT_THAT(refused(loading()),
              ElementsAre(AllOf(HasSubstr("not a complete checkpoint"), HasSubstr("[5]"))));
  expect_earlier_loads();
}

TEST_F(BadCheckpointTest, SpoiltTracker) {
  std::ofstream(save() / "latest_checkpointed_iteration.txt") << "ten";
  EXPECT_THAT(refused(loading()), ElementsAre(HasSubstr("\"ten\"")));
  std::ofstream(save() / "latest_checkpointed_iteration.txt") << "7";
  EXPECT_THAT(refused(loading()), ElementsAre(HasSubstr("[5, 10]")));
  fs::remove(save() / "latest_checkpointed_iteration.txt");
  const Outcome outcome = train(loading().with("--exit-interval", "1"));
  EXPECT_THAT(outcome.err, HasSubstr("complete checkpoint is taken, that of iteration 10"));
  expect_earlier_loads();
}

TEST_F(BadCheckpointTest, AnotherOptimizer) {
  EXPECT_THAT(refused(loading().with("--optimizer", "sgd")),
              ElementsAre(AllOf(HasSubstr("momentum_buffer"), HasSubstr("--no-load-optim"))));
  train(loading().with("--optimizer", "sgd").with("--no-load-optim"));
}

TEST_F(BadCheckpointTest, NothingThere) {
  const Outcome outcome =
      run("score", {"--load", path("none").string(), "--input", path("none").string()});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(errors_of(outcome),
              ElementsAre(AllOf(HasSubstr(path("none").string()), HasSubstr("no checkpoint"))));
}

}  // namespace
}  // namespace megatron::program
