#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/serve/openai_answer.h"
#include "tests/serve/running_server.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::serve {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class OpenAiApiTest : public testing::Test {
 protected:
  json posted(const std::string& path, const json& body, int status = 200) const {
    const httplib::Result result = server_.post(path, body);
    EXPECT_EQ(result->status, status) << body << result->body;
    EXPECT_EQ(result->get_header_value("Content-Type"), "application/json");
    return json::parse(result->body);
  }
  json completed(const json& body) const { return posted("/v1/completions", body); }
  std::vector<json> streamed(const std::string& path, json body) const {
    body["stream"] = true;
    const httplib::Result result = server_.post(path, body);
    EXPECT_EQ(result->status, 200);
    EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
    return chunks_of(result->body);
  }
  // The most probable continuation of a text, and its tokens.
  std::vector<int32_t> greedy_tokens(const std::string& text, int64_t count) const {
    Request request;
    request.prompt = server_.tokenizer->encode(text);
    request.max_new_tokens = count;
    request.sampling.top_k = 1;
    const Generation row = server_.generated(request);
    return {row.tokens.begin() + row.prompt_length, row.tokens.end()};
  }
  std::string greedy(const std::string& text, int64_t count) const {
    return server_.tokenizer->decode(greedy_tokens(text, count));
  }
  RunningServer server_;
};

TEST_F(OpenAiApiTest, ListsTheModel) {
  const json models = json::parse(server_.client()->Get("/v1/models")->body);
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["object"], "model");
}

TEST_F(OpenAiApiTest, CompletesAText) {
  const json got = completed({{"model", "tiny"},
                              {"prompt", "The river"},
                              {"max_tokens", 8},
                              {"temperature", 0},
                              {"ignore_eos", true}});
  EXPECT_EQ(got["object"], "text_completion");
  EXPECT_EQ(got["model"], "tiny");
  EXPECT_THAT(got["id"].get<std::string>(), testing::StartsWith("cmpl-"));
  const json& choice = got["choices"][0];
  EXPECT_EQ(choice["text"], greedy("The river", 8));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["index"], 0);
  EXPECT_TRUE(choice["logprobs"].is_null());
  const size_t prompt = server_.tokenizer->encode("The river").size();
  EXPECT_EQ(got["usage"]["prompt_tokens"], prompt);
  EXPECT_EQ(got["usage"]["completion_tokens"], 8);
  EXPECT_EQ(got["usage"]["total_tokens"], prompt + 8);
}

TEST_F(OpenAiApiTest, PromptsOfAllKinds) {
  const auto ids = server_.tokenizer->encode("The river");
  const json base = {{"max_tokens", 5}, {"temperature", 0}, {"ignore_eos", true}};
  const auto texts = [&](const json& prompt) {
    json body = base;
    body["prompt"] = prompt;
    std::vector<std::string> found;
    const json answer = completed(body);
    for (const json& choice : answer["choices"]) found.push_back(choice["text"]);
    return found;
  };
  const std::string river = greedy("The river", 5);
  EXPECT_THAT(texts(ids), ElementsAre(river));
  EXPECT_THAT(texts({ids, ids}), ElementsAre(river, river));
  EXPECT_THAT(texts({"The river", "A"}), ElementsAre(river, greedy("A", 5)));
}

TEST_F(OpenAiApiTest, AStreamHasTheSameTextInPieces) {
  const json body = {{"prompt", "The river"},
                     {"max_tokens", 20},
                     {"seed", 4},
                     {"stream_options", {{"include_usage", true}}}};
  const json whole = completed(body);
  const std::vector<json> chunks = streamed("/v1/completions", body);
  std::string text;
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    text += chunks[i]["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(chunks[i]["id"], chunks[0]["id"]);
    EXPECT_EQ(chunks[i]["choices"][0]["finish_reason"].is_null(), i + 2 < chunks.size());
    EXPECT_TRUE(chunks[i]["usage"].is_null());
  }
  EXPECT_EQ(text, whole["choices"][0]["text"].get<std::string>());
  EXPECT_TRUE(chunks.back()["choices"].empty());
  EXPECT_EQ(chunks.back()["usage"], whole["usage"]);
  EXPECT_GT(chunks.size(), 3u);
}

