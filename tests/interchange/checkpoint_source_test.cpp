#include "megatron/interchange/checkpoint_source.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/interchange/source_settings.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

fs::path golden(const std::string& name) { return fs::path(source_path("tests/golden")) / name; }

TEST(CheckpointSourceTest, IsOpenedOnce) {
  const CheckpointSource source = find_source(golden("megatron/gpt/ckpt/iter_0000010"), 0, true);
  ASSERT_TRUE(source.exists());
  EXPECT_EQ(source.format(), CheckpointFormat::kMegatron);
  EXPECT_EQ(std::get<int64_t>(source.args().at("num_layers")), 4);
  const CheckpointContents* contents = &source.contents();
  EXPECT_EQ(contents->iteration, 10);
  const CheckpointSource copy = source;
  EXPECT_EQ(&copy.contents(), contents);
  // It has settings of its own, so that others change nothing.
  EXPECT_EQ(&copy.contents({{"num_layers", int64_t{7}}}), contents);
}

TEST(CheckpointSourceTest, HuggingFaceModelsAreReadTheSameWay) {
  const CheckpointSource source = find_source(golden("hf/llama-gqa"), 0, true);
  ASSERT_NE(source.hf(), nullptr);
  EXPECT_FALSE(source.contents().has_optimizer());
  EXPECT_EQ(std::get<int64_t>(source.args().at("true_vocab_size")), source.hf()->vocab_size);
  TrainingArgs args;
  take_architecture(args, source);
  EXPECT_EQ(args.transformer.num_layers, source.hf()->transformer.num_layers);
  EXPECT_EQ(args.transformer.padded_vocab_size, 0);
  EXPECT_THAT(contradictions(source.hf()->transformer, source.hf()->transformer), IsEmpty());
}

TEST(CheckpointSourceTest, FlagsThatTheSourceReplacesAreNamed) {
  const CheckpointSource source = find_source(golden("hf/llama-gqa"), 0, true);
  const auto warnings_of = [&](const std::vector<std::string>& words) {
    std::vector<std::string> problems;
    TrainingArgs args = parsed_flags(words, ModelKind::kGpt, problems);
    take_architecture(args, source);
    return args.warnings;
  };
  EXPECT_THAT(warnings_of({"--position-embedding-type", "alibi", "--num-query-groups", "2"}),
              testing::ElementsAre(
                  "--position-embedding-type is rope in the checkpoint, but alibi on the command "
                  "line; --use-checkpoint-args takes the former"));
  EXPECT_THAT(warnings_of({"--swiglu", "--use-rotary-position-embeddings", "--disable-bias-linear",
                           "--no-bias-gelu-fusion", "--group-query-attention"}),
              IsEmpty());
}

TEST(CheckpointSourceTest, NothingToLoad) {
  const TemporaryDirectory empty;
  EXPECT_FALSE(find_source("", 0, true).exists());
  EXPECT_FALSE(find_source(empty.path(), 0, false).exists());
  EXPECT_THAT(message_of<ConfigError>([&] { find_source(empty.path(), 0, true); }),
              HasSubstr("there is no checkpoint"));
}

// 150 bytes must not make the program take memory for a model that is not there.
TEST(CheckpointSourceTest, ConfigIsComparedWithTheWeightsAtOnce) {
  const TemporaryDirectory directory;
  fs::copy_file(golden("hf/gpt2/model.safetensors"), directory.path() / "model.safetensors");
  std::string config = read_text(golden("hf/gpt2/config.json"));
  const auto with = [&](const std::string& field, const std::string& value) {
    std::string changed = config;
    const size_t begin = changed.find("\"" + field + "\": ") + field.size() + 4;
    changed.replace(begin, changed.find(',', begin) - begin, value);
    write_text_atomically(directory.path() / "config.json", changed);
    return message_of<FormatError>([&] { find_source(directory.path(), 0, true); });
  };
  EXPECT_THAT(with("n_layer", "90000"), HasSubstr("config.json says 90000 layers"));
  EXPECT_THAT(with("n_layer", "2000000000"), HasSubstr("must be at most 100000"));
  EXPECT_THAT(with("n_embd", "2000000000"), HasSubstr("do not fit the model"));
  EXPECT_THAT(with("n_positions", "2000000000"), HasSubstr("do not fit the model"));
}

TEST(ContradictionsTest, ComparesWhatMegatronCompares) {
  const ArgMap saved = {{"num_layers", int64_t{4}},
                        {"tokenizer_type", std::string("GPT2BPETokenizer")},
                        {"tensor_model_parallel_size", int64_t{2}},
                        {"lr", 0.1}};
  ArgMap now = saved;
  now["tensor_model_parallel_size"] = int64_t{1};
  now["lr"] = 0.2;
  EXPECT_TRUE(contradictions(saved, now).empty());
  now["num_layers"] = int64_t{8};
  EXPECT_THAT(contradictions(saved, now),
              testing::ElementsAre("num_layers is 4 in the checkpoint, but 8 now; give the "
                                   "checkpoint's value or --use-checkpoint-args"));
  now["num_layers"] = int64_t{4};
  now["tokenizer_type"] = std::string("NullTokenizer");
  EXPECT_THAT(contradictions(saved, now),
              testing::ElementsAre(HasSubstr("give the checkpoint's value or --finetune")));
}

TEST(ContradictionsTest, PaddingRowsMayChangeIfTheyAreKnown) {
  ArgMap saved = {{"padded_vocab_size", int64_t{512}}};
  const ArgMap now = {{"padded_vocab_size", int64_t{640}}};
  EXPECT_THAT(contradictions(saved, now),
              testing::ElementsAre(HasSubstr("padded_vocab_size is 512 in the checkpoint")));
  saved["true_vocab_size"] = int64_t{500};
  EXPECT_THAT(contradictions(saved, now), IsEmpty());
}

TEST(ContradictionsTest, OnlyWhatHasAnEffectIsCompared) {
  TransformerConfig theirs;
  theirs.num_layers = 2;
  theirs.hidden_size = 8;
  theirs.num_attention_heads = 2;
  theirs.seq_length = 4;
  theirs.max_position_embeddings = 4;
  theirs = resolved(theirs);
  TransformerConfig ours = theirs;
  ours.rotary_base = 5;       // no rotary positions
  ours.hidden_dropout = 0.5;  // not architecture
  ours.seq_length = 2;
  EXPECT_THAT(contradictions(theirs, ours), IsEmpty());
  ours.parallel_residual = true;
  ours.activation = Activation::kSwiglu;
  EXPECT_THAT(contradictions(theirs, ours),
              testing::UnorderedElementsAre(
                  HasSubstr("--parallel-residual is False in the model's"),
                  HasSubstr("--openai-gelu is True"), HasSubstr("--swiglu is False")));
}

}  // namespace
}  // namespace megatron
