// PUT /api answers with the bytes of Megatron-LM's text generation server.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/serve/running_server.h"

namespace megatron::serve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class MegatronApiTest : public testing::Test {
 protected:
  json answer(const json& body) const {
    const httplib::Result result = server_.put(body.dump());
    EXPECT_EQ(result->status, 200);
    EXPECT_EQ(result->get_header_value("Content-Type"), "application/json");
    return json::parse(result->body);
  }
  std::vector<int32_t> ids(const std::string& text) const {
    return server_.tokenizer->encode(text);
  }
  RunningServer server_;
};

struct Refused {
  const char* body;
  int status;
  const char* text;
};

// A line for every rule, in the order of the checks; most break a later rule, too.
const Refused kRefused[] = {
    {R"({})", 400, "prompts argument required"},
    {R"([])", 400, "prompts argument required"},
    {R"({"max_len":1,"sentences":["a"]})", 400, "prompts argument required"},
    {R"({"prompts":1,"max_len":1,"sentences":["a"]})", 400,
     "max_len is no longer used.  Replace with tokens_to_generate"},
    {R"({"prompts":1,"sentences":["a"]})", 400,
     "sentences is no longer used.  Replace with prompts"},
    {R"({"prompts":"a","tokens_to_generate":-1})", 400, "prompts is not a list of strings"},
    {R"({"prompts":null})", 400, "prompts is not a list of strings"},
    {R"({"prompts":[],"tokens_to_generate":-1})", 400, "prompts is empty"},
    {R"({"prompts":["a",5]})", 400, "prompts is not a list of strings"},
    {R"({"prompts":["a"],"tokens_to_generate":"5","logprobs":1})", 200,
     "tokens_to_generate must be an integer greater than 0"},
    {R"({"prompts":["a"],"tokens_to_generate":5.0})", 200,
     "tokens_to_generate must be an integer greater than 0"},
    {R"({"prompts":["a"],"tokens_to_generate":null})", 200,
     "tokens_to_generate must be an integer greater than 0"},
    {R"({"prompts":["a"],"tokens_to_generate":-1,"logprobs":1})", 200,
     "tokens_to_generate must be an integer greater than or equal to 0"},
    {R"({"prompts":["a"],"logprobs":1,"temperature":0})", 200, "logprobs must be a boolean value"},
    {R"({"prompts":["a"],"tokens_to_generate":0,"temperature":0})", 200,
     "tokens_to_generate=0 implies logprobs should be True"},
    {R"({"prompts":["a"],"tokens_to_generate":false})", 200,
     "tokens_to_generate=0 implies logprobs should be True"},
    {R"({"prompts":["a"],"temperature":"1","top_k":-1})", 200,
     "temperature must be a positive number less than or equal to 100.0"},
    {R"({"prompts":["a"],"temperature":true})", 200,
     "temperature must be a positive number less than or equal to 100.0"},
    {R"({"prompts":["a"],"temperature":0})", 200,
     "temperature must be a positive number less than or equal to 100.0"},
    {R"({"prompts":["a"],"temperature":100.5})", 200,
     "temperature must be a positive number less than or equal to 100.0"},
    {R"({"prompts":["a"],"top_k":1.0,"top_p":2.0})", 200,
     "top_k must be an integer equal to or greater than 0 and less than or equal to 1000"},
    {R"({"prompts":["a"],"top_k":true})", 200,
     "top_k must be an integer equal to or greater than 0 and less than or equal to 1000"},
    {R"({"prompts":["a"],"top_k":-1,"top_p":2.0})", 200,
     "top_k must be equal to or greater than 0 and less than or equal to 1000"},
    {R"({"prompts":["a"],"top_k":1001})", 200,
     "top_k must be equal to or greater than 0 and less than or equal to 1000"},
    {R"({"prompts":["a"],"top_k":5,"top_p":1})", 200,
     "top_p must be a positive float less than or equal to 1.0"},
    {R"({"prompts":["a"],"top_p":"0.5"})", 200,
     "top_p must be a positive float less than or equal to 1.0"},
    {R"({"prompts":["a"],"top_k":5,"top_p":2.0})", 200,
     "cannot set both top-k and top-p samplings."},
    {R"({"prompts":["a"],"top_p":1.5,"top_p_decay":1})", 200,
     "top_p must be less than or equal to 1.0"},
    {R"({"prompts":["a"],"top_p":-0.5})", 200, "top_p must be less than or equal to 1.0"},
    {R"({"prompts":["a"],"top_p_decay":1})", 200,
     "top_p_decay must be a positive float less than or equal to 1.0"},
    {R"({"prompts":["a"],"top_p_decay":2.0,"top_p_bound":1})", 200,
     "top_p_decay cannot be set without top_p"},
    {R"({"prompts":["a"],"top_p":0.5,"top_p_decay":1.5,"top_p_bound":1})", 200,
     "top_p_decay must be less than or equal to 1.0"},
    {R"({"prompts":["a"],"top_p_bound":1,"add_BOS":1})", 200,
     "top_p_bound must be a positive float less than or equal to top_p"},
    {R"({"prompts":["a"],"top_p_bound":0.5})", 200, "top_p_bound cannot be set without top_p"},
    {R"({"prompts":["a"],"top_p":0.5,"top_p_bound":0.6})", 200,
     "top_p_bound must be greater than 0 and less than top_p"},
    {R"({"prompts":["a"],"top_p":0.5,"top_p_bound":0.0})", 200,
     "top_p_bound must be greater than 0 and less than top_p"},
    {R"({"prompts":["a",""],"add_BOS":1})", 200, "add_BOS must be a boolean value"},
    {R"({"prompts":["a",""],"stop_on_eol":1})", 200, "Empty prompts require add_BOS=true"},
    {R"({"prompts":["a"],"stop_on_double_eol":1,"stop_on_eol":1})", 200,
     "stop_on_double_eol must be a boolean value"},
    {R"({"prompts":["a"],"stop_on_eol":"x","prevent_newline_after_colon":0})", 200,
     "stop_on_eol must be a boolean value"},
    {R"({"prompts":["a"],"prevent_newline_after_colon":0,"random_seed":1.5})", 200,
     "prevent_newline_after_colon must be a boolean value"},
    {R"({"prompts":["a"],"random_seed":1.0,"no_log":0})", 200, "random_seed must be integer"},
    {R"({"prompts":["a"],"random_seed":-1,"no_log":0})", 200,
     "random_seed must be a positive integer"},
    {R"({"prompts":["a"],"no_log":0,"beam_width":0})", 200, "no_log must be a boolean value"},
    {R"({"prompts":["a","b"],"beam_width":2.0})", 200, "beam_width must be integer"},
    {R"({"prompts":["a","b"],"beam_width":0})", 200, "beam_width must be an integer > 1"},
    {R"({"prompts":["a","b"],"beam_width":2,"stop_token":"x"})", 200,
     "When doing beam_search, batch size must be 1"},
    {R"({"prompts":["a"],"stop_token":1.5,"length_penalty":1})", 200,
     "stop_token must be an integer"},
    {R"({"prompts":["a"],"length_penalty":1})", 200, "length_penalty must be a float"},
    {R"({"prompts":["a"],"tokens_to_generate":64})", 200,
     "Length of prompt + tokens_to_generate longer than allowed"},
    {R"({"prompts":["a"],"top_k":999,"tokens_to_generate":2})", 200,
     "top_k must be less than the vocabulary size 502"},
};

