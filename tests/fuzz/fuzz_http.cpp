// Asks a server of a tiny model as careless and hostile clients do: usage: fuzz_http SECONDS [SEED]
//
// Requests have damaged bytes, or JSON with values of the wrong kind; files of chat templates are
// damaged. An answer, a refusal and the end of a request's time are right; a status of 500, another
// exception, a signal or a server that no longer answers is a failure. Build it with
// MG_SANITIZE=address,undefined to see reads beyond buffers too.
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/serve/chat_template.h"
#include "megatron/serve/megatron_api.h"
#include "megatron/serve/openai_answer.h"
#include "megatron/tokenizers/unicode.h"
#include "tests/fuzz/mutator.h"
#include "tests/serve/plain_socket.h"
#include "tests/serve/running_server.h"
#include "tests/support/temporary_directory.h"

namespace megatron::serve {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

struct Counts {
  int64_t requests = 0;
  int64_t refused = 0;
  int64_t answered = 0;
};

// Requests that are right before they are damaged.
const char* const kApi[] = {
    R"({"prompts":["The river"],"tokens_to_generate":2,"top_k":1,"logprobs":true})",
    R"({"prompts":["a","b"],"tokens_to_generate":1,"beam_width":2,"stop_token":3,"no_log":true})",
    R"({"prompts":["a"],"tokens_to_generate":0,"logprobs":true,"temperature":0.5,"top_p":0.9,
        "top_p_decay":0.1,"top_p_bound":0.1,"add_BOS":true,"random_seed":3})"};
const char* const kCompletions[] = {
    R"({"model":"tiny","prompt":"The river","max_tokens":2,"temperature":0,"logprobs":2})",
    R"({"prompt":["a",[1,2,3]],"max_tokens":1,"n":2,"stop":["x","\n"],"stop_token_ids":[7],"echo":true,
        "logit_bias":{"5":-100},"seed":4,"min_tokens":1,"presence_penalty":1.5,"best_of":2})",
    R"({"prompt":[5,6,7],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true},
        "top_p":0.5,"top_k":3,"min_p":0.1,"repetition_penalty":1.1,"frequency_penalty":-2})"};
const char* const kChats[] = {
    R"({"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"Hi"}],
        "max_tokens":2,"logprobs":true,"top_logprobs":2})",
    R"({"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}],"stream":true,
        "max_completion_tokens":1,"user":"me","response_format":{"type":"text"}})",
    R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":null,"tool_calls":
        [{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}],"tools":
        [{"type":"function","function":{"name":"f","parameters":{}}}],"tool_choice":"auto",
        "chat_template_kwargs":{"x":[1]},"continue_final_message":true,"max_tokens":1})"};

template <size_t n>
std::string one_of(const char* const (&texts)[n], Mutator& mutator) {
  return texts[mutator.below(n)];
}

json odd_value(Mutator& mutator) {
  switch (mutator.below(12)) {
    case 0:
      return nullptr;
    case 1:
      return mutator.below(2) == 0;
    case 2:
      return INT64_MIN;
    case 3:
      return UINT64_MAX;
    case 4:
      return 1e300;
    case 5:
      return -0.5;
    case 6:
      return json::array();
    case 7:
      return json::object();
    case 8:
      return std::string(mutator.below(300), 'a');
    case 9:
      return json::array({json::array({json::object(), 1}), nullptr, "x"});
    case 10:
      return static_cast<int64_t>(mutator.below(200)) - 100;
    default:
      return "\xc3\xa4\xf0\x9f\x98\x80 \\u0000";
  }
}

// Replaces, removes or repeats values somewhere in a tree.
void change(json& value, Mutator& mutator) {
  if (!value.is_structured() || value.empty() || mutator.below(3) == 0) {
    value = odd_value(mutator);
    return;
  }
  auto place = value.begin();
  std::advance(place, static_cast<std::ptrdiff_t>(mutator.below(value.size())));
  switch (mutator.below(6)) {
    case 0:
      value.erase(place);
      return;
    case 1:
      if (value.is_array()) value.insert(value.end(), mutator.below(150), json(*place));
      return;
    default:
      change(*place, mutator);
  }
}

std::string damaged(const std::string& text, Mutator& mutator) {
  if (mutator.below(3) == 0) return mutator.mutated(text);
  json value = json::parse(text);
  for (uint64_t i = 1 + mutator.below(2); i > 0; --i) change(value, mutator);
  return value.dump();
}

// The interfaces without the connection: the same code, thousands of times a second.
void read_completion(RunningServer& server, Mutator& mutator, Counts& counts) {
  const bool is_chat = mutator.below(2) == 0;
  const std::string body =
      damaged(is_chat ? one_of(kChats, mutator) : one_of(kCompletions, mutator), mutator);
  try {
    const Completion completion = completion_of(server.served, body, is_chat);
    const CompletionAnswer answer(server.served, completion);
    for (const Request& request : requests_of(completion)) {
      if (request.prompt.empty()) throw InternalError("an empty prompt was taken: " + body);
    }
    ++counts.answered;
  } catch (const ApiError& error) {
    static_cast<void>(error.body());
    if (error.status >= 500) throw;
    ++counts.refused;
  } catch (const ConfigError&) {
    ++counts.refused;
  }
}

void ask_api(RunningServer& server, Mutator& mutator, Counts& counts) {
  const std::string body = damaged(one_of(kApi, mutator), mutator);
  const Answer answer = megatron_api(
      server.served, body, mutator.below(20) == 0 ? mutator.noise(9) : "application/json");
  if (answer.status >= 500 && answer.status != 503) {
    throw InternalError(fmt::format("status {} for {}: {}", answer.status, body, answer.body));
  }
  ++(answer.body.starts_with("{\"") ? counts.answered : counts.refused);
}

