#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megatron/data/indexed_dataset.h"
#include "megatron/formats/safetensors.h"
#include "tests/program/inference_test.h"
#include "tests/support/shared_data.h"
#include "tests/support/tensors.h"

// transformers' T5 models: scored, converted and trained on.
namespace megatron::program {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class T5InferenceTest : public InferenceTest {
 protected:
  static std::filesystem::path hf_model(const std::string& version) {
    return golden("hf/t5-" + version);
  }

  // The model's answer to one JSON line.
  static json answer(const std::string& command, const std::filesystem::path& model,
                     const json& line, Words more = {}) {
    Words words = {"--load", model.string(), "--device", "cpu"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(command, words, {.input = line.dump() + "\n"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const std::vector<json> lines = parsed_lines(outcome.out);
    EXPECT_EQ(lines.size(), 1u);
    return lines.empty() ? json() : lines.front();
  }
  static double score_of(const std::filesystem::path& model, const json& line) {
    return answer("score", model, line).at("loss");
  }

  // Layouts of ranks that have a T5 of 3 + 3 layers together.
  struct Layout {
    int ranks;
    Words words;
  };
  static std::vector<Layout> layouts() {
    const Words tensor = {"--tensor-model-parallel-size", "2"};
    const Words stages = {"--pipeline-model-parallel-size", "2",
                          "--pipeline-model-parallel-split-rank", "1"};
    Words both = tensor;
    both.insert(both.end(), stages.begin(), stages.end());
    return {
        {2, tensor},
        {2, stages},
        {4, both},
        {4, {"--pipeline-model-parallel-size", "4", "--pipeline-model-parallel-split-rank", "1"}},
        {4, {"--pipeline-model-parallel-size", "4", "--pipeline-model-parallel-split-rank", "3"}}};
  }
  // What the ranks of a layout print.
  static std::string printed_by(const Layout& layout, const std::string& command,
                                const std::filesystem::path& model, const Words& more,
                                const std::string& input) {
    Words words = {"--nproc-per-node",
                   std::to_string(layout.ranks),
                   command,
                   "--load",
                   model.string(),
                   "--device",
                   "cpu"};
    words.insert(words.end(), layout.words.begin(), layout.words.end());
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run("launch", words, {.input = input});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  }
  // Every layout generates the ids of `rows`.
  static void expect_of_all_layouts(const std::filesystem::path& model,
                                    const std::vector<Ids>& prompts, Words more,
                                    const std::vector<json>& rows) {
    more.insert(more.end(), {"--json", "--prompt-file", "-"});
    for (const Layout& layout : layouts()) {
      const std::string out = printed_by(layout, "generate", model, more, json_lines(prompts));
      EXPECT_EQ(ids_of(parsed_lines(out)), ids_of(rows)) << layout.words.back();
    }
  }
  static std::vector<Ids> ids_of(const std::vector<json>& rows) {
    std::vector<Ids> ids;
    for (const json& row : rows) ids.push_back(row.at("ids").get<Ids>());
    return ids;
  }

  std::filesystem::path converted(const std::filesystem::path& from, const std::string& name,
                                  const Words& more) const {
    Words words = {"--load-dir", from.string(), "--save-dir", path(name).string()};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run("convert-checkpoint", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return path(name);
  }
};

// The batch that transformers computed, and its loss.
struct GoldenBatch {
  explicit GoldenBatch(const std::filesystem::path& model) {
    const SafetensorsFile file(model / "expected.safetensors");
    loss = copy_of(file.at("loss")).item();
    for (const auto& [field, name] : {std::pair{"ids", "input.input_ids"},
                                      {"attention_mask", "input.attention_mask"},
                                      {"labels", "input.labels"}}) {
      const Tensor stored = copy_of(file.at(name));
      const auto values = stored.span<int64_t>();
      for (int64_t row = 0; row < stored.size(0); ++row) {
        const auto begin = values.begin() + row * stored.size(1);
        line[field].push_back(std::vector<int64_t>(begin, begin + stored.size(1)));
      }
    }
  }
  json line;
  double loss = 0;
};

TEST_F(T5InferenceTest, ScoresAsTransformers) {
  for (const std::string version : {"v1.0", "v1.1"}) {
    const std::filesystem::path model = hf_model(version);
    const GoldenBatch batch(model);
    EXPECT_NEAR(score_of(model, batch.line), batch.loss, 1e-5) << version;
    const std::filesystem::path native =
        converted(model, "native-" + version, {"--saver", "native"});
    EXPECT_NEAR(score_of(native, batch.line), batch.loss, 1e-5) << version;
    const std::filesystem::path again = converted(native, "hf-" + version, {"--saver", "hf"});
    EXPECT_NEAR(score_of(again, batch.line), batch.loss, 1e-5) << version;
    const Outcome shown = run("inspect-checkpoint", {"--load", again.string()});
    EXPECT_THAT(shown.out, HasSubstr("T5 (t5), format hf"));
    for (const Layout& layout : layouts()) {
      const std::string out = printed_by(layout, "score", native, {}, batch.line.dump() + "\n");
      EXPECT_NEAR(json::parse(out).at("loss").get<double>(), batch.loss, 1e-5) << version;
    }
  }
}

// The probabilities of greedy tokens are those that score() finds for them as labels.
TEST_F(T5InferenceTest, GeneratesWhatItScores) {
  for (const std::string version : {"v1.0", "v1.1"}) {
    const std::filesystem::path model = hf_model(version);
    const std::vector<Ids> prompts = {{5, 17, 60, 1}, {90, 3, 3, 44, 101, 7, 1}, {12, 1}};
    const Flags flags = Flags().with("--greedy").with("--max-new-tokens", "12").with("--logprobs");
    const std::vector<json> rows = generate(model, prompts, flags);
    ASSERT_EQ(rows.size(), prompts.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto ids = rows[i].at("ids").get<Ids>();
      const auto probabilities = rows[i].at("logprobs").get<std::vector<double>>();
      ASSERT_EQ(probabilities.size(), ids.size());
      const double loss = score_of(model, {{"ids", {prompts[i]}}, {"labels", {ids}}});
      double sum = 0;
      for (const double probability : probabilities) sum -= probability;
      EXPECT_NEAR(loss, sum / static_cast<double>(ids.size()), 1e-5) << version << " row " << i;
      EXPECT_EQ(generate(model, {prompts[i]}, flags).at(0).at("ids"), rows[i].at("ids"));
    }
    expect_of_all_layouts(model, prompts, {"--greedy", "--logprobs", "--max-new-tokens", "12"},
                          rows);
    const Words drawn = {"--top-p", "0.9", "--seed", "3", "--max-new-tokens", "12"};
    expect_of_all_layouts(
        model, prompts, drawn,
        generate(
            model, prompts,
            Flags().with("--top-p", "0.9").with("--seed", "3").with("--max-new-tokens", "12")));
  }
}

// The score of a beam is the mean log-probability that score() finds for its tokens as labels.
TEST_F(T5InferenceTest, SearchesBeams) {
  for (const std::string version : {"v1.0", "v1.1"}) {
    const std::filesystem::path model = hf_model(version);
    const std::vector<Ids> prompts = {{5, 17, 60, 1}, {12, 1}};
    const auto searched = [&](const char* beams, const char* length) {
      return generate(
          model, prompts,
          Flags().with("--num-beams", beams).with("--ignore-eod").with("--max-new-tokens", length));
    };
    const std::vector<json> greedy =
        generate(model, prompts,
                 Flags().with("--greedy").with("--ignore-eod").with("--max-new-tokens", "20"));
    const std::vector<json> one = searched("1", "20");
    const std::vector<json> four = searched("4", "20");
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(one.at(i).at("ids"), greedy.at(i).at("ids"));
      const double loss =
          score_of(model, {{"ids", {prompts[i]}}, {"labels", {four.at(i).at("ids")}}});
      EXPECT_NEAR(four[i].at("score").get<double>(), -loss, 1e-5) << version << " row " << i;
    }
    // As many beams as tokens see every text of two tokens.
    const std::vector<json> all = searched("128", "2");
    for (const char* beams : {"1", "2", "8"}) {
      const std::vector<json> few = searched(beams, "2");
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_GE(all.at(i).at("score").get<double>(), few.at(i).at("score").get<double>() - 1e-5);
      }
    }
    expect_of_all_layouts(model, prompts,
                          {"--ignore-eod", "--num-beams", "4", "--max-new-tokens", "20"}, four);
  }
}

TEST_F(T5InferenceTest, NamesWhatIsWrong) {
  const auto error = [&](const json& line, Words more = {}) {
    more.insert(more.begin(), {"--load", hf_model("v1.1").string(), "--device", "cpu"});
    const Outcome outcome = run("score", more, {.input = line.dump() + "\n"});
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(error({{"ids", {1, 2, 3}}}), HasSubstr("\"labels\" is missing; a T5 scores"));
  EXPECT_THAT(error({{"ids", {1, 2}}, {"labels", {-100}}}), HasSubstr("no word counts"));
  EXPECT_THAT(error({{"ids", {1, 200}}, {"labels", {5}}}), HasSubstr("token id 200"));
  EXPECT_THAT(error({{"ids", {1, 2}}, {"attention_mask", {1}}, {"labels", {5}}}),
              HasSubstr("\"attention_mask\" must have a value for each of \"ids\""));
  const Outcome stages =
      run("launch", {"--nproc-per-node", "2", "score", "--load", hf_model("v1.1").string(),
                     "--device", "cpu", "--pipeline-model-parallel-size", "2"});
  EXPECT_EQ(stages.exit_code, 2);
  EXPECT_THAT(stages.err, HasSubstr("--pipeline-model-parallel-split-rank 0 must be at least 1"));
}

// Training starts from transformers' model: with a learning rate of 0 it stays what it is.
TEST_F(T5InferenceTest, TrainsOnFromTransformers) {
  MG_NEEDS_SHARED("golden/megatron/t5/ckpt");
  IndexedDatasetBuilder builder(path("data"), {.dtype = TokenDtype::kUint16});
  for (int32_t i = 0; i < 40; ++i) {  // three sentences of ten words
    Ids document;
    for (int32_t k = 0; k < 30; ++k) document.push_back(5 + (i * 31 + k * k) % 90);
    builder.add_document(document, Ids{10, 10, 10});
  }
  builder.finalize();
  std::ifstream all(golden("megatron/data/bert-vocab.txt"));
  std::ofstream some(path("vocab.txt"));  // the tokenizer adds two ids and 20 sentinels
  std::string word;
  for (int line = 0; line < 109 && std::getline(all, word); ++line) some << word << "\n";
  some.close();
  const std::filesystem::path model = hf_model("v1.1");
  Flags flags = golden_flags()
                    .without("--merge-file")
                    .with("--load", model.string())
                    .with("--use-checkpoint-args")
                    .with("--tokenizer-type", "BertWordPieceLowerCase")
                    .with("--vocab-file", path("vocab.txt").string())
                    .with("--vocab-extra-ids", "20")
                    .with("--data-path", path("data").string())
                    .with("--decoder-seq-length", "16")
                    .with("--lr", "0")
                    .with("--min-lr", "0")
                    .with("--weight-decay", "0")
                    .with("--train-iters", "2")
                    .with("--eval-iters", "0")
                    .with("--save-interval", "100")
                    .with("--save", path("save").string());
  for (const char* flag : {"--num-layers", "--hidden-size", "--num-attention-heads"}) {
    flags = flags.without(flag);
  }
  const Outcome outcome = run("pretrain-t5", flags.words());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  // The decoder of this run begins with [BOS], that of the golden batch with padding.
  const std::filesystem::path written = converted(path("save"), "hf", {"--saver", "hf"});
  std::ifstream file(written / "config.json");
  json config = json::parse(file);
  config["decoder_start_token_id"] = 0;
  std::ofstream(written / "config.json") << config.dump();
  const GoldenBatch batch(model);
  EXPECT_NEAR(score_of(written, batch.line), batch.loss, 1e-5);
}

}  // namespace
}  // namespace megatron::program
