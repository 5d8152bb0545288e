#include <algorithm>
#include <cmath>

#include "megatron/formats/safetensors.h"
#include "tests/program/inference_test.h"
#include "tests/support/tensors.h"

namespace megatron::program {
namespace {

class ScoreModelTest : public InferenceTest, public testing::WithParamInterface<const char*> {};

// log(softmax) of the logits that transformers gave.
TEST_P(ScoreModelTest, AgreesWithTransformers) {
  const SafetensorsFile file(golden("hf") / GetParam() / "expected.safetensors");
  const Tensor ids = copy_of(file.at("input.input_ids"));  // [b, s]
  const Tensor logits = copy_of(file.at("logits"));        // [b, s, v]
  const int64_t batch = ids.size(0);
  const int64_t length = ids.size(1);
  const int64_t width = logits.size(2);

  std::vector<Ids> rows(static_cast<size_t>(batch));
  for (int64_t i = 0; i < ids.numel(); ++i) {
    rows[static_cast<size_t>(i / length)].push_back(static_cast<int32_t>(element(ids, i)));
  }
  const std::vector<nlohmann::json> got = score(golden("hf") / GetParam(), rows);
  ASSERT_EQ(got.size(), rows.size());
  for (int64_t b = 0; b < batch; ++b) {
    const auto found = got[static_cast<size_t>(b)].at("logprobs").get<std::vector<double>>();
    ASSERT_EQ(static_cast<int64_t>(found.size()), length - 1);
    double total = 0;
    for (int64_t s = 0; s + 1 < length; ++s) {
      const int64_t row = (b * length + s) * width;
      double sum = 0;
      for (int64_t v = 0; v < width; ++v) sum += std::exp(element(logits, row + v));
      const int32_t next = rows[static_cast<size_t>(b)][static_cast<size_t>(s) + 1];
      const double want = element(logits, row + next) - std::log(sum);
      EXPECT_NEAR(found[static_cast<size_t>(s)], want, 1e-4) << "row " << b << " token " << s;
      total -= want;
    }
    EXPECT_NEAR(got[static_cast<size_t>(b)].at("loss").get<double>(),
                total / static_cast<double>(length - 1), 1e-5);
  }
}

TEST_P(ScoreModelTest, LogitsAreThoseOfTransformers) {
  const SafetensorsFile file(golden("hf") / GetParam() / "expected.safetensors");
  const Tensor ids = copy_of(file.at("input.input_ids")).slice(0, 1);  // [1, s]
  const Tensor want = copy_of(file.at("logits"));                      // [b, s, v]
  Ids row;
  for (int64_t i = 0; i < ids.numel(); ++i) row.push_back(static_cast<int32_t>(element(ids, i)));
  const std::string model = (golden("hf") / GetParam()).string();
  const Words layouts[] = {{}, {"--tensor-model-parallel-size", "2"}};
  for (const Words& layout : layouts) {
    Words words = {"--nproc-per-node",
                   layout.empty() ? "1" : "2",
                   "score",
                   "--load",
                   model,
                   "--device",
                   "cpu",
                   layout.empty() ? "--logits" : "--return_logits"};
    words.insert(words.end(), layout.begin(), layout.end());
    const Outcome outcome = run("launch", words, {.input = json_lines({row})});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto got =
        parsed_lines(outcome.out).at(0).at("logits").get<std::vector<std::vector<double>>>();
    ASSERT_EQ(static_cast<int64_t>(got.size()), want.size(1));
    for (int64_t i = 0; i < want.size(1); ++i) {
      const auto& values = got[static_cast<size_t>(i)];
      ASSERT_EQ(static_cast<int64_t>(values.size()), want.size(2));  // without padding
      for (int64_t v = 0; v < want.size(2); ++v) {
        EXPECT_NEAR(values[static_cast<size_t>(v)], element(want, i * want.size(2) + v), 1e-4);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ScoreModelTest,
                         testing::Values("gpt2", "llama", "llama-gqa", "bloom", "gpt-neox"),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class ScoreTest : public InferenceTest {};

// Every sample of a corpus with a period of seq_length is the same 33 tokens, so the loss that
// training and evaluation log is the score of those.
TEST_F(ScoreTest, IsTheLossOfTraining) {
  Ids period;
  for (int32_t i = 0; i < 32; ++i) period.push_back((i * i * 7 + 3) % 500);
  write_periodic_dataset(path("periodic"), period);
  const std::filesystem::path model = trained();
  train(golden_flags()
            .with("--data-path", path("periodic").string())
            .with("--load", model.string())
            .with("--finetune")
            .with("--lr", "0")
            .with("--min-lr", "0")
            .with("--train-iters", "1")
            .with("--lr-warmup-iters", "0")
            .with("--eval-interval", "1")
            .with("--metrics-jsonl", path("m.jsonl").string()));
  const std::vector<Metrics> metrics = metrics_of(path("m.jsonl"));

  Ids sample = period;
  sample.push_back(period.front());
  const double loss = score(model, {sample}).front().at("loss").get<double>();
  EXPECT_NEAR(metrics.at(0).at("lm loss"), loss, 1e-5);
  EXPECT_NEAR(metrics.at(1).at("lm loss validation"), loss, 1e-5);
}

TEST_F(ScoreTest, TextIsScoredAsItsIds) {
  const std::filesystem::path model = trained();
  const Outcome outcome = run("score", {"--load", model.string()},
                              {.input = "{\"text\": \"the river\"}\n{\"ids\": [220, 5, 66]}\n"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<nlohmann::json> rows = parsed_lines(outcome.out);
  ASSERT_EQ(rows.size(), 2u);
  for (const nlohmann::json& row : rows) {
    double sum = 0;
    for (const double value : row.at("logprobs").get<std::vector<double>>()) sum -= value;
    EXPECT_NEAR(row.at("loss").get<double>(), sum / static_cast<double>(row.at("logprobs").size()),
                1e-9);
  }
}

// Weights in 8 bits change the loss of a small model a little, in every layout of ranks.
class RoundedWeightsTest : public InferenceTest, public testing::WithParamInterface<const char*> {};

TEST_P(RoundedWeightsTest, ChangeTheLossALittle) {
  const Ids row = {5, 17, 99, 3, 64, 28, 77, 12, 45, 8, 101, 33};
  for (const char* name : {"gpt2", "llama-gqa"}) {
    const std::string model = (golden("hf") / name).string();
    const double exact = score(golden("hf") / name, {row})[0].at("loss").get<double>();
    for (const Words& layout :
         {Words{}, Words{"--tensor-model-parallel-size", "2"},
          Words{"--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "3"}}) {
      const size_t ranks = layout.empty() ? 1 : layout.size() == 2 ? 2 : 6;
      Words words = {"--nproc-per-node",
                     std::to_string(ranks),
                     "score",
                     "--load",
                     model,
                     "--device",
                     "cpu",
                     "--inference-weights",
                     GetParam()};
      words.insert(words.end(), layout.begin(), layout.end());
      const Outcome outcome = run("launch", words, {.input = json_lines({row})});
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      const double loss = parsed_lines(outcome.out)[0].at("loss").get<double>();
      EXPECT_NEAR(loss, exact, 0.02) << name;
      EXPECT_NE(loss, exact) << name;
    }
    const auto texts = generate(golden("hf") / name, {row},
                                Flags({}).with("--inference-weights", GetParam()).with("--greedy"));
    EXPECT_EQ(texts.size(), 1u);
  }
}
INSTANTIATE_TEST_SUITE_P(Forms, RoundedWeightsTest, testing::Values("int8", "fp8"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace megatron::program