TEST_F(MegatronApiTest, EveryRefusalHasItsBytes) {
  for (const Refused& one : kRefused) {
    const httplib::Result result = server_.put(one.body);
    EXPECT_EQ(result->status, one.status) << one.body;
    EXPECT_EQ(result->body, "\"" + std::string(one.text) + "\"\n") << one.body;
    EXPECT_EQ(result->get_header_value("Content-Type"), "application/json");
  }
  EXPECT_EQ(server_.service.state().prompt_tokens, 0);
}

TEST_F(MegatronApiTest, StrictStatusIs400) {
  const RunningServer strict({}, {}, [](ServedModel& model) { model.strict_http_status = true; });
  for (const Refused& one : kRefused) {
    const httplib::Result result = strict.put(one.body);
    EXPECT_EQ(result->status, 400) << one.body;
    EXPECT_EQ(result->body, "\"" + std::string(one.text) + "\"\n") << one.body;
  }
}

TEST_F(MegatronApiTest, LimitsOfPrompts) {
  json body = {{"prompts", std::vector<std::string>(129, "a")}};
  httplib::Result result = server_.put(body.dump());
  EXPECT_EQ(result->status, 400);
  EXPECT_EQ(result->body, "\"Maximum number of prompts is 128\"\n");

  const RunningServer small({}, {}, [](ServedModel& model) { model.max_tokens_to_oom = 20; });
  body = {{"prompts", {"a", "a", "a"}}, {"tokens_to_generate", 7}};
  result = small.put(body.dump());
  EXPECT_EQ(result->status, 200);
  EXPECT_EQ(result->body, "\"Too many tokens.  24 is greater than 20\"\n");

  std::string long_text;
  while (ids(long_text).size() < 64) long_text += " a";
  body = {{"prompts", {long_text}}, {"tokens_to_generate", 4}, {"beam_width", 2}};
  result = server_.put(body.dump());
  EXPECT_EQ(result->body, "\"context length + tokens_to_generate too large\"\n");
}

