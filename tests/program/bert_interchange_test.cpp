#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/checkpoint/load.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/formats/safetensors.h"
#include "megatron/interchange/megatron/reader.h"
#include "tests/program/inference_test.h"
#include "tests/support/shared_data.h"
#include "tests/support/tensors.h"

// BERTs of Megatron-LM and transformers: trained on, converted, scored and asked for words.
namespace megatron::program {
namespace {

using testing::HasSubstr;

class BertInterchangeTest : public InferenceTest {
 protected:
  static std::filesystem::path hf_model() { return golden("hf/megatron-bert"); }
  static std::filesystem::path megatron_run() { return shared_data("golden/megatron/bert/ckpt"); }

  // The run that Megatron-LM logged, without the architecture.
  Flags golden_bert() const {
    Flags flags = golden_flags()
                      .without("--merge-file")
                      .with("--tokenizer-type", "BertWordPieceLowerCase")
                      .with("--vocab-file", golden("megatron/data/bert-vocab.txt").string())
                      .with("--data-path", golden("megatron/data/sentences_text_sentence").string())
                      .with("--micro-batch-size", "8");
    for (const char* flag : {"--num-layers", "--hidden-size", "--num-attention-heads"}) {
      flags = flags.without(flag);
    }
    return flags;
  }

  static Outcome on_ranks(int ranks, const Flags& flags) {
    Words words = {"--nproc-per-node", std::to_string(ranks), "pretrain-bert"};
    for (const std::string& word : flags.words()) words.push_back(word);
    Outcome outcome = ranks == 1 ? run("pretrain-bert", flags.words()) : run("launch", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    return outcome;
  }

  std::filesystem::path converted(const std::filesystem::path& from, const char* name,
                                  const Words& more) const {
    Words words = {"--model-type", "BERT",       "--load-dir",
                   from.string(),  "--save-dir", path(name).string()};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run("convert-checkpoint", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("every tensor was read again and is the same"));
    EXPECT_THAT(outcome.out, HasSubstr("logits of 16 tokens differ by 0 at most"));
    return path(name);
  }

  static void expect_same(const CheckpointContents& got, const CheckpointContents& want) {
    for (const auto& [section, tensors] : want.sections) {
      ASSERT_EQ(got.sections.at(section).size(), tensors.size()) << section;
      for (const auto& [name, tensor] : tensors) {
        const Tensor ours = read_whole(got.sections.at(section).at(name));
        const Tensor theirs = read_whole(tensor);
        const int64_t rows = std::min(ours.size(0), theirs.size(0));  // padding may differ
        expect_identical(ours.slice(0, rows), theirs.slice(0, rows), name);
      }
    }
  }

  // The lines of a model's answer to one JSON line.
  static nlohmann::json answer(const char* command, const std::filesystem::path& model,
                               const nlohmann::json& line, Words more = {}) {
    Words words = {"--load", model.string(), "--device", "cpu"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(command, words, {.input = line.dump() + "\n"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const std::vector<nlohmann::json> lines = parsed_lines(outcome.out);
    EXPECT_EQ(lines.size(), 1u);
    return lines.empty() ? nlohmann::json() : lines.front();
  }
};

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// "lm loss" and "sop loss" of a line that an evaluation prints, as text.
std::pair<std::string, std::string> evaluation(const std::string& output, const std::string& set) {
  const size_t line = output.find(" validation loss at iteration 20 on " + set + " set |");
  const auto value = [&](const std::string& name) {
    const size_t at = output.find(name + " value: ", line) + name.size() + 8;
    return output.substr(at, output.find(' ', at) - at);
  };
  return {value("lm loss"), value("sop loss")};
}

// Megatron-LM printed these losses once it had trained the model of its checkpoint. Sums in another
// order change the last digit.
TEST_F(BertInterchangeTest, EvaluatesAsMegatronDid) {
  MG_NEEDS_SHARED("golden/megatron/bert/ckpt");
  const Flags flags = golden_bert().with("--use-checkpoint-args").with("--skip-train");
  const auto check = [&](const std::filesystem::path& load, int ranks) {
    Flags here = flags.with("--load", load.string());
    if (ranks == 4) {
      here = here.with("--tensor-model-parallel-size", "2")
                 .with("--pipeline-model-parallel-size", "2");
    }
    const std::string out = on_ranks(ranks, here).out;
    const auto [lm, sop] = evaluation(out, "validation");
    const auto [lm_test, sop_test] = evaluation(out, "test");
    EXPECT_EQ(lm, "5.708721E+00") << load << " on " << ranks << " ranks";
    EXPECT_EQ(lm_test, "5.700179E+00");
    EXPECT_NEAR(std::stod(sop), 6.931533e-01, 1.5e-7);
    EXPECT_NEAR(std::stod(sop_test), 6.936319e-01, 1.5e-7);
  };
  check(megatron_run(), 1);
  check(megatron_run(), 4);
  const Words four = {"--target-tensor-parallel-size", "2", "--target-pipeline-parallel-size", "2"};
  check(converted(megatron_run(), "legacy", four), 1);
  Words core = four;
  core.insert(core.end(), {"--saver", "core"});
  check(converted(megatron_run(), "core", core), 4);
  check(converted(path("core"), "native", {"--saver", "native"}), 1);
}

// Weights and the optimizer's state, through other layouts and back.
TEST_F(BertInterchangeTest, ConversionsLoseNothing) {
  MG_NEEDS_SHARED("golden/megatron/bert/ckpt");
  const CheckpointContents want = open_megatron_checkpoint(iteration_in(megatron_run(), 20));
  EXPECT_EQ(want.sections.size(), 4u);  // weights, main parameters, two moments
  const Words four = {"--target-tensor-parallel-size", "2", "--target-pipeline-parallel-size", "2"};
  const Words one = {"--target-tensor-parallel-size", "1", "--target-pipeline-parallel-size", "1"};
  converted(megatron_run(), "legacy", four);
  Words core = four;
  core.insert(core.end(), {"--saver", "core", "--target-virtual-pipeline-size", "2"});
  converted(path("legacy"), "core", core);
  Words flat = four;
  flat.insert(flat.end(), {"--use_distributed_optimizer", "--target_data_parallel_size", "4"});
  converted(path("core"), "flat", flat);
  converted(path("flat"), "native", {"--saver", "native"});
  converted(path("native"), "back", one);
  for (const char* name : {"legacy", "core", "flat", "back"}) {
    expect_same(open_megatron_checkpoint(iteration_in(path(name), 20)), want);
  }
  EXPECT_TRUE(std::filesystem::exists(iteration_in(path("legacy"), 20) / "mp_rank_01_001"));
}

// A run that saves in Megatron-LM's format and goes on from that, in another layout, is the run
// that does not stop.
TEST_F(BertInterchangeTest, GoesOnFromItsOwnFiles) {
  const Flags flags = golden_bert()
                          .with("--num-layers", "4")
                          .with("--hidden-size", "32")
                          .with("--num-attention-heads", "4")
                          .with("--padded-vocab-size", "512")
                          .with("--train-iters", "6");
  const std::vector<IterationText> want = iterations_of(on_ranks(1, flags).out);
  ASSERT_EQ(want.size(), 6u);
  for (const char* format : {"megatron", "megatron-core"}) {
    const Flags saved = flags.with("--save", path(format).string())
                            .with("--save-interval", "3")
                            .with("--save-format", format);
    on_ranks(4, saved.with("--exit-interval", "3")
                    .with("--tensor-model-parallel-size", "2")
                    .with("--pipeline-model-parallel-size", "2"));
    const std::vector<IterationText> got =
        iterations_of(on_ranks(1, flags.with("--load", path(format).string())).out);
    ASSERT_EQ(got.size(), 3u) << format;
    for (size_t i = 0; i < got.size(); ++i) {
      for (const char* name : {"lm loss", "sop loss", "grad norm"}) {
        const double expected = want[i + 3].number(name);
        EXPECT_NEAR(got[i].number(name), expected, 2e-5 * expected) << name << " " << format;
      }
    }
  }
}

// {"ids", ...} of the batch that transformers computed.
nlohmann::json golden_batch(const SafetensorsFile& file) {
  nlohmann::json line;
  const auto rows = [&](const char* name) {
    const Tensor stored = copy_of(file.at(name));
    nlohmann::json list = nlohmann::json::array();
    const int64_t length = stored.shape().rank() == 2 ? stored.size(1) : stored.size(0);
    for (int64_t row = 0; row * length < stored.numel(); ++row) {
      nlohmann::json values = nlohmann::json::array();
      for (int64_t i = 0; i < length; ++i) {
        values.push_back(stored.span<int64_t>()[static_cast<size_t>(row * length + i)]);
      }
      list.push_back(values);
    }
    return list;
  };
  line["ids"] = rows("input.input_ids");
  line["token_types"] = rows("input.token_type_ids");
  line["attention_mask"] = rows("input.attention_mask");
  line["labels"] = rows("input.labels");
  line["next_sentence_label"] = rows("input.next_sentence_label")[0];
  return line;
}

TEST_F(BertInterchangeTest, ScoresAsTransformers) {
  const SafetensorsFile file(hf_model() / "expected.safetensors");
  const double want = copy_of(file.at("loss")).item();
  const nlohmann::json batch = golden_batch(file);
  EXPECT_NEAR(answer("score", hf_model(), batch).at("loss").get<double>(), want, 1e-5);
  const std::filesystem::path megatron =
      converted(hf_model(), "megatron",
                {"--target-tensor-parallel-size", "2", "--make_vocab_size_divisible_by", "8"});
  EXPECT_NEAR(answer("score", megatron, batch).at("loss").get<double>(), want, 1e-5);
  converted(megatron, "hf", {"--saver", "hf"});
  EXPECT_NEAR(answer("score", path("hf"), batch).at("loss").get<double>(), want, 1e-5);

  const std::string line = batch.dump() + "\n";
  const Outcome ranks = run("launch",
                            {"--nproc-per-node", "4", "score", "--load", megatron.string(),
                             "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size",
                             "1", "--device", "cpu"},
                            {.input = line});
  EXPECT_EQ(ranks.exit_code, 2);  // two ranks too many
  EXPECT_THAT(ranks.err, HasSubstr("tensor 2 x pipeline 1 are 2 ranks, and there are 4"));
  const Outcome three = run("launch",
                            {"--nproc-per-node", "6", "score", "--load", megatron.string(),
                             "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size",
                             "3", "--device", "cpu"},
                            {.input = line});
  ASSERT_EQ(three.exit_code, 0) << three.err;
  EXPECT_NEAR(nlohmann::json::parse(three.out).at("loss").get<double>(), want, 1e-5);
}

TEST_F(BertInterchangeTest, ScoresMaskedWordsAlone) {
  nlohmann::json batch = golden_batch(SafetensorsFile(hf_model() / "expected.safetensors"));
  const double both = answer("score", hf_model(), batch).at("loss");
  batch.erase("next_sentence_label");
  EXPECT_LT(answer("score", hf_model(), batch).at("loss").get<double>(), both);
  const auto error = [&](const nlohmann::json& line) {
    const Outcome outcome = run("score", {"--load", hf_model().string(), "--device", "cpu"},
                                {.input = line.dump() + "\n"});
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(error({{"ids", {1, 2, 3}}}), HasSubstr("standard input:1: \"labels\" is missing"));
  EXPECT_THAT(error({{"ids", {1, 2, 3}}, {"labels", {-100, -100, -100}}}),
              HasSubstr("no word counts"));
  EXPECT_THAT(error({{"ids", {1, 2, 3}}, {"labels", {-100, 5}}}),
              HasSubstr("\"labels\" must have a value for each of \"ids\""));
  EXPECT_THAT(error({{"ids", {1, 200, 3}}, {"labels", {-100, 5, -100}}}),
              HasSubstr("token id 200 must be at least 0 and below 131"));
  EXPECT_THAT(error({{"ids", {1, 2}}, {"token_types", {0, 2}}, {"labels", {-100, 5}}}),
              HasSubstr("token type 2"));
  EXPECT_THAT(error({{"ids", {1, 2}}, {"labels", {-100, 5}}, {"next_sentence_label", 2}}),
              HasSubstr("must be 0 or 1"));
}

// A model without the binary head becomes transformers' ForMaskedLM, with token types of zeros.
TEST_F(BertInterchangeTest, WritesMaskedLanguageModels) {
  on_ranks(1, golden_bert()
                  .with("--num-layers", "2")
                  .with("--hidden-size", "32")
                  .with("--num-attention-heads", "4")
                  .with("--bert-no-binary-head")
                  .with("--no-bias-gelu-fusion")
                  .with("--train-iters", "2")
                  .with("--save-interval", "100")
                  .with("--save", path("save").string()));
  const std::filesystem::path hf = converted(path("save"), "hf", {"--saver", "hf"});
  EXPECT_THAT(content(hf / "config.json"), HasSubstr("MegatronBertForMaskedLM"));
  EXPECT_TRUE(std::filesystem::exists(hf / "vocab.txt"));
  const nlohmann::json batch = {{"ids", {2, 10, 4, 12, 3}}, {"labels", {-100, -100, 11, -100, 5}}};
  EXPECT_NEAR(answer("score", hf, batch).at("loss").get<double>(),
              answer("score", path("save"), batch).at("loss").get<double>(), 1e-6);
  const Outcome shown = run("inspect-checkpoint", {"--load", hf.string()});
  EXPECT_THAT(shown.out, HasSubstr("BERT (megatron-bert), format hf"));
}

// Training starts from transformers' model: with a learning rate of 0 it stays what it is.
TEST_F(BertInterchangeTest, StartsFromHuggingFace) {
  IndexedDatasetBuilder builder(path("data"), {.dtype = TokenDtype::kUint16});
  for (int32_t i = 0; i < 40; ++i) {  // three sentences of ten words
    Ids document;
    for (int32_t k = 0; k < 30; ++k) document.push_back(5 + (i * 31 + k * k) % 120);
    builder.add_document(document, Ids{10, 10, 10});
  }
  builder.finalize();
  const std::string vocabulary = content(golden("megatron/data/bert-vocab.txt"));
  size_t end = 0;  // the tokenizer adds two ids
  for (int line = 0; line < 129; ++line) end = vocabulary.find('\n', end) + 1;
  std::ofstream(path("vocab.txt")) << vocabulary.substr(0, end);

  const Flags flags = golden_bert()
                          .with("--load", hf_model().string())
                          .with("--vocab-file", path("vocab.txt").string())
                          .with("--data-path", path("data").string())
                          .with("--seq-length", "32")
                          .with("--max-position-embeddings", "64")
                          .with("--lr", "0")
                          .with("--min-lr", "0")
                          .with("--weight-decay", "0")
                          .with("--train-iters", "2")
                          .with("--eval-iters", "0")
                          .with("--save-interval", "100")
                          .with("--save", path("save").string());
  on_ranks(1, flags.with("--use-checkpoint-args"));
  const SafetensorsFile file(hf_model() / "expected.safetensors");
  EXPECT_NEAR(answer("score", path("save"), golden_batch(file)).at("loss").get<double>(),
              copy_of(file.at("loss")).item(), 1e-5);
  // The flags of the model are wrong: its GELU is the exact one.
  const Outcome refused = run("pretrain-bert", flags.with("--num-layers", "3")
                                                   .with("--hidden-size", "48")
                                                   .with("--num-attention-heads", "4")
                                                   .with("--overwrite-checkpoints")
                                                   .words());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--use-checkpoint-args"));
}

TEST_F(BertInterchangeTest, FillsMasks) {
  on_ranks(1, golden_bert()
                  .with("--num-layers", "2")
                  .with("--hidden-size", "32")
                  .with("--num-attention-heads", "4")
                  .with("--train-iters", "4")
                  .with("--save-interval", "100")
                  .with("--save", path("save").string()));
  const nlohmann::json filled =
      answer("fill-mask", path("save"), {{"text", "the [MASK] of [MASK]"}},
             {"--prompt-file", "-", "--json", "--top-k", "3"});
  ASSERT_EQ(filled.at("masks").size(), 2u);
  EXPECT_GT(filled["masks"][1]["position"], filled["masks"][0]["position"]);
  for (const nlohmann::json& mask : filled.at("masks")) {
    ASSERT_EQ(mask.at("words").size(), 3u);
    double before = 1;
    for (const nlohmann::json& word : mask.at("words")) {
      EXPECT_LE(word.at("probability").get<double>(), before);
      before = word.at("probability");
      EXPECT_FALSE(word.at("word").get<std::string>().empty());
    }
    const auto position = mask.at("position").get<size_t>();
    EXPECT_EQ(filled.at("ids")[position], mask.at("words")[0].at("id"));
  }
  // What it gives a probability is what score() counts.
  nlohmann::json ids = filled.at("ids");
  nlohmann::json labels = nlohmann::json::array();
  for (size_t i = 0; i < ids.size(); ++i) labels.push_back(-100);
  const auto first = filled["masks"][0]["position"].get<size_t>();
  for (const nlohmann::json& mask : filled.at("masks")) ids[mask.at("position").get<size_t>()] = 4;
  labels[first] = filled["masks"][0]["words"][0]["id"];
  const double loss = answer("score", path("save"), {{"ids", ids}, {"labels", labels}}).at("loss");
  EXPECT_NEAR(std::exp(-loss), filled["masks"][0]["words"][0]["probability"].get<double>(), 1e-5);

  const Outcome plain = run("fill-mask", {"--load", path("save").string(), "--prompt",
                                          "the [MASK] of it", "--top-k", "2", "--device", "cpu"});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(std::ranges::count(plain.out, '\n'), 3);
  const Outcome none = run("fill-mask", {"--load", path("save").string(), "--prompt", "the house"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("the text has no [MASK]"));
}

TEST_F(BertInterchangeTest, OtherCommandsCallItABert) {
  const std::string model = hf_model().string();
  const std::string gpt = golden("hf/gpt2").string();
  const auto error = [&](const char* command, const Words& words) {
    const Outcome outcome = run(command, words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    return errors_of(outcome);
  };
  EXPECT_THAT(error("pretrain-gpt", golden_flags().with("--load", model).words()),
              testing::ElementsAre("--load " + model +
                                   ": is a BERT, and pretrain-gpt trains a GPT; use "
                                   "pretrain-bert"));
  EXPECT_THAT(error("pretrain-bert", golden_bert().with("--load", gpt).words()),
              testing::ElementsAre("--load " + gpt +
                                   ": is a GPT, and pretrain-bert trains a BERT; use "
                                   "pretrain-gpt"));
  EXPECT_THAT(error("generate", {"--load", model, "--prompt", "a"}),
              testing::ElementsAre("--load " + model +
                                   ": is a BERT, and this command takes a GPT or a T5"));
  EXPECT_THAT(error("fill-mask", {"--load", gpt, "--prompt", "a"}),
              testing::ElementsAre("--load " + gpt + ": is a GPT, and this command takes a BERT"));
  EXPECT_THAT(error("convert-checkpoint", {"--load-dir", model, "--save-dir", path("to").string(),
                                           "--model-type", "GPT"}),
              testing::ElementsAre(HasSubstr("is a BERT; give that, or leave the flag out")));
}

}  // namespace
}  // namespace megatron::program
