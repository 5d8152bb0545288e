// Many clients at once ask a server of a tiny model: usage: serve_load SECONDS [CLIENTS] [SEED]
//
// Of 1,000 clients 650 ask and read at once, 200 send and read slowly, 100 go away in the middle
// and 50 send rubbish. The server takes fewer connections than there are clients. Every request
// that was sent whole must be answered with the text that the model gives alone, or refused with
// 429 and Retry-After. At the end the server holds nothing, and the process has not grown.
#include <fmt/format.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/fuzz/mutator.h"
#include "tests/serve/plain_socket.h"
#include "tests/serve/running_server.h"

namespace megatron::serve {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr const char* kPrompts[] = {"The river", "and then", "a", "some longer text of many words"};
constexpr size_t kNumPrompts = std::size(kPrompts);

std::string body_of(size_t prompt, bool stream) {
  return json{{"prompt", kPrompts[prompt]},
              {"max_tokens", 8},
              {"temperature", 0},
              {"ignore_eos", true},
              {"stream", stream}}
      .dump();
}

std::string request_text(const std::string& body) {
  return fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
      "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
      body.size(), body);
}

// The text of an answer with status 200; throws if it is not whole.
std::string text_of(const std::string& answer, bool stream) {
  const size_t head = answer.find("\r\n\r\n");
  if (head == std::string::npos) throw InternalError("the answer has no end of its head");
  const auto piece = [](const std::string& object) {
    return json::parse(object).at("choices").at(0).at("text").get<std::string>();
  };
  if (!stream) return piece(answer.substr(head + 4));
  std::string text;
  constexpr std::string_view kData = "data: ";
  for (size_t at = head; (at = answer.find(kData, at)) != std::string::npos;) {
    at += kData.size();
    const std::string object = answer.substr(at, answer.find('\n', at) - at);
    if (object == "[DONE]") return text;
    text += piece(object);
  }
  throw InternalError("the stream has no end");
}

struct Counts {
  std::atomic<int64_t> answered = 0;
  std::atomic<int64_t> refused = 0;
  std::atomic<int64_t> left = 0;
  std::atomic<int64_t> rubbish = 0;
};

class Load {
 public:
  Load(int port, Clock::time_point end) : port_(port), end_(end) {
    for (size_t prompt = 0; prompt < kNumPrompts; ++prompt) {
      const PlainSocket socket(port_);
      socket.send(request_text(body_of(prompt, false)));
      texts_[prompt] = text_of(socket.rest(), false);
    }
  }

  void ask(Mutator& mutator, bool is_slow) {
    const size_t prompt = mutator.below(kNumPrompts);
    const bool stream = mutator.below(2) == 0;
    const PlainSocket socket(port_);
    if (!socket.is_open()) return fail("the server takes no connection");
    const std::string text = request_text(body_of(prompt, stream));
    const size_t step = is_slow ? 16 : text.size();
    for (size_t at = 0; at < text.size(); at += step) {
      if (at > 0) std::this_thread::sleep_for(2ms);
      socket.send(std::string_view(text).substr(at, step));
    }
    check(answer_to(socket, is_slow), prompt, stream);
  }

  // Goes away before, in or after the first bytes of the answer.
  void leave(Mutator& mutator) {
    const PlainSocket socket(port_);
    const std::string text = request_text(body_of(mutator.below(kNumPrompts), true));
    socket.send(std::string_view(text).substr(0, mutator.below(text.size() + 1)));
    if (mutator.below(2) == 0) {
      socket.send(std::string_view(text));
      socket.some();
    }
    ++counts.left;
  }

  void send_rubbish(Mutator& mutator) {
    const PlainSocket socket(port_);
    const std::string text = request_text(body_of(0, false));
    socket.send(mutator.below(2) == 0 ? mutator.noise(mutator.below(5000))
                                      : mutator.mutated(mutator.mutated(text)));
    socket.send("\r\n\r\n");
    if (mutator.below(2) == 0) socket.some();
    ++counts.rubbish;
  }

  void run(uint64_t seed, size_t place) {
    Mutator mutator(seed + place);
    while (Clock::now() < end_) {
      switch (place % 20) {
        case 0:
          send_rubbish(mutator);
          break;
        case 1:
        case 2:
          leave(mutator);
          break;
        default:
          ask(mutator, place % 20 < 7);
      }
    }
  }