std::string request_text(Mutator& mutator) {
  const uint64_t which = mutator.below(10);
  std::string path = which == 0   ? "/api"
                     : which == 1 ? "/v1/chat/completions"
                     : which == 2 ? "/tokenize"
                     : which == 3 ? "/detokenize"
                     : which == 4 ? "/metrics"
                     : which == 5 ? "/"
                     : which == 6 ? "/v1/embeddings"
                     : which == 7 ? "/v1/score"
                                  : "/v1/completions";
  std::string body = which == 0   ? one_of(kApi, mutator)
                     : which == 1 ? one_of(kChats, mutator)
                     : which == 2 ? R"({"prompt": "The river"})"
                     : which == 3 ? R"({"tokens": [1, 2, 3]})"
                     : which < 6  ? ""
                     : which == 6 ? R"({"input": ["The river", [1, 2]], "dimensions": 8})"
                     : which == 7 ? R"({"text_1": "The river ", "text_2": ["flows", "is"]})"
                                  : one_of(kCompletions, mutator);
  if (!body.empty() && mutator.below(2) == 0) body = damaged(body, mutator);
  const char* const method = which == 0 ? "PUT" : which == 4 || which == 5 ? "GET" : "POST";
  std::string head = fmt::format(
      "{} {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
      method, path, body.size());
  switch (mutator.below(8)) {
    case 0:
      head += "Transfer-Encoding: chunked\r\n";
      break;
    case 1:
      head += "Expect: 100-continue\r\n";
      break;
    case 2:
      head += "Range: bytes=0-3,1-\r\n";
      break;
    case 3:
      head += "Content-Encoding: gzip\r\nAccept-Encoding: br, gzip\r\n";
      break;
    default:
      break;
  }
  std::string text = head + "Connection: close\r\n\r\n" + body;
  return mutator.below(2) == 0 ? mutator.mutated(std::move(text)) : text;
}

// Everything that a client can send.
void ask_over_http(RunningServer& server, Mutator& mutator, Counts& counts) {
  const std::string text = request_text(mutator);
  const PlainSocket socket(server.server->port());
  if (!socket.is_open()) throw InternalError("the server takes no connection");
  socket.send(text);
  const std::string answer = socket.rest();
  if (answer.starts_with("HTTP/1.1 500")) {
    throw InternalError(fmt::format("{}\nwas answered with\n{}", text, answer));
  }
  ++(answer.starts_with("HTTP/1.1 200") ? counts.answered : counts.refused);
}

// The files in which a folder of Hugging Face has its chat template.
void read_template(const std::filesystem::path& folder, const Tokenizer& tokenizer,
                   Mutator& mutator, Counts& counts) {
  const json config = {{"chat_template",
                        "{% for m in messages %}<|im_start|>{{ m['role'] | upper }}"
                        "{{ m.content.split('a', 2)[1:] | join('-') }}{% endfor %}"},
                       {"bos_token", "<s>"}};
  std::ofstream(folder / "tokenizer_config.json") << damaged(config.dump(), mutator);
  std::vector<jinja::Value> messages;
  for (uint64_t i = mutator.below(5); i > 0; --i) {
    constexpr const char* kRoles[] = {"user", "assistant", "system", "tool", ""};
    jinja::Mapping message;
    message.set("role", jinja::Value(std::string(kRoles[mutator.below(5)])));
    message.set("content", jinja::Value(with_valid_utf8(mutator.noise(mutator.below(20)))));
    messages.push_back(jinja::Value::mapping(std::move(message)));
  }
  try {
    jinja::Mapping variables;
    variables.set("messages", jinja::Value::list(std::move(messages)));
    const auto chat_template = ChatTemplate::of_folder(folder, tokenizer);
    if (chat_template) chat_template->prompt(std::move(variables));
    ++counts.answered;
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
    ++counts.refused;
  }
}

int fuzz(double seconds, uint64_t seed) {
  Mutator mutator(seed);
  Counts counts;
  const TemporaryDirectory folder;
  ServerOptions options;
  options.limits.request_time = std::chrono::milliseconds(100);
  options.limits.idle_time = std::chrono::milliseconds(20);
  options.limits.max_body_bytes = 1 << 16;
  RunningServer server(options, {}, [](ServedModel& model) {
    model.request_time = std::chrono::milliseconds(200);  // some requests are right, but long
  });
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  while (elapsed() < seconds) {
    ++counts.requests;
    try {
      const uint64_t which = mutator.below(100);
      if (which < 3) {
        ask_over_http(server, mutator, counts);
      } else if (which < 10) {
        ask_api(server, mutator, counts);
      } else if (which < 15) {
        read_template(folder.path(), *server.tokenizer, mutator, counts);
      } else {
        read_completion(server, mutator, counts);
      }
    } catch (const std::exception& error) {
      fmt::print("request {} of seed {}: {}\n", counts.requests, seed, error.what());
      return 1;
    }
  }
  server.served.request_time = {};  // no request is under way
  const httplib::Result alive =
      server.post("/v1/completions", {{"prompt", "The river"}, {"max_tokens", 2}});
  if (!alive || alive->status != 200) {
    fmt::print("seed {}: the server no longer answers: {}\n", seed,
               alive ? alive->body : httplib::to_string(alive.error()));
    return 1;
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  fmt::print("{} requests, {} refused, {} answered, at most {} MiB; seed {}\n", counts.requests,
             counts.refused, counts.answered, usage.ru_maxrss / 1024, seed);
  return 0;
}

}  // namespace
}  // namespace megatron::serve

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10.0;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device()();
  return megatron::serve::fuzz(seconds, seed);
}