TEST_F(MegatronApiTest, OtherMethodsAndBodies) {
  const auto client = server_.client();
  std::vector<httplib::Result> results;
  results.push_back(client->Get("/api"));
  results.push_back(client->Post("/api", "{}", "application/json"));
  results.push_back(client->Delete("/api"));
  results.push_back(client->Options("/api"));
  for (const httplib::Result& result : results) {
    EXPECT_EQ(result->status, 405);
    EXPECT_EQ(result->get_header_value("Allow"), "PUT");
    EXPECT_EQ(result->body, "{\"message\":\"The method is not allowed for the requested URL.\"}\n");
  }
  httplib::Result result = client->Put("/api", "{\"prompts\":[\"a\"]", "application/json");
  EXPECT_EQ(result->status, 400);
  EXPECT_EQ(result->body,
            "{\"message\":\"The browser (or proxy) sent a request that this server could not "
            "understand.\"}\n");
  result = client->Put("/api", "{\"prompts\":[\"a\"]}", "text/plain");
  EXPECT_EQ(result->status, 415);
  EXPECT_EQ(result->body,
            "{\"message\":\"Did not attempt to load JSON data because the request Content-Type "
            "was not 'application/json'.\"}\n");
  result = client->Put("/api", "{\"prompts\":[\"\xff\"]}", "application/json");  // no UTF-8
  EXPECT_EQ(result->status, 400);
}

TEST_F(MegatronApiTest, AnswersWithWhatTheEngineDraws) {
  const json body = {{"prompts", {"The river and", "A"}}, {"tokens_to_generate", 5}, {"top_k", 1}};
  const httplib::Result result = server_.put(body.dump());
  ASSERT_EQ(result->status, 200);
  // The shorter prompt grows as long as the longer one with its tokens.
  const size_t total = ids("The river and").size() + 5;
  json want = {{"logprobs", nullptr}, {"segments", json::array()}, {"text", json::array()}};
  for (const std::string text : {"The river and", "A"}) {
    Request request;
    request.prompt = ids(text);
    request.stop_tokens = {server_.tokenizer->eod()};
    request.max_new_tokens = static_cast<int64_t>(total - request.prompt.size());
    request.sampling.top_k = 1;
    const std::vector<int32_t> tokens = server_.generated(request).tokens;
    want["text"].push_back(server_.tokenizer->decode(tokens));
    json segments = json::array();
    for (const int32_t id : tokens) segments.push_back(server_.tokenizer->decode({&id, 1}));
    want["segments"].push_back(segments);
  }
  EXPECT_EQ(result->body, want.dump(-1, ' ', true) + "\n");
  EXPECT_THAT(result->body, testing::StartsWith("{\"logprobs\":null,\"segments\":[[\""));
}

