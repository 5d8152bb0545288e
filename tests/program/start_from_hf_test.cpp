#include "megatron/core/file.h"
#include "megatron/data/indexed_dataset.h"
#include "tests/program/inference_test.h"

// pretrain-gpt --load of a Hugging Face directory.
namespace megatron::program {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

class StartFromHfTest : public InferenceTest {
 protected:
  void SetUp() override {
    IndexedDatasetBuilder builder(path("data"), {.dtype = TokenDtype::kUint16});
    for (int32_t i = 0; i < 60; ++i) {
      Ids document;
      for (int32_t k = 0; k < 50; ++k) document.push_back((i * 31 + k * k) % 130);
      document.push_back(130);
      builder.add_document(document, Ids{static_cast<int32_t>(document.size())});
    }
    builder.finalize();
  }
  // Everything but the architecture; 131 ids as the models have.
  Flags data_flags() const {
    Flags flags = golden_flags()
                      .with("--data-path", path("data").string())
                      .with("--tokenizer-type", "NullTokenizer")
                      .with("--vocab-size", "130")
                      .with("--make-vocab-size-divisible-by", "131")
                      .with("--max-position-embeddings", "64")
                      .without("--vocab-file")
                      .without("--merge-file");
    for (const char* flag : {"--num-layers", "--hidden-size", "--num-attention-heads"}) {
      flags = flags.without(flag);
    }
    return flags;
  }
  static Flags gpt2_flags(const Flags& flags) {
    return flags.with("--num-layers", "3")
        .with("--hidden-size", "48")
        .with("--num-attention-heads", "4")
        .with("--openai-gelu");
  }
  static std::vector<std::string> refused(const Flags& flags) {
    const Outcome outcome = run("pretrain-gpt", flags.words());
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    return errors_of(outcome);
  }
};

// Training with a learning rate of 0 and saving makes a native checkpoint of the same model.
TEST_F(StartFromHfTest, KeepsTheModel) {
  const std::vector<Ids> rows = {{1, 2, 3, 4, 5, 6}, {130, 77, 5, 5, 60}};
  for (const char* name : {"gpt2", "llama-gqa", "bloom", "gpt-neox"}) {
    const std::filesystem::path source = golden("hf") / name;
    train(data_flags()
              .with("--load", source.string())
              .with("--use-checkpoint-args")
              .with("--lr", "0")
              .with("--min-lr", "0")
              .with("--lr-warmup-iters", "0")
              .with("--train-iters", "1")
              .with("--save", path(name).string())
              .with("--save-interval", "1"));
    EXPECT_EQ(score(path(name), rows), score(source, rows)) << name;
  }
}

// A checkpoint knows the tokens that end a text of its model, and the one of the run's documents.
TEST_F(StartFromHfTest, KeepsTheTokensThatEndAText) {
  std::filesystem::copy(golden("hf/llama-gqa"), path("model"));
  auto config = nlohmann::json::parse(read_text(path("model/config.json")));
  config["eos_token_id"] = {7, 9};
  write_text_atomically(path("model/config.json"), config.dump());
  const Flags flags = data_flags()
                          .with("--use-checkpoint-args")
                          .with("--save", path("save").string())
                          .with("--save-interval", "1");
  train(flags.with("--load", path("model").string()).with("--train-iters", "1"));
  train(flags.with("--load", path("save").string()).with("--train-iters", "2"));
  const Outcome outcome = run(
      "convert-checkpoint",
      {"--load-dir", path("save").string(), "--save-dir", path("hf").string(), "--saver", "hf"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  config = nlohmann::json::parse(read_text(path("hf/config.json")));
  EXPECT_EQ(config.at("eos_token_id"), nlohmann::json({7, 9, 130}));
}

TEST_F(StartFromHfTest, MatchingFlagsTrain) {
  const Flags flags = data_flags().with("--load", golden("hf/gpt2").string());
  const Outcome by_flags = train(gpt2_flags(flags));
  const Outcome by_config = train(flags.with("--use-checkpoint-args"));
  const std::vector<IterationText> lines = iterations_of(by_flags.out);
  ASSERT_EQ(lines.size(), 20u);
  EXPECT_EQ(lines.front().text("consumed samples"), "8");
  EXPECT_LT(lines.back().number("lm loss"), lines.front().number("lm loss"));
  EXPECT_EQ(lines.back().line, iterations_of(by_config.out).back().line);
}

TEST_F(StartFromHfTest, WrongFlagsAreAllNamed) {
  const Flags flags = data_flags().with("--load", golden("hf/gpt2").string());
  const std::vector<std::string> errors = refused(flags.with("--num-layers", "2")
                                                      .with("--hidden-size", "64")
                                                      .with("--num-attention-heads", "8")
                                                      .with("--position-embedding-type", "rope")
                                                      .with("--normalization", "RMSNorm")
                                                      .with("--swiglu"));
  for (const char* expected :
       {"--num-layers is 3", "--hidden-size is 48", "--num-attention-heads is 4",
        "--position-embedding-type is learned_absolute in the model's config.json, but rope now",
        "--normalization is LayerNorm", "--swiglu is False"}) {
    EXPECT_THAT(errors, Contains(HasSubstr(expected)));
  }
  // Layers in parallel have the same tensors: nothing else would notice.
  EXPECT_THAT(refused(gpt2_flags(flags).with("--parallel-residual")),
              ElementsAre(HasSubstr("--parallel-residual is False")));
  EXPECT_THAT(refused(flags.with("--use-checkpoint-args").with("--num-layers", "2")),
              ElementsAre(HasSubstr("--num-layers is 3")));
}

TEST_F(StartFromHfTest, TokenizerBeyondTheModelIsRefused) {
  const Flags flags = data_flags()
                          .with("--load", golden("hf/gpt2").string())
                          .with("--use-checkpoint-args")
                          .with("--vocab-size", "200");
  EXPECT_THAT(refused(flags), ElementsAre("the tokenizer has 201 ids, the model 131 rows; use the "
                                          "tokenizer the model was trained with"));
}

}  // namespace
}  // namespace megatron::program