TEST_F(OpenAiApiTest, ChoicesDifferAndSeedsRepeat) {
  const json body = {{"prompt", "The"}, {"max_tokens", 12}, {"n", 3}, {"seed", 9}};
  const json got = completed(body);
  ASSERT_EQ(got["choices"].size(), 3u);
  EXPECT_NE(got["choices"][0]["text"], got["choices"][1]["text"]);
  EXPECT_EQ(got["choices"], completed(body)["choices"]);
  const json other = {{"prompt", "The"}, {"max_tokens", 12}};
  EXPECT_NE(completed(other)["choices"], completed(other)["choices"]);
}

TEST_F(OpenAiApiTest, StopsBeforeAStopText) {
  const auto tokens = greedy_tokens("A", 12);
  const std::string text = server_.tokenizer->decode(tokens);
  const std::string stop = server_.tokenizer->decode({&tokens[5], 1});
  ASSERT_NE(text.find(stop), std::string::npos);
  const json body = {{"prompt", "A"},
                     {"max_tokens", 12},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"stop", {stop, "never in a text"}}};
  const json got = completed(body);
  EXPECT_EQ(got["choices"][0]["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(got["choices"][0]["finish_reason"], "stop");
  EXPECT_LT(got["usage"]["completion_tokens"], 12);
  std::string pieces;
  for (const json& chunk : streamed("/v1/completions", body)) {
    pieces += chunk["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(pieces, text.substr(0, text.find(stop)));
}

TEST_F(OpenAiApiTest, AStopTokenIsNoPartOfTheText) {
  const auto tokens = greedy_tokens("The river", 12);
  const size_t first =
      static_cast<size_t>(std::find(tokens.begin(), tokens.end(), tokens[5]) - tokens.begin());
  const json got = completed({{"prompt", "The river"},
                              {"max_tokens", 12},
                              {"temperature", 0},
                              {"ignore_eos", true},
                              {"stop_token_ids", {tokens[5]}}});
  EXPECT_EQ(got["choices"][0]["text"], server_.tokenizer->decode({tokens.data(), first}));
  EXPECT_EQ(got["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(got["usage"]["completion_tokens"], first + 1);
}

TEST_F(OpenAiApiTest, LogprobsOfCompletions) {
  const json got = completed({{"prompt", "The river"},
                              {"max_tokens", 4},
                              {"temperature", 0},
                              {"ignore_eos", true},
                              {"logprobs", 3},
                              {"echo", true}});
  const json& columns = got["choices"][0]["logprobs"];
  auto all = server_.tokenizer->encode("The river");
  const auto drawn = greedy_tokens("The river", 4);
  all.insert(all.end(), drawn.begin(), drawn.end());
  const Score want = score({*server_.model}, all);
  ASSERT_EQ(columns["tokens"].size(), all.size());
  ASSERT_EQ(columns["token_logprobs"].size(), all.size());
  EXPECT_TRUE(columns["token_logprobs"][0].is_null());
  size_t offset = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(columns["tokens"][i], server_.tokenizer->decode({&all[i], 1}));
    EXPECT_EQ(columns["text_offset"][i], offset);
    for (const char c : columns["tokens"][i].get<std::string>()) {
      offset += (c & 0xC0) != 0x80 ? 1 : 0;  // characters, not bytes
    }
    if (i == 0) continue;
    EXPECT_NEAR(columns["token_logprobs"][i], want.log_probabilities[i - 1], 1e-5);
  }
  // Tokens that are parts of characters have the same text and so one entry.
  EXPECT_TRUE(columns["top_logprobs"].back().contains(columns["tokens"].back()));
  EXPECT_EQ(got["choices"][0]["text"], "The river" + greedy("The river", 4));
}

// What evaluation programs read: whether each token of the prompt is the most probable one.
TEST_F(OpenAiApiTest, EchoHasTheMostProbableTokensOfThePrompt) {
  auto ids = server_.tokenizer->encode("The river");
  const auto drawn = greedy_tokens("The river", 4);
  ids.insert(ids.end(), drawn.begin(), drawn.end());
  const Tensor logits = next_token_logits({*server_.model}, ids);
  const Score want = score({*server_.model}, ids);
  for (const int64_t max_tokens : {0, 1}) {
    const json body = {{"prompt", {ids, ids}}, {"temperature", 0}, {"max_tokens", max_tokens},
                       {"ignore_eos", true},   {"logprobs", 5},    {"echo", true}};
    const json choices = completed(body)["choices"];
    ASSERT_EQ(choices.size(), 2u);
    EXPECT_EQ(choices[0]["logprobs"], choices[1]["logprobs"]);
    const json& columns = choices[0]["logprobs"];
    ASSERT_EQ(columns["top_logprobs"].size(), ids.size() + static_cast<size_t>(max_tokens));
    EXPECT_TRUE(columns["top_logprobs"][0].is_null());
    for (size_t i = 1; i < ids.size(); ++i) {
      const double own = columns["token_logprobs"][i];
      EXPECT_NEAR(own, want.log_probabilities[i - 1], 1e-5);
      std::vector<double> values;
      for (const auto& [text, value] : columns["top_logprobs"][i].items()) values.push_back(value);
      const double best = *std::max_element(values.begin(), values.end());
      const Tensor row_of_logits = logits.slice(static_cast<int64_t>(i) - 1, 1);
      const auto row = std::as_const(row_of_logits).span<float>();
      const auto largest = std::max_element(row.begin(), row.begin() + server_.served.vocab_size);
      EXPECT_EQ(best == own, largest - row.begin() == ids[i]) << i;
      EXPECT_NEAR(best - own, *largest - row[static_cast<size_t>(ids[i])], 1e-5);
    }
    // A stream has the same columns, in pieces.
    json pieces = {{"tokens", json::array()},
                   {"token_logprobs", json::array()},
                   {"top_logprobs", json::array()},
                   {"text_offset", json::array()}};
    for (const json& chunk : streamed("/v1/completions", body)) {
      const json& choice = chunk["choices"][0];
      if (choice["index"] != 0) continue;
      for (auto& [name, list] : pieces.items()) {
        for (const json& value : choice["logprobs"][name]) list.push_back(value);
      }
    }
    EXPECT_EQ(pieces, columns);
  }
}

// A prompt is not scored unless it comes back, so that its pages can be those of another one.
TEST_F(OpenAiApiTest, LogprobsWithoutEchoReadNoPromptAnew) {
  const RunningServer server({}, {.engine = {.page_tokens = 4}});
  const json body = {
      {"prompt", "The river was still and deep"}, {"max_tokens", 2}, {"logprobs", 2}};
  server.post("/v1/completions", body);
  const int64_t before = server.service.state().reused_tokens;
  server.post("/v1/completions", body);
  EXPECT_GT(server.service.state().reused_tokens, before);
}

// The text of a frog is four tokens, which have no text of their own.
TEST_F(OpenAiApiTest, TokensOfOneCharacterHaveItsOffsetAndTheirBytes) {
  const std::string prompt = "b\xF0\x9F\x90\xB8 d";
  const auto ids = server_.tokenizer->encode(prompt);
  ASSERT_EQ(ids.size(), 6u);
  const json columns = completed({{"prompt", prompt},
                                  {"max_tokens", 0},
                                  {"logprobs", 0},
                                  {"echo", true}})["choices"][0]["logprobs"];
  EXPECT_EQ(columns["text_offset"], json({0, 1, 1, 1, 1, 2}));

  // The same tokens as an answer, whose last one ends it.
  Completion completion;
  completion.is_chat = true;
  completion.prompts = {{5}};
  completion.prompt_texts = {""};
  completion.logprobs = true;
  CompletionAnswer answer(server_.served, completion);
  const int32_t eod = server_.tokenizer->eod();
  for (const int32_t id : ids) {
    answer.take({0, {.token = id, .log_probability = -1, .top = {{ids[2], -0.5}, {id, -1}}}});
  }
  answer.take({0, {.token = eod, .finish = Finish::kStop}});
  const json choice = answer.whole()["choices"][0];
  EXPECT_EQ(choice["message"]["content"], prompt);
  std::string bytes;
  for (const json& token : choice["logprobs"]["content"]) {
    if (token["bytes"].is_null()) continue;
    for (const json& byte : token["bytes"]) bytes += static_cast<char>(byte.get<int>());
    EXPECT_EQ(token["top_logprobs"][0]["bytes"], json({0x9F}));
    EXPECT_EQ(token["top_logprobs"][1]["bytes"], token["bytes"]);
  }
  EXPECT_EQ(bytes, prompt);
  const json& end = choice["logprobs"]["content"].back();
  EXPECT_EQ(end["token"], "<|endoftext|>");
  EXPECT_TRUE(end["bytes"].is_null());
}

// Tokens of the stop text, and those behind it, have no part in the answer.
TEST_F(OpenAiApiTest, LogprobsEndWhereTheTextDoes) {
  const auto tokens = greedy_tokens("A", 12);
  const std::string text = server_.tokenizer->decode(tokens);
  const std::string stop = server_.tokenizer->decode({&tokens[5], 3});
  const json body = {{"prompt", "A"},      {"max_tokens", 12}, {"temperature", 0},
                     {"ignore_eos", true}, {"stop", stop},     {"logprobs", 1}};
  const json choice = completed(body)["choices"][0];
  EXPECT_EQ(choice["text"], text.substr(0, text.find(stop)));
  const json& columns = choice["logprobs"];
  size_t next = 0;
  std::string joined;
  for (const json& token : columns["tokens"]) joined += token.get<std::string>();
  for (const json& chunk : streamed("/v1/completions", body)) {
    for (const json& token : chunk["choices"][0]["logprobs"]["tokens"]) {
      EXPECT_EQ(token, columns["tokens"][next++]);
    }
  }
  EXPECT_EQ(next, columns["tokens"].size());
  EXPECT_EQ(joined, choice["text"].get<std::string>());
}

TEST_F(OpenAiApiTest, EveryEndTokenEndsAText) {
  const auto tokens = greedy_tokens("The river", 12);
  const RunningServer server({}, {}, [&](ServedModel& model) {
    model.end_tokens = {500, tokens[7], tokens[3]};
  });
  const auto first =
      std::find_first_of(tokens.begin(), tokens.end(), server.served.end_tokens.begin(),
                         server.served.end_tokens.end());
  const std::vector<int32_t> before(tokens.begin(), first);
  const json body = {{"prompt", "The river"}, {"max_tokens", 12}, {"temperature", 0}};
  const json choice = json::parse(server.post("/v1/completions", body)->body)["choices"][0];
  EXPECT_EQ(choice["text"], server.tokenizer->decode(before));
  EXPECT_EQ(choice["finish_reason"], "stop");
  const json api = json::parse(
      server.put(R"({"prompts":["The river"],"tokens_to_generate":12,"top_k":1})")->body);
  std::vector<int32_t> all = server.tokenizer->encode("The river");
  all.insert(all.end(), tokens.begin(), first + 1);
  EXPECT_EQ(api["text"][0], server.tokenizer->decode(all));
  json endless = body;
  endless["ignore_eos"] = true;
  EXPECT_EQ(json::parse(server.post("/v1/completions", endless)->body)["choices"][0]["text"],
            server.tokenizer->decode(tokens));
}

TEST_F(OpenAiApiTest, ReturnsTheMostProbableOfMoreChoices) {
  json body = {{"prompt", {"The river", "A"}}, {"max_tokens", 4}, {"n", 5}, {"seed", 7},
               {"ignore_eos", true},           {"logprobs", 0}};
  const json all = completed(body)["choices"];
  ASSERT_EQ(all.size(), 10u);
  const auto total = [](const json& choice) {
    double sum = 0;
    for (const json& one : choice["logprobs"]["token_logprobs"]) sum += one.get<double>();
    return sum;
  };
  body["n"] = 2;
  body["best_of"] = 5;
  const json best = completed(body);
  ASSERT_EQ(best["choices"].size(), 4u);
  EXPECT_EQ(best["usage"]["completion_tokens"], 40);
  for (const size_t prompt : {0u, 1u}) {
    std::vector<double> sums;
    for (size_t i = 0; i < 5; ++i) sums.push_back(total(all[prompt * 5 + i]));
    std::sort(sums.rbegin(), sums.rend());
    for (size_t i = 0; i < 2; ++i) {
      const json& choice = best["choices"][prompt * 2 + i];
      EXPECT_EQ(choice["index"], prompt * 2 + i);
      EXPECT_DOUBLE_EQ(total(choice), sums[i]);
    }
  }
  body.erase("logprobs");
  EXPECT_EQ(completed(body)["choices"][3]["text"], best["choices"][3]["text"]);
}

TEST_F(OpenAiApiTest, GivesTheResponseAForm) {
  const json schema = {{"type", "object"},
                       {"properties",
                        {{"ok", {{"type", "boolean"}}},
                         {"who", {{"enum", {"cat", "dog"}}}},
                         {"why", {{"type", "string"}, {"maxLength", 3}}}}},
                       {"required", {"ok", "who"}}};
  const json form = {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema}}}};
  const json chat = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                     {"max_tokens", 50},
                     {"response_format", form},
                     {"n", 3},
                     {"temperature", 1.5},
                     {"seed", 3}};
  const json answer = posted("/v1/chat/completions", chat);
  for (const json& choice : answer["choices"]) {
    EXPECT_EQ(choice["finish_reason"], "stop");
    const json value = json::parse(choice["message"]["content"].get<std::string>());
    EXPECT_TRUE(value["ok"].is_boolean()) << value;
    EXPECT_TRUE(value["who"] == "cat" || value["who"] == "dog") << value;
  }
  const auto text = [&](const char* field, const json& value) {
    const json body = {{"prompt", "Hi"}, {"max_tokens", 30}, {"temperature", 0}, {field, value}};
    return completed(body)["choices"][0]["text"].get<std::string>();
  };
  EXPECT_THAT(text("guided_choice", {"yes", "no way"}), testing::AnyOf("yes", "no way"));
  EXPECT_THAT(text("guided_regex", "[0-9]{3}-(ab|\\u00e9){2}"),
              testing::MatchesRegex("[0-9][0-9][0-9]-(ab|\xc3\xa9)(ab|\xc3\xa9)"));
  EXPECT_EQ(text("guided_json", R"({"const": [1, "a"]})"), R"([1, "a"])");
  const std::vector<json> chunks = streamed(
      "/v1/completions", {{"prompt", "Hi"}, {"max_tokens", 9}, {"guided_choice", {"abc"}}});
  std::string all;
  for (const json& chunk : chunks) all += chunk["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(all, "abc");

  const auto refusal = [&](const json& body) {
    return posted("/v1/completions", body, 400)["error"]["param"];
  };
  EXPECT_EQ(refusal({{"prompt", "a"}, {"guided_regex", "("}}), "guided_regex");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"response_format", {{"type", "x"}}}}), "response_format");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"guided_choice", json::array()}}), "guided_choice");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"guided_json", {{"type", "date"}}}}), "guided_json");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"guided_choice", {"a"}}, {"guided_regex", "a"}}),
            "guided_choice");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"guided_choice", {"a"}}, {"ignore_eos", true}}),
            "guided_choice");
}

