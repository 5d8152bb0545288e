#include <algorithm>
#include <filesystem>

#include "megatron/data/indexed_dataset.h"
#include "megatron/formats/safetensors.h"
#include "tests/program/inference_test.h"
#include "tests/support/tensors.h"

// A Hugging Face model whose logits are all near -35, as GPT-2's are: rows of zeros that pad its
// vocabulary would have the logit 0, and with it all of the probability.
namespace megatron::program {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int64_t kVocabulary = 131;

class HfPaddingTest : public InferenceTest {
 protected:
  void SetUp() override {
    write_model();
    IndexedDatasetBuilder builder(path("data"), {.dtype = TokenDtype::kUint16});
    for (int32_t i = 0; i < 60; ++i) {
      Ids document;
      for (int32_t k = 0; k < 50; ++k) document.push_back((i * 31 + k * k) % 130);
      document.push_back(130);
      builder.add_document(document, Ids{static_cast<int32_t>(document.size())});
    }
    builder.finalize();
  }

  // The golden GPT-2 with one channel that adds -35 to every logit: the final norm makes it the
  // constant -35, and every row of the tied embedding has 1 there.
  void write_model() const {
    std::filesystem::create_directories(model());
    std::filesystem::copy_file(golden("hf/gpt2/config.json"), model() / "config.json");
    const SafetensorsFile file(golden("hf/gpt2/model.safetensors"));
    std::vector<TensorSpec> specs;
    for (const SafetensorsFile::Entry& tensor : file.tensors()) specs.push_back(tensor.spec);
    SafetensorsWriter writer(model() / "model.safetensors", specs);
    for (const TensorSpec& spec : writer.specs()) {
      Tensor values = copy_of(file.at(spec.name));
      const auto set_first_channel = [&](float value) {
        for (int64_t i = 0; i < values.numel(); i += values.size(-1)) {
          values.span<float>()[static_cast<size_t>(i)] = value;
        }
      };
      if (spec.name == "transformer.wte.weight") set_first_channel(1);
      if (spec.name == "transformer.ln_f.weight") set_first_channel(0);
      if (spec.name == "transformer.ln_f.bias") set_first_channel(-35);
      writer.write(std::as_const(values).view());
    }
    writer.commit();
  }
  std::filesystem::path model() const { return path("hf"); }

  // Computes a loss and saves the weights as they are.
  Flags run_flags(const std::filesystem::path& load, const char* unit, const char* save) const {
    return golden_flags()
        .with("--load", load.string())
        .with("--use-checkpoint-args")
        .with("--data-path", path("data").string())
        .with("--tokenizer-type", "NullTokenizer")
        .with("--vocab-size", "130")
        .with("--make-vocab-size-divisible-by", unit)
        .with("--max-position-embeddings", "64")
        .with("--lr", "0")
        .with("--min-lr", "0")
        .with("--lr-warmup-iters", "0")
        .with("--train-iters", "1")
        .with("--save", path(save).string())
        .with("--save-interval", "1")
        .without("--vocab-file")
        .without("--merge-file")
        .without("--num-layers")
        .without("--hidden-size")
        .without("--num-attention-heads");
  }
  double trained_loss(const Flags& flags, int ranks = 1) const {
    Words words = flags.words();
    if (ranks > 1) {
      words.insert(words.begin(), {"--nproc-per-node", std::to_string(ranks), "pretrain-gpt",
                                   "--tensor-model-parallel-size", std::to_string(ranks)});
    }
    const Outcome outcome = run(ranks > 1 ? "launch" : "pretrain-gpt", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const std::vector<IterationText> lines = iterations_of(outcome.out);
    return lines.empty() ? 0.0 : lines.front().number("lm loss");
  }
  void expect_same_model(const std::filesystem::path& other) const {
    const std::vector<Ids> rows = {{1, 2, 3, 4, 5, 6}, {130, 77, 5, 5, 60}};
    EXPECT_EQ(score(other, rows), score(model(), rows)) << other;
    const Flags flags = Flags().with("--max-new-tokens", "20").with("--temperature", "3");
    const std::vector<json> got = generate(other, rows, flags);
    const std::vector<json> want = generate(model(), rows, flags);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(drawn(got[i]), drawn(want[i])) << other;
  }
  // Up to the end of a text, where a model that comes with a tokenizer stops.
  static Ids drawn(const json& row) {
    Ids ids = row.at("ids").get<Ids>();
    const auto prompt = row.at("prompt_tokens").get<std::ptrdiff_t>();
    ids.erase(std::find(ids.begin() + prompt, ids.end(), 130), ids.end());
    return ids;
  }
  Outcome converted(const std::filesystem::path& from, const char* to, const Words& more) const {
    Words words = {"--load-dir", from.string(), "--save-dir", path(to).string()};
    words.insert(words.end(), more.begin(), more.end());
    Outcome outcome = run("convert-checkpoint", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome;
  }
};

TEST_F(HfPaddingTest, TrainingKeepsTheLoss) {
  const double loss = trained_loss(run_flags(model(), "131", "whole"));
  EXPECT_LT(loss, 8);
  EXPECT_NEAR(trained_loss(run_flags(model(), "128", "padded")), loss, 1e-5);
  EXPECT_NEAR(trained_loss(run_flags(model(), "128", "tp2"), 2), loss, 1e-5);
  EXPECT_NEAR(trained_loss(run_flags(model(), "128", "megatron")
                               .with("--save-format", "megatron")
                               .with("--seed", "1234")),
              loss, 1e-5);
  for (const char* name : {"whole", "padded", "tp2", "megatron"}) expect_same_model(path(name));
  // Resumed by other ranks, which pad otherwise.
  const Flags resumed = run_flags(path("whole"), "128", "resumed").with("--finetune");
  EXPECT_NEAR(trained_loss(resumed, 2), loss, 1e-5);
  expect_same_model(path("resumed"));
}

TEST_F(HfPaddingTest, ConversionsKeepTheModel) {
  const Outcome to_megatron =
      converted(model(), "megatron", {"--saver", "megatron", "--target-tensor-parallel-size", "2"});
  // Padding rows are copies of the last row, as Megatron-LM's converter makes them: a program that
  // counts them computes nearly the same.
  EXPECT_THAT(to_megatron.out, HasSubstr("programs that count the 125 padding rows too"));
  converted(path("megatron"), "native", {"--saver", "native"});
  converted(path("native"), "core", {"--saver", "core"});
  converted(path("core"), "back", {"--saver", "hf"});
  for (const char* name : {"megatron", "native", "core", "back"}) expect_same_model(path(name));
  const SafetensorsFile before(model() / "model.safetensors");
  const SafetensorsFile after(path("back") / "model.safetensors");
  EXPECT_EQ(after.tensors().size(), before.tensors().size());
  for (const SafetensorsFile::Entry& tensor : before.tensors()) {
    megatron::expect_identical(copy_of(after.at(tensor.spec.name)), copy_of(tensor.view));
  }
  const double loss = trained_loss(run_flags(model(), "131", "a"));
  EXPECT_NEAR(trained_loss(run_flags(path("megatron"), "128", "b").with("--finetune")), loss, 1e-5);
}

}  // namespace
}  // namespace megatron::program
