#include <gmock/gmock.h>

#include "tests/serve/running_server.h"

namespace megatron::serve {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Tokens = std::vector<int32_t>;

constexpr int32_t kStart = 2;

// A T5 answers with what its decoder writes about the prompt.
class T5ApiTest : public testing::Test {
 protected:
  json posted(const std::string& path, const json& body, int status = 200) const {
    const httplib::Result result = server_.post(path, body);
    EXPECT_EQ(result->status, status) << body << result->body;
    return json::parse(result->body);
  }
  json completed(const json& body) const { return posted("/v1/completions", body); }

  Request request_for(const std::string& prompt, int64_t count) const {
    Request request;
    request.text = server_.tokenizer->encode(prompt);
    request.prompt = {kStart};
    request.max_new_tokens = count;
    request.sampling.top_k = 1;
    return request;
  }
  Tokens greedy_tokens(const std::string& prompt, int64_t count) const {
    const Tokens all = server_.generated(request_for(prompt, count)).tokens;
    return {all.begin() + 1, all.end()};
  }
  std::string greedy(const std::string& prompt, int64_t count) const {
    return server_.tokenizer->decode(greedy_tokens(prompt, count));
  }

  ServerOf<T5Model> server_{
      tiny_t5, {}, {}, [](ServedModel& model) { model.decoder_start = kStart; }};
};

TEST_F(T5ApiTest, CompletesWhatTheDecoderWrites) {
  const json got = completed({{"prompt", {"The river", "A much longer text about a river"}},
                              {"max_tokens", 8},
                              {"temperature", 0}});
  EXPECT_EQ(got["choices"][0]["text"], greedy("The river", 8));
  EXPECT_EQ(got["choices"][1]["text"], greedy("A much longer text about a river", 8));
  EXPECT_NE(got["choices"][0]["text"], got["choices"][1]["text"]);
  EXPECT_EQ(got["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(got["usage"]["completion_tokens"], 16);
  EXPECT_EQ(got["usage"]["prompt_tokens"],
            server_.tokenizer->encode("The river").size() +
                server_.tokenizer->encode("A much longer text about a river").size());
}

TEST_F(T5ApiTest, StreamsAndChats) {
  const json body = {
      {"prompt", "The river"}, {"max_tokens", 6}, {"temperature", 0}, {"stream", true}, {"n", 2}};
  const httplib::Result result = server_.post("/v1/completions", body);
  std::string text[2];
  for (const json& chunk : chunks_of(result->body)) {
    const json& choice = chunk["choices"][0];
    text[choice["index"].get<size_t>()] += choice["text"].get<std::string>();
  }
  EXPECT_EQ(text[0], greedy("The river", 6));
  EXPECT_EQ(text[1], text[0]);

  const json chat =
      posted("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "The river"}}}},
                                      {"max_tokens", 3},
                                      {"temperature", 0}});
  EXPECT_FALSE(chat["choices"][0]["message"]["content"].get<std::string>().empty());
}

TEST_F(T5ApiTest, EndsWithTheDecodersEnd) {
  const Tokens tokens = greedy_tokens("The river", 8);
  const Tokens before(tokens.begin(), std::ranges::find(tokens, tokens[4]));
  ServerOf<T5Model> ending(tiny_t5, {}, {}, [&](ServedModel& model) {
    model.decoder_start = kStart;
    model.end_tokens = {tokens[4]};
  });
  const httplib::Result result = ending.post(
      "/v1/completions", {{"prompt", "The river"}, {"max_tokens", 8}, {"temperature", 0}});
  const json choice = json::parse(result->body)["choices"][0];
  EXPECT_EQ(choice["text"], server_.tokenizer->decode(before));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST_F(T5ApiTest, LogprobsAreThoseOfTheTokens) {
  Request request = request_for("The river", 4);
  request.return_log_probabilities = true;
  const std::vector<double> want = server_.generated(request).log_probabilities;
  const json got =
      completed({{"prompt", "The river"}, {"max_tokens", 4}, {"temperature", 0}, {"logprobs", 2}});
  const auto values = got["choices"][0]["logprobs"]["token_logprobs"].get<std::vector<double>>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(values[i], want[i], 1e-5);
}

TEST_F(T5ApiTest, RefusesWhatOnlyAGptDoes) {
  const httplib::Result api = server_.put(R"({"prompts":["a"],"tokens_to_generate":2})");
  EXPECT_EQ(api->status, 400);
  EXPECT_THAT(api->body, HasSubstr("PUT /api continues prompts, which a T5 does not"));
  const auto refusal = [&](const json& body) {
    return posted("/v1/completions", body, 400)["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(refusal({{"prompt", "a"}, {"echo", true}}), HasSubstr("echo is not available"));
  EXPECT_THAT(refusal({{"prompt", "a"}, {"max_tokens", 64}}),
              HasSubstr("maximum context length is 64 tokens"));
  EXPECT_THAT(refusal({{"prompt", Tokens(257, 5)}}),
              HasSubstr("a text of 257 tokens is longer than the 256 tokens"));
}

TEST_F(T5ApiTest, TokenizesAndCounts) {
  const Tokens ids = server_.tokenizer->encode("The river");
  EXPECT_EQ(posted("/tokenize", {{"prompt", "The river"}})["tokens"].get<Tokens>(), ids);
  EXPECT_EQ(posted("/detokenize", {{"tokens", ids}})["prompt"], "The river");
  completed({{"prompt", "The river"}, {"max_tokens", 5}});
  const std::string metrics = server_.client()->Get("/metrics")->body;
  EXPECT_THAT(metrics, HasSubstr("vllm:prompt_tokens_total{model_name=\"tiny\"} " +
                                 std::to_string(ids.size()) + "\n"));
  EXPECT_THAT(metrics, HasSubstr("vllm:generation_tokens_total{model_name=\"tiny\"} 5\n"));
  EXPECT_EQ(server_.client()->Get("/health")->status, 200);
}

}  // namespace
}  // namespace megatron::serve