TEST(SamplingDefaultsTest, AreThoseOfTheModel) {
  const TemporaryDirectory folder;
  EXPECT_EQ(sampling_of_folder(folder.path()).top_k, 0);
  folder.write("generation_config.json", R"({"temperature": 0.5, "top_k": 1, "top_p": null})");
  EXPECT_EQ(sampling_of_folder(folder.path()).temperature, 0.5);
  const RunningServer server(
      {}, {}, [&](ServedModel& model) { model.sampling = sampling_of_folder(folder.path()); });
  const json body = {{"prompt", "The river"}, {"max_tokens", 6}, {"ignore_eos", true}};
  const auto text = [&](json request) {
    return json::parse(server.post("/v1/completions", request)->body)["choices"][0]["text"];
  };
  json greedy = body;
  greedy["temperature"] = 0;
  EXPECT_EQ(text(body), text(greedy));
  folder.write("generation_config.json", R"({"temperature": -1})");
  EXPECT_THAT(message_of<FormatError>([&] { sampling_of_folder(folder.path()); }),
              HasSubstr("temperature -1 must be a number between 0 and 100"));
}

TEST_F(OpenAiApiTest, Chats) {
  const json messages = {{{"role", "system"}, {"content", "Be short."}},
                         {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "Hello"}}}}}};
  const json body = {{"messages", messages}, {"max_tokens", 6},  {"temperature", 0},
                     {"ignore_eos", true},   {"logprobs", true}, {"top_logprobs", 2}};
  const json got = posted("/v1/chat/completions", body);
  EXPECT_EQ(got["object"], "chat.completion");
  const json& choice = got["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], greedy("system: Be short.\nuser: Hello\nassistant:", 6));
  ASSERT_EQ(choice["logprobs"]["content"].size(), 6u);
  const json& token = choice["logprobs"]["content"][0];
  EXPECT_EQ(token["top_logprobs"].size(), 2u);
  EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);
  EXPECT_EQ(token["bytes"].size(), token["token"].get<std::string>().size());

  const std::vector<json> chunks = streamed("/v1/chat/completions", body);
  EXPECT_EQ(chunks[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(chunks[0]["choices"][0]["delta"]["role"], "assistant");
  std::string text;
  for (const json& chunk : chunks) {
    text += chunk["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, choice["message"]["content"].get<std::string>());
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "length");
}

TEST_F(OpenAiApiTest, RefusalsNameTheField) {
  const auto refusal = [&](const json& body, const char* path = "/v1/completions") {
    const json error = posted(path, body, 400)["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    return error["param"].is_null() ? "" : error["param"].get<std::string>();
  };
  EXPECT_EQ(refusal({{"max_tokens", 5}}), "prompt");
  EXPECT_EQ(refusal({{"prompt", json::array()}}), "prompt");
  EXPECT_EQ(refusal({{"prompt", {1, "a"}}}), "prompt");
  EXPECT_EQ(refusal({{"prompt", {502}}}), "prompt");
  EXPECT_EQ(refusal({{"prompt", {-1}}}), "prompt");
  for (const char* field : {"max_tokens", "n", "temperature", "top_p", "logprobs", "seed", "stream",
                            "logit_bias", "min_p", "top_k", "stop_token_ids", "presence_penalty",
                            "repetition_penalty", "stream_options", "echo"}) {
    EXPECT_EQ(refusal({{"prompt", "a"}, {field, "x"}}), field);
  }
  EXPECT_EQ(refusal({{"prompt", "a"}, {"stop", 5}}), "stop");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"top_p", 1.5}}), "top_p");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"n", 129}}), "n");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"suffix", "b"}}), "suffix");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"n", 3}, {"best_of", 2}}), "best_of");
  EXPECT_EQ(refusal({{"prompt", "a"}, {"best_of", 2}, {"stream", true}}), "best_of");
  EXPECT_EQ(refusal({{"messages", "a"}}, "/v1/chat/completions"), "messages");
  EXPECT_EQ(
      refusal({{"messages", {{{"role", "wizard"}, {"content", "a"}}}}}, "/v1/chat/completions"),
      "messages");
  const json too_long = posted("/v1/completions", {{"prompt", "a"}, {"max_tokens", 64}}, 400);
  EXPECT_EQ(too_long["error"]["code"], "context_length_exceeded");
  const json unknown = posted("/v1/completions", {{"prompt", "a"}, {"model", "gpt-9"}}, 404);
  EXPECT_EQ(unknown["error"]["code"], "model_not_found");
  const httplib::Result broken =
      server_.client()->Post("/v1/completions", "{\"prompt\":", "application/json");
  EXPECT_EQ(broken->status, 400);
  EXPECT_EQ(broken->body,
            "{\"error\":{\"message\":\"the body is not valid JSON in UTF-8\",\"type\":"
            "\"invalid_request_error\",\"param\":null,\"code\":null}}\n");
}

