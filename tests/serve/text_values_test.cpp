#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "megatron/inference/bert.h"
#include "tests/serve/running_server.h"

namespace megatron::serve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::unique_ptr<BertModel> tiny_bert(const Tokenizer& tokenizer) {
  TransformerConfig config = tiny_config(tokenizer);
  config.kind = ModelKind::kBert;
  auto model = std::make_unique<BertModel>(resolved(config), Stream{});
  initialize(*model, 5);
  return model;
}

struct BertServer : ServerOf<BertModel> {
  BertServer()
      : ServerOf(tiny_bert, {}, {}, [](ServedModel& model) { model.pooling = Pooling::kMean; }) {}
};

template <class Server>
json posted(const Server& server, const std::string& path, const json& body, int status = 200) {
  const httplib::Result result = server.post(path, body);
  EXPECT_EQ(result->status, status) << body << result->body;
  return json::parse(result->body);
}

template <class Server>
std::vector<std::vector<float>> embedded(const Server& server, const json& input,
                                         json body = json::object()) {
  body["input"] = input;
  std::vector<std::vector<float>> result;
  const json answer = posted(server, "/v1/embeddings", body);
  for (const json& one : answer["data"]) {
    EXPECT_EQ(one["object"], "embedding");
    EXPECT_EQ(one["index"], result.size());
    result.push_back(one["embedding"]);
  }
  return result;
}

double length_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, float tolerance) {
  EXPECT_THAT(a, testing::Pointwise(testing::FloatNear(tolerance), b));
}

TEST(EmbeddingsTest, OfTextsAndOfTokensOfAGpt) {
  const RunningServer server;
  const auto ids = server.tokenizer->encode("The river");
  const auto one = embedded(server, "The river");
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].size(), 32U);
  EXPECT_NEAR(length_of(one[0]), 1, 1e-6);
  expect_near(embedded(server, ids)[0], one[0], 1e-6F);
  const auto several = embedded(server, {"A bird sings", "The river"});
  ASSERT_EQ(several.size(), 2U);
  expect_near(several[1], one[0], 1e-6F);
  EXPECT_GT(std::abs(several[0][0] - several[1][0]), 1e-4F);
  expect_near(embedded(server, json::array({ids, ids}))[1], one[0], 1e-6F);

  const json whole = posted(server, "/v1/embeddings", {{"input", {"The river", ids}}});
  EXPECT_EQ(whole["object"], "list");
  EXPECT_EQ(whole["model"], "tiny");
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 2 * ids.size());
  EXPECT_EQ(whole["usage"]["total_tokens"], 2 * ids.size());
}

TEST(EmbeddingsTest, FormatsDimensionsAndLength) {
  const RunningServer server;
  const auto raw = embedded(server, "The river", {{"normalize", false}})[0];
  EXPECT_GT(std::abs(length_of(raw) - 1), 0.1);
  const auto some = embedded(server, "The river", {{"dimensions", 8}})[0];
  ASSERT_EQ(some.size(), 8U);
  EXPECT_NEAR(length_of(some), 1, 1e-6);
  EXPECT_NEAR(some[0] / some[7], raw[0] / raw[7], 1e-4);
  const json coded =
      posted(server, "/v1/embeddings", {{"input", "The river"}, {"encoding_format", "base64"}});
  const std::string text = coded["data"][0]["embedding"];
  EXPECT_EQ(text.size(), 172U);  // of 128 bytes
  EXPECT_TRUE(text.ends_with("="));
  std::string bytes;
  uint32_t word = 0;
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < text.size(); ++i) {
    word = word << 6 | static_cast<uint32_t>(text[i] == '=' ? 0 : digits.find(text[i]));
    if (i % 4 != 3) continue;
    for (const uint32_t shift : {16U, 8U, 0U}) bytes += static_cast<char>(word >> shift & 255);
  }
  std::vector<float> values(32);
  std::memcpy(values.data(), bytes.data(), 128);
  expect_near(values, embedded(server, "The river")[0], 1e-6F);
}