TEST_F(MegatronApiTest, LogprobsAreFloatsOfTheScore) {
  const json got = answer({{"prompts", {"The river"}},
                           {"tokens_to_generate", 4},
                           {"logprobs", true},
                           {"random_seed", 5}});
  ASSERT_EQ(got["logprobs"][0].size(), got["segments"][0].size() - 1);
  for (const json& value : got["logprobs"][0]) {
    const auto number = value.get<double>();
    EXPECT_EQ(number, static_cast<double>(static_cast<float>(number)));
  }
  const json scored =
      answer({{"prompts", {"The river"}}, {"tokens_to_generate", 0}, {"logprobs", true}});
  EXPECT_EQ(scored["text"][0], "The river");
  const Score want = score({*server_.model}, ids("The river"));
  ASSERT_EQ(scored["logprobs"][0].size(), want.log_probabilities.size());
  for (size_t i = 0; i < want.log_probabilities.size(); ++i) {
    EXPECT_NEAR(scored["logprobs"][0][i], want.log_probabilities[i], 1e-5);
    EXPECT_NEAR(got["logprobs"][0][i], want.log_probabilities[i], 1e-5);
  }
}

TEST_F(MegatronApiTest, ASeedRepeatsItsDraws) {
  const auto text = [&](const json& seed) {
    json body = {{"prompts", {"The"}}, {"tokens_to_generate", 20}};
    if (!seed.is_null()) body["random_seed"] = seed;
    return answer(body)["text"][0].get<std::string>();
  };
  EXPECT_EQ(text(7), text(7));
  EXPECT_NE(text(7), text(8));
  EXPECT_NE(text(16777216), text(16777217));  // equal in fp32
  EXPECT_NE(text(nullptr), text(nullptr));
}

TEST_F(MegatronApiTest, NonAsciiIsEscaped) {
  const json body = {
      {"prompts", {"caf\xC3\xA9 \xF0\x9F\x90\xB8"}}, {"tokens_to_generate", 1}, {"top_k", 1}};
  const std::string bytes = server_.put(body.dump())->body;
  EXPECT_THAT(bytes, HasSubstr("caf\\u00e9 \\ud83d\\udc38"));
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](char c) { return c > 0; }));
  EXPECT_EQ(bytes.back(), '\n');
}

TEST_F(MegatronApiTest, AddBosPutsTheEndOfADocumentFirst) {
  const json got =
      answer({{"prompts", {""}}, {"tokens_to_generate", 3}, {"top_k", 1}, {"add_BOS", true}});
  const int32_t eod = server_.tokenizer->eod();
  EXPECT_EQ(got["segments"][0][0], server_.tokenizer->decode({&eod, 1}));
}

// A temperature at which some of a hundred texts contain newlines.
TEST_F(MegatronApiTest, NewlinesStop) {
  const json all = answer({{"prompts", std::vector<std::string>(100, "The")},
                           {"tokens_to_generate", 60},
                           {"temperature", 100},
                           {"random_seed", 3},
                           {"stop_on_eol", true}});
  size_t stopped = 0;
  for (const json& segments : all["segments"]) {
    for (size_t i = 1; i + 1 < segments.size(); ++i) EXPECT_NE(segments[i], "\n");
    stopped += segments.back() == "\n" ? 1 : 0;
  }
  EXPECT_GT(stopped, 0u);
}

TEST_F(MegatronApiTest, BeamsAreThoseOfTheEngine) {
  const json got = answer({{"prompts", {"The river"}},
                           {"tokens_to_generate", 6},
                           {"beam_width", 3},
                           {"length_penalty", 0.5}});
  Request request;
  request.prompt = ids("The river");
  request.max_new_tokens = 6;
  request.vocab_size = server_.tokenizer->vocab_size();
  request.stop_tokens = {server_.tokenizer->eod()};
  request.beams = BeamOptions{3, 0.5};
  const std::vector<Hypothesis> want = search_beams({*server_.model}, request);
  ASSERT_EQ(got["text"].size(), want.size());
  EXPECT_FALSE(got.contains("logprobs"));
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got["text"][i], server_.tokenizer->decode(want[i].tokens));
    EXPECT_EQ(got["segments"][i].size(), want[i].tokens.size());
    EXPECT_NEAR(got["scores"][i], want[i].score, 1e-4);
  }
}

}  // namespace
}  // namespace megatron::serve
