#include <httplib.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <future>
#include <iterator>

#include "tests/program/free_port.h"
#include "tests/program/inference_test.h"
#include "tests/program/process_tree.h"

namespace megatron::program {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// A server of a model without a tokenizer, for `launch`.
Words serve_words(int ranks, const std::filesystem::path& model, const char* vocab_size, int port) {
  return {"--nproc-per-node",
          std::to_string(ranks),
          "serve",
          "--load",
          model.string(),
          "--device",
          "cpu",
          "--tokenizer-type",
          "NullTokenizer",
          "--vocab-size",
          vocab_size,
          "--port",
          std::to_string(port)};
}

json posted(httplib::Client& client, const std::string& path, const json& body) {
  const httplib::Result answer = client.Post(path, body.dump(), "application/json");
  EXPECT_TRUE(answer && answer->status == 200) << (answer ? answer->body : "");
  return answer ? json::parse(answer->body) : json();
}

json greedy_and_drawn(httplib::Client& client) {
  json all;
  for (const double temperature : {0.0, 0.3}) {
    const json body = {{"prompt", {5, 17, 9, 5, 17}},
                       {"max_tokens", 20},
                       {"seed", 3},
                       {"temperature", temperature}};
    all.push_back(posted(client, "/v1/completions", body)["choices"]);
  }
  return all;
}

// True if the server has verified drafts.
bool has_drafts(httplib::Client& client) {
  const std::string metrics = client.Get("/metrics")->body;
  const size_t at = metrics.find("\nvllm:spec_decode_num_draft_tokens_total{");
  EXPECT_NE(at, std::string::npos);
  const size_t value = metrics.find("} ", at);
  return std::stod(metrics.substr(value + 2)) > 0;
}

class ServeTest : public InferenceTest {
 protected:
  // The flags that serve the golden checkpoint.
  static Words model() {
    return {"--load",       golden("megatron/gpt/ckpt/iter_0000010").string(),
            "--vocab-file", golden("megatron/data/vocab.json").string(),
            "--merge-file", golden("megatron/data/merges.txt").string(),
            "--device",     "cpu"};
  }
  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

constexpr const char* kBody =
    R"({"prompts":["The river"],"tokens_to_generate":5,"top_k":1,"logprobs":true})";

TEST_F(ServeTest, AnswersUntilSigterm) {
  const int port = free_port();
  // With flags of Megatron-LM's script that each request says.
  Running server("serve", with(model(), {"--port", std::to_string(port), "--out-seq-length", "32",
                                         "--temperature", "1.0", "--top_p", "0.9"}));
  ASSERT_TRUE(server.wait_for("serving iter_0000010 at http://127.0.0.1:" + std::to_string(port)));
  httplib::Client client("127.0.0.1", port);
  const httplib::Result answer = client.Put("/api", kBody, "application/json");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  const Outcome generated = run(
      "generate", with(model(), {"--prompt", "The river", "--max-new-tokens", "5", "--greedy"}));
  EXPECT_EQ(json::parse(answer->body)["text"][0].get<std::string>() + "\n", generated.out);

  const Outcome asked = run("text-generation-cli", {"localhost:" + std::to_string(port)},
                            {.input = "The river\n3\n"});
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_THAT(asked.out, testing::StartsWith("Enter prompt: Enter number of tokens to generate: "
                                             "Megatron Response: \nThe river"));
  const Outcome talked = run("chat", {"localhost:" + std::to_string(port), "--max-tokens", "4"},
                             {.input = "Hello\n/quit\n"});
  EXPECT_EQ(talked.exit_code, 0) << talked.err;
  EXPECT_THAT(talked.out, testing::StartsWith("> "));

  server.send(SIGTERM);
  const Outcome outcome = server.finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

// Tensor and pipeline parallel ranks answer as one does, and end with it.
TEST_F(ServeTest, RanksAnswerAsOne) {
  std::string want;
  for (const int ranks : {1, 4}) {
    const int port = free_port();
    Words words = {"--nproc-per-node", std::to_string(ranks), "serve"};
    words = with(with(words, model()), {"--port", std::to_string(port)});
    if (ranks == 4) {
      words =
          with(words, {"--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"});
    }
    Running server("launch", words);
    ASSERT_TRUE(server.wait_for("serving iter_0000010"));
    httplib::Client client("127.0.0.1", port);
    const httplib::Result answer = client.Put("/api", kBody, "application/json");
    ASSERT_TRUE(answer);
    json got = json::parse(answer->body);
    for (json& value : got["logprobs"][0]) value = std::round(value.get<double>() * 1e4) / 1e4;
    if (want.empty()) want = got.dump();
    EXPECT_EQ(got.dump(), want);
    server.send(SIGTERM);
    EXPECT_EQ(server.finish().exit_code, 0);
  }
}

// A T5 writes what generate() lets it write, on one rank and on stages of tensor-parallel ranks.
TEST_F(ServeTest, AT5AnswersOnAnyRanks) {
  const Words t5 = {"--load",           golden("hf/t5-v1.0").string(),
                    "--device",         "cpu",
                    "--tokenizer-type", "NullTokenizer",
                    "--vocab-size",     "130"};
  const json want = json::parse(run("generate", with(t5, {"--prompt", "5 17 60 1", "--seed", "3",
                                                          "--max-new-tokens", "6", "--json"}))
                                    .out);
  for (const int ranks : {1, 4}) {
    const int port = free_port();
    Words words = {"--nproc-per-node", std::to_string(ranks), "serve"};
    words = with(with(words, t5), {"--port", std::to_string(port), "--cache-tokens", "256"});
    if (ranks == 4) {
      words = with(words, {"--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size",
                           "2", "--pipeline-model-parallel-split-rank", "1"});
    }
    Running server("launch", words);
    ASSERT_TRUE(server.wait_for("serving t5-v1.0"));
    httplib::Client client("127.0.0.1", port);
    const json body = {{"prompt", {5, 17, 60, 1}}, {"max_tokens", 6}, {"seed", 3}};
    const httplib::Result answer = client.Post("/v1/completions", body.dump(), "application/json");
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 200) << answer->body;
    EXPECT_EQ(json::parse(answer->body)["choices"][0]["text"], want.at("text"));
    // Relative positions have no end, but the cache has.
    const json models = json::parse(client.Get("/v1/models")->body);
    EXPECT_EQ(models["data"][0]["max_model_len"], 256);
    server.send(SIGTERM);
    EXPECT_EQ(server.finish().exit_code, 0);
  }
}

// The most probable tokens of an echoed prompt are those of one rank, on any.
TEST_F(ServeTest, RanksEchoAsOne) {
  json want;
  for (const int ranks : {1, 2}) {
    const int port = free_port();
    Words words = {"--nproc-per-node", std::to_string(ranks), "serve"};
    words = with(with(words, model()), {"--port", std::to_string(port)});
    if (ranks == 2) words = with(words, {"--tensor-model-parallel-size", "2"});
    Running server("launch", words);
    ASSERT_TRUE(server.wait_for("serving iter_0000010"));
    httplib::Client client("127.0.0.1", port);
    const json body = {{"prompt", "The river"}, {"max_tokens", 0}, {"logprobs", 3}, {"echo", true}};
    const httplib::Result answer = client.Post("/v1/completions", body.dump(), "application/json");
    ASSERT_TRUE(answer);
    json got = json::parse(answer->body)["choices"][0]["logprobs"];
    for (json& top : got["top_logprobs"]) {
      for (json& value : top) value = std::round(value.get<double>() * 1e4) / 1e4;
    }
    got.erase("token_logprobs");
    EXPECT_GE(got["top_logprobs"].back().size(), 3u);
    if (want.is_null()) want = got;
    EXPECT_EQ(got, want);
    server.send(SIGTERM);
    EXPECT_EQ(server.finish().exit_code, 0);
  }
}

// Embeddings of a BERT and of a GPT, and texts with drafts, are those of one rank without drafts.
TEST_F(ServeTest, EmbedsAndDraftsOnAnyRanks) {
  for (const char* name : {"megatron-bert", "llama-gqa"}) {
    const bool is_gpt = name == std::string("llama-gqa");
    json embeddings, texts;
    for (const int ranks : {1, 4}) {
      const int port = free_port();
      Words words = serve_words(ranks, golden("hf") / name, "130", port);
      if (ranks == 4) {
        words = with(words, {"--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size",
                             "2", "--decoder-first-pipeline-num-layers", "1"});
        if (is_gpt) words = with(words, {"--num-speculative-tokens", "4"});
      }
      Running server("launch", words);
      ASSERT_TRUE(server.wait_for("serving "));
      httplib::Client client("127.0.0.1", port);
      const json got =
          posted(client, "/v1/embeddings", {{"input", {{5, 17, 9}, {4, 4, 1, 2, 3}, {7}}}});
      ASSERT_EQ(got["data"].size(), 3U);
      if (ranks == 1) embeddings = got;
      for (size_t text = 0; text < 3; ++text) {
        const auto values = got["data"][text]["embedding"].get<std::vector<double>>();
        const auto want = embeddings["data"][text]["embedding"].get<std::vector<double>>();
        EXPECT_THAT(values, testing::Pointwise(testing::DoubleNear(1e-5), want));
      }
      if (is_gpt) {
        const json all = greedy_and_drawn(client);
        if (ranks == 1) texts = all;
        EXPECT_EQ(all, texts);
        EXPECT_EQ(has_drafts(client), ranks == 4);
      }
      server.send(SIGTERM);
      EXPECT_EQ(server.finish().exit_code, 0);
    }
  }
}

// Texts with drafts of multi-token prediction, on two ranks, are those of one rank without.
TEST_F(ServeTest, DraftsByMultiTokenPrediction) {
  json texts;
  for (const int ranks : {1, 2}) {
    const int port = free_port();
    Words words = serve_words(ranks, golden("quantized/fp8-blocks"), "66", port);
    if (ranks == 2) {
      words = with(words, {"--tensor-model-parallel-size", "2", "--num-speculative-tokens", "1",
                           "--speculative-method", "mtp"});
    }
    Running server("launch", words);
    ASSERT_TRUE(server.wait_for("serving "));
    httplib::Client client("127.0.0.1", port);
    const json all = greedy_and_drawn(client);
    if (ranks == 1) texts = all;
    EXPECT_EQ(all, texts);
    EXPECT_EQ(has_drafts(client), ranks == 2);
    server.send(SIGTERM);
    EXPECT_EQ(server.finish().exit_code, 0);
  }
}

// A rank that is lost takes the server with it. Clients get an answer that says so, and the job's
// errors name the rank.
TEST_F(ServeTest, AKilledRankIsNamedAndItsClientsAreTold) {
  const int port = free_port();
  const Words job = {"--nproc-per-node", "2", "--ranks", "processes", "serve"};
  Running server("launch", with(with(job, model()), {"--port", std::to_string(port),
                                                     "--tensor-model-parallel-size", "2"}));
  ASSERT_TRUE(server.wait_for("serving iter_0000010"));
  const std::string body =
      json{{"prompt", "a"}, {"max_tokens", 20}, {"n", 32}, {"ignore_eos", true}}.dump();
  std::promise<void> answered;
  std::future<httplib::Result> last = std::async(std::launch::async, [&] {
    httplib::Client client("127.0.0.1", port);
    client.set_read_timeout(30);
    httplib::Result answer = client.Post("/v1/completions", body, "application/json");
    EXPECT_TRUE(answer && answer->status == 200);
    answered.set_value();
    while (answer && answer->status == 200) {
      answer = client.Post("/v1/completions", body, "application/json");
    }
    return answer;
  });
  answered.get_future().wait();
  const double before = server.seconds();
  ASSERT_EQ(::kill(descendant_with(server.pid(), "RANK=1"), SIGKILL), 0);
  const httplib::Result answer = last.get();
  const Outcome outcome = server.finish();
  ASSERT_TRUE(answer) << to_string(answer.error());
  EXPECT_EQ(answer->status, 500);
  EXPECT_THAT(answer->body, testing::AllOf(HasSubstr("the server has failed"),
                                           HasSubstr("\"type\":\"server_error\"")));
  EXPECT_LT(outcome.seconds - before, 10);
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 on "));
  EXPECT_THAT(outcome.err, HasSubstr("killed by signal 9 (SIGKILL)"));
}

TEST_F(ServeTest, RefusesWhatCannotBe) {
  const Outcome outcome =
      run("serve", with(model(), {"--port", "70000", "--max-queue", "0", "--chat-template", "x",
                                  "--num-speculative-tokens", "65", "--prompt-lookup-min", "5",
                                  "--tool-call-parser", "y"}));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--port 70000 must be between 0 and 65535"));
  EXPECT_THAT(outcome.err, HasSubstr("--max-queue 0 must be 1 or more"));
  EXPECT_THAT(outcome.err, HasSubstr("--chat-template x is not known; use auto, chatml"));
  EXPECT_THAT(outcome.err, HasSubstr("--num-speculative-tokens 65 must be 64 or less"));
  EXPECT_THAT(outcome.err, HasSubstr("--prompt-lookup-max 4 must be 5 or more"));
  EXPECT_THAT(outcome.err, HasSubstr("--tool-call-parser y is not known; use auto, none, hermes"));
  const Words t5 = {"--load",           golden("hf/t5-v1.0").string(),
                    "--tokenizer-type", "NullTokenizer",
                    "--vocab-size",     "130",
                    "--device",         "cpu"};
  EXPECT_THAT(run("serve", with(t5, {"--num-speculative-tokens", "2"})).err,
              HasSubstr("--num-speculative-tokens 2 is for a GPT, and the model is a T5"));
  EXPECT_THAT(run("serve", with(model(), {"--num-speculative-tokens", "2", "--speculative-method",
                                          "mtp", "--prompt-lookup-max", "5"}))
                  .err,
              testing::AllOf(HasSubstr("--speculative-method mtp needs a model with multi-token "
                                       "prediction (--mtp-num-layers)"),
                             HasSubstr("--prompt-lookup-min have no effect without")));
  EXPECT_THAT(run("serve", with(t5, {"--embedding-pooling", "cls"})).err,
              HasSubstr("--embedding-pooling is for a GPT or a BERT, and the model is a T5"));
  EXPECT_THAT(run("serve", with(model(), {"--embedding-pooling", "cls"})).err,
              HasSubstr("--embedding-pooling cls is for a BERT, whose first token is [CLS]"));
  const Outcome lonely = run("text-generation-cli", {"localhost:1"}, {.input = "a\n1\n"});
  EXPECT_EQ(lonely.exit_code, 2);
  EXPECT_THAT(lonely.err, HasSubstr("localhost:1: "));
}

TEST_F(ServeTest, BeamsStopsAndSamplesOfGenerate) {
  const Words river = with(model(), {"--prompt", "The river", "--max-new-tokens", "8", "--json"});
  const json best = json::parse(run("generate", with(river, {"--num-beams", "4"})).out);
  const json greedy = json::parse(run("generate", with(river, {"--num-beams", "1"})).out);
  EXPECT_GE(best.at("score").get<double>(), greedy.at("score").get<double>());

  const std::string text = json::parse(run("generate", with(river, {"--greedy"})).out).at("text");
  const std::string stop = text.substr(text.size() - 3);
  const Outcome cut = run("generate", with(river, {"--greedy", "--stop", stop, "never there"}));
  EXPECT_EQ(json::parse(cut.out).at("text"), text.substr(0, text.find(stop, 9)));
  EXPECT_EQ(json::parse(cut.out).at("finish_reason"), "stop");

  // Ids and log-probabilities end where the text does, on any ranks and for beams.
  const json whole = json::parse(run("generate", with(river, {"--greedy", "--logprobs"})).out);
  const std::string inner = text.substr(12, 2);
  const Words stopping = with(river, {"--greedy", "--logprobs", "--stop", inner});
  const json one = json::parse(run("generate", stopping).out);
  const Outcome parallel = run(
      "launch",
      with({"--nproc-per-node", "2", "generate", "--tensor-model-parallel-size", "2"}, stopping));
  EXPECT_EQ(parallel.exit_code, 0) << parallel.err;
  EXPECT_EQ(json::parse(parallel.out).at("ids"), one.at("ids"));
  const auto ids = one.at("ids").get<Ids>();
  const auto all = whole.at("ids").get<Ids>();
  ASSERT_LT(ids.size(), all.size());
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), all.begin()));
  EXPECT_EQ(one.at("logprobs").size(), ids.size() - 1);
  EXPECT_EQ(one.at("text"), text.substr(0, text.find(inner, 9)));
  const json beam =
      json::parse(run("generate", with(river, {"--num-beams", "1", "--stop", inner})).out);
  EXPECT_EQ(beam.at("ids"), one.at("ids"));
  EXPECT_EQ(beam.at("text"), one.at("text"));

  const std::string file = path("samples.json").string();
  const Outcome samples =
      run("generate", with(model(), {"--num-samples", "3", "--genfile", file, "--out-seq-length",
                                     "9", "--num-layers", "2", "--micro-batch-size", "2"}));
  EXPECT_EQ(samples.exit_code, 0) << samples.err;
  EXPECT_THAT(samples.err, HasSubstr("flags of training have no effect here"));
  EXPECT_THAT(samples.err, HasSubstr("--num-layers, --micro-batch-size"));
  std::ifstream in(file);
  int lines = 0;
  for (std::string line; std::getline(in, line); ++lines) {
    const json sample = json::parse(line);
    EXPECT_LE(sample.at("length").get<int>(), 9);
    EXPECT_TRUE(sample.at("finished"));
    EXPECT_TRUE(sample.at("text").is_string());
  }
  EXPECT_EQ(lines, 3);

  const std::string prompts = path("prompts.txt").string();
  std::ofstream(prompts) << "The river\n\nand then we stop\n";
  const Outcome filed =
      run("generate",
          with(model(), {"--sample-input-file", prompts, "--greedy", "--out-seq-length", "4"}));
  EXPECT_EQ(filed.exit_code, 0) << filed.err;
  EXPECT_THAT(filed.err, HasSubstr("prompts.txt:2: left out: 0 tokens"));
  std::ifstream out(prompts + ".out");
  const std::string blocks((std::istreambuf_iterator<char>(out)), {});
  EXPECT_THAT(blocks, testing::StartsWith("\nContext:The river\n\nMegatron-LM:"));
  EXPECT_THAT(blocks, HasSubstr("\nContext:and then we stop\n\nMegatron-LM:"));
}

}  // namespace
}  // namespace megatron::program