TEST(EmbeddingsTest, NamesWhatIsWrong) {
  const RunningServer server;
  const auto refused = [&](const json& body) {
    return posted(server, "/v1/embeddings", body, 400)["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(refused(json::object()), HasSubstr("input is missing"));
  EXPECT_THAT(refused({{"input", json::array()}}), HasSubstr("input must be"));
  EXPECT_THAT(refused({{"input", {100000}}}), HasSubstr("input has the token id 100000"));
  EXPECT_THAT(refused({{"input", "a"}, {"encoding_format", "int8"}}),
              HasSubstr("encoding_format \"int8\" must be float or base64"));
  EXPECT_THAT(refused({{"input", "a"}, {"dimensions", 33}}),
              HasSubstr("dimensions 33 must be an integer between 1 and 32"));
  EXPECT_THAT(refused({{"input", "a"}, {"normalize", 1}}), HasSubstr("normalize must be true"));
  EXPECT_THAT(refused({{"input", std::vector<int>(65, 1)}}), HasSubstr("64 positions"));
  EXPECT_EQ(
      posted(server, "/v1/embeddings", {{"input", "a"}, {"model", "b"}}, 404)["error"]["code"],
      "model_not_found");
}

TEST(EmbeddingsTest, OfABertAreItsMean) {
  const BertServer server;
  const auto ids = server.tokenizer->encode("The river flows");
  const auto found = embedded(server, {"The river flows", "A"}, {{"normalize", false}});
  const auto expected = pooled_states({*server.model}, {.ids = {ids}}, Pooling::kMean);
  expect_near(found[0], expected, 1e-6F);
  EXPECT_THAT(posted(server, "/v1/completions", {{"prompt", "a"}}, 400)["error"]["message"]
                  .get<std::string>(),
              HasSubstr("a BERT, which continues no text"));
  const json scores =
      posted(server, "/v1/score", {{"text_1", "The river"}, {"text_2", {"The river", "A bird"}}});
  EXPECT_NEAR(scores["data"][0]["score"].get<double>(), 1, 1e-6);
  EXPECT_LT(scores["data"][1]["score"].get<double>(), 0.99);
}

TEST(ScoreTest, IsTheLogProbabilityOfTheContinuation) {
  const RunningServer server;
  const json got =
      posted(server, "/v1/score", {{"text_1", "The river "}, {"text_2", {"flows", "is a bird"}}});
  EXPECT_EQ(got["object"], "list");
  int64_t tokens = 0;
  for (size_t i = 0; i < 2; ++i) {
    const std::string text = i == 0 ? "The river flows" : "The river is a bird";
    const json echo =
        posted(server, "/v1/completions",
               {{"prompt", text}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}});
    const json& all = echo["choices"][0]["logprobs"]["token_logprobs"];
    const size_t begin = server.tokenizer->encode("The river").size();
    const json& one = got["data"][i];
    EXPECT_EQ(one["index"], i);
    EXPECT_EQ(one["object"], "score");
    ASSERT_EQ(one["token_logprobs"].size(), all.size() - begin);
    double sum = 0;
    for (size_t k = begin; k < all.size(); ++k) {
      EXPECT_NEAR(one["token_logprobs"][k - begin].get<double>(), all[k].get<double>(), 1e-5);
      sum += all[k].get<double>();
    }
    EXPECT_NEAR(one["score"].get<double>(), sum, 1e-4);
    EXPECT_EQ(one["is_greedy"], false);
    tokens += static_cast<int64_t>(all.size());
  }
  EXPECT_EQ(got["usage"]["total_tokens"], tokens);
  // A greedy continuation whose text has the drawn token again.
  int num_greedy = 0;
  for (const char* prompt :
       {"The river", "A bird", "Stone", "The light on the water", "Old", "z"}) {
    const auto ids = server.tokenizer->encode(prompt);
    Request request = {.prompt = ids, .max_new_tokens = 1};
    request.sampling.top_k = 1;
    const std::vector<int32_t> drawn = server.generated(request).tokens;
    const std::string next = server.tokenizer->decode({&drawn.back(), 1});
    if (server.tokenizer->encode(prompt + next) != drawn) continue;
    const json same = posted(server, "/v1/score", {{"text_1", prompt}, {"text_2", next}});
    EXPECT_EQ(same["data"][0]["is_greedy"], true);
    ++num_greedy;
  }
  EXPECT_GT(num_greedy, 0);
}

TEST(ScoreTest, NamesWhatIsWrong) {
  const RunningServer server;
  const auto refused = [&](const json& body) {
    return posted(server, "/v1/score", body, 400)["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(refused({{"text_1", "a"}}), HasSubstr("text_2 must be a string"));
  EXPECT_THAT(refused({{"text_1", {"a", "b"}}, {"text_2", "c"}}), HasSubstr("text_1 has 2 texts"));
  EXPECT_THAT(refused({{"text_1", "a"}, {"text_2", ""}}), HasSubstr("text_2 has no tokens"));
}

}  // namespace
}  // namespace megatron::serve
