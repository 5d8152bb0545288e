// Embeddings of the engine, compared with the hidden states of transformers
// (tests/golden/embeddings/README.md).
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "megatron/core/file.h"
#include "megatron/inference/engine.h"
#include "megatron/run/loaded_model.h"
#include "tests/support/source_path.h"

namespace megatron {
namespace {

using nlohmann::json;

// The embedding of each text, of an engine that reads it in steps of a few tokens.
std::map<RequestId, std::vector<float>> embeddings_of(const InferenceModel& model,
                                                      const json& texts, Pooling pooling,
                                                      int64_t max_step_tokens) {
  EngineOptions options;
  options.max_rows = 3;
  options.max_step_tokens = max_step_tokens;
  options.page_tokens = 2;
  Engine engine(model, options);
  // The second time prefixes are in the cache.
  for (int time = 0; time < 2; ++time) {
    for (const json& text : texts) {
      engine.submit({.prompt = text, .max_new_tokens = 0, .pooling = pooling});
    }
  }
  std::map<RequestId, std::vector<float>> result;
  while (engine.has_work()) {
    for (RequestProgress& progress : engine.step()) {
      EXPECT_FALSE(progress.token.has_value());
      if (progress.finish == Finish::kNone) continue;
      EXPECT_EQ(progress.finish, Finish::kLength);
      result[progress.id] = std::move(progress.embedding);
    }
  }
  EXPECT_EQ(engine.state().pages_owned, 0);
  return result;
}

class EmbeddingGoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(EmbeddingGoldenTest, EqualsTransformers) {
  const std::filesystem::path golden = source_path("tests/golden");
  const json expected = json::parse(read_text(golden / "embeddings/expected.json"));
  ModelChoice choice;
  choice.load = (golden / "hf" / GetParam()).string();
  choice.device = DeviceChoice::kCpu;
  const LoadedModel loaded = load_model(choice, {}, any_kind);
  const json& texts = expected.at("texts");
  for (const auto& [name, pooling] :
       {std::pair{"mean", Pooling::kMean}, std::pair{"last", Pooling::kLast},
        std::pair{"cls", Pooling::kFirst}}) {
    for (const int64_t max_step_tokens : {3, 512}) {
      const auto found = embeddings_of(loaded.inference(), texts, pooling, max_step_tokens);
      ASSERT_EQ(found.size(), 2 * texts.size());
      for (const auto& [id, values] : found) {
        const size_t text = static_cast<size_t>(id - 1) % texts.size();
        const auto wanted =
            expected.at("models").at(GetParam()).at(name).at(text).get<std::vector<float>>();
        ASSERT_EQ(values.size(), wanted.size());
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_NEAR(values[i], wanted[i], 1e-5) << name << ", text " << text << ", " << i;
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Models, EmbeddingGoldenTest,
                         testing::Values("gpt2", "llama-gqa", "gemma2", "megatron-bert"));

}  // namespace
}  // namespace megatron