TEST_F(OpenAiApiTest, TokenizesAndBack) {
  const auto ids = server_.tokenizer->encode("The river");
  const json got = posted("/tokenize", {{"prompt", "The river"}});
  EXPECT_EQ(got["tokens"], ids);
  EXPECT_EQ(got["count"], ids.size());
  EXPECT_EQ(posted("/detokenize", {{"tokens", ids}})["prompt"], "The river");
  posted("/detokenize", {{"tokens", {502}}}, 400);
  posted("/tokenize", {{"prompt", 5}}, 400);
}

TEST_F(OpenAiApiTest, AnApiKeyIsAskedFor) {
  const RunningServer guarded({.api_key = "secret"});
  const auto client = guarded.client();
  EXPECT_EQ(client->Get("/v1/models")->status, 401);
  EXPECT_EQ(client->Get("/health")->status, 200);
  client->set_default_headers({{"Authorization", "Bearer secreT"}});
  EXPECT_EQ(client->Get("/v1/models")->status, 401);
  client->set_default_headers({{"Authorization", "Bearer secret"}});
  EXPECT_EQ(client->Get("/v1/models")->status, 200);
}

TEST_F(OpenAiApiTest, HealthMetricsAndPage) {
  completed({{"prompt", "The"}, {"max_tokens", 7}, {"ignore_eos", true}});
  const auto client = server_.client();
  EXPECT_EQ(client->Get("/health")->body,
            "{\"status\":\"ok\",\"service\":\"megatron\",\"ready\":true}");
  const std::string metrics = client->Get("/metrics")->body;
  for (const char* line :
       {"vllm:generation_tokens_total{model_name=\"tiny\"} 7\n",
        "vllm:num_requests_running{model_name=\"tiny\"} 0\n",
        "vllm:request_success_total{model_name=\"tiny\",finished_reason=\"length\"} 1\n",
        "vllm:time_to_first_token_seconds_count{model_name=\"tiny\"} 1\n",
        "vllm:time_per_output_token_seconds_count{model_name=\"tiny\"} 6\n",
        "vllm:e2e_request_latency_seconds_bucket{model_name=\"tiny\",le=\"+Inf\"} 1\n",
        "# TYPE vllm:e2e_request_latency_seconds histogram\n"}) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }
  EXPECT_THAT(client->Get("/")->body, HasSubstr("<!DOCTYPE html>"));
  EXPECT_EQ(client->Get("/index.html")->body, client->Get("/")->body);
  EXPECT_EQ(client->Get("/nothing")->status, 404);
}

}  // namespace
}  // namespace megatron::serve