  std::vector<std::string> failures() const { return failures_; }
  Counts counts;

 private:
  static std::string answer_to(const PlainSocket& socket, bool is_slow) {
    if (!is_slow) return socket.rest();
    std::string answer;
    for (std::string more; !(more = socket.some(64)).empty(); answer += more) {
      std::this_thread::sleep_for(1ms);
    }
    return answer;
  }

  void check(const std::string& answer, size_t prompt, bool stream) {
    if (answer.starts_with("HTTP/1.1 429")) {
      if (answer.find("Retry-After: ") == std::string::npos) fail("no Retry-After: " + answer);
      ++counts.refused;
      std::this_thread::sleep_for(20ms);
      return;
    }
    if (!answer.starts_with("HTTP/1.1 200")) return fail("answer: \"" + answer + "\"");
    try {
      const std::string text = text_of(answer, stream);
      if (text != texts_[prompt]) {
        return fail(fmt::format("\"{}\" became \"{}\"", texts_[prompt], text));
      }
    } catch (const std::exception& error) {
      return fail(fmt::format("{} in \"{}\"", error.what(), answer));
    }
    ++counts.answered;
  }

  void fail(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (failures_.size() < 10) failures_.push_back(what);
  }

  int port_;
  Clock::time_point end_;
  std::array<std::string, kNumPrompts> texts_;  // that the model continues the prompts with
  std::mutex mutex_;
  std::vector<std::string> failures_;
};

// Bytes of memory that the process has now.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0;
  int64_t pages = 0;
  file >> all >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

int run_load(double seconds, int64_t clients, uint64_t seed) {
  ServerOptions server_options;
  server_options.limits.max_connections = std::max<int64_t>(clients * 3 / 5, 4);
  server_options.limits.request_time = 5s;
  const RunningServer server(server_options, {.max_queue = std::max<int64_t>(clients / 4, 2)});
  const auto start = Clock::now();
  Load load(server.server->port(),
            start + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
  std::vector<std::thread> threads;
  for (int64_t place = 0; place < clients; ++place) {
    threads.emplace_back([&, place] { load.run(seed, static_cast<size_t>(place)); });
  }
  // Memory is as much after a third of the time as it ever should be.
  std::this_thread::sleep_until(start + std::chrono::duration<double>(seconds / 3));
  const int64_t warm = resident_bytes();
  std::this_thread::sleep_until(start + std::chrono::duration<double>(seconds * 0.98));
  const int64_t last = resident_bytes();
  for (std::thread& thread : threads) thread.join();

  std::vector<std::string> failures = load.failures();
  const auto patience = Clock::now() + 30s;
  const auto is_idle = [&] {
    const EngineState state = server.service.state();
    return state.running == 0 && state.waiting == 0;
  };
  while (!is_idle() && Clock::now() < patience) std::this_thread::sleep_for(10ms);
  if (!is_idle()) failures.emplace_back("requests are left over");
  constexpr int64_t kMiB = 1 << 20;
  if (last > warm + warm / 10 + 16 * kMiB) {
    failures.push_back(fmt::format("the process grew from {} to {} MiB", warm / kMiB, last / kMiB));
  }
  if (load.counts.answered == 0) failures.emplace_back("nothing was answered");
  fmt::print(
      "{} clients, {:.0f} s: {} answered, {} refused with 429, {} left, {} sent rubbish; {} MiB "
      "after a third, {} MiB at the end; seed {}\n",
      clients, seconds, load.counts.answered.load(), load.counts.refused.load(),
      load.counts.left.load(), load.counts.rubbish.load(), warm / kMiB, last / kMiB, seed);
  for (const std::string& failure : failures) fmt::print("failed: {}\n", failure);
  return failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace megatron::serve

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10.0;
  const int64_t clients = argc > 2 ? std::atoll(argv[2]) : 1000;
  const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : std::random_device()();
  rlimit files{};  // both ends of each connection are here
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 65536);
  ::setrlimit(RLIMIT_NOFILE, &files);
  return megatron::serve::run_load(seconds, clients, seed);
}
