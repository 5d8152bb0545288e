#include "annex/corpus/scorer_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "annex/corpus/json_object.h"
#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/core/printable.h"

extern char** environ;

namespace megatron::corpus {
namespace {

using Clock = std::chrono::steady_clock;

bool is_score(const nlohmann::json& score) {
  if (score.is_null()) return true;
  if (!score.is_object()) return false;
  for (const auto& value : score) {
    if (!value.is_number() && !value.is_null()) return false;
  }
  return true;
}

}  // namespace

struct ScorerProcess::Batch {
  std::string to_send;
  size_t sent = 0;
  std::vector<std::string> scores;  // empty: no answer yet
  size_t answered = 0;
};

ScorerProcess::ScorerProcess(std::string command, std::chrono::milliseconds timeout)
    : command_(std::move(command)), timeout_(timeout) {}

ScorerProcess::~ScorerProcess() { stop(); }

void ScorerProcess::start() {
  std::array<int, 2> sockets = {};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    throw IoError(
        fmt::format("the scorer {} cannot be started: {}", command_, std::strerror(errno)));
  }
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, sockets[1], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, sockets[1], STDOUT_FILENO);
  // A group of its own, so that the shell's children end with it.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::string shell = "/bin/sh";
  std::string option = "-c";
  std::array<char*, 4> words = {shell.data(), option.data(), command_.data(), nullptr};
  const int error = ::posix_spawn(&pid_, shell.c_str(), &files, &attributes, words.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  ::close(sockets[1]);
  if (error != 0) {
    ::close(sockets[0]);
    pid_ = -1;
    throw IoError(
        fmt::format("the scorer {} cannot be started: {}", command_, std::strerror(error)));
  }
  socket_ = sockets[0];
  received_.clear();
}

void ScorerProcess::stop() {
  if (pid_ < 0) return;
  ::shutdown(socket_, SHUT_WR);
  static_cast<void>(end());
}

std::string ScorerProcess::end() {
  int status = 0;
  const Clock::time_point begin = Clock::now();
  bool has_ended = false;
  while (!(has_ended = ::waitpid(pid_, &status, WNOHANG) == pid_) &&
         Clock::now() - begin < std::chrono::seconds(1)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(-pid_, SIGKILL);
  if (!has_ended) ::waitpid(pid_, &status, 0);
  ::close(std::exchange(socket_, -1));
  pid_ = -1;
  if (!has_ended) return "was killed";
  return WIFEXITED(status) ? fmt::format("ended with exit code {}", WEXITSTATUS(status))
                           : fmt::format("was killed by signal {}", WTERMSIG(status));
}

void ScorerProcess::take_line(std::string_view line, Batch& batch) {
  const nlohmann::json answer = try_parse_json(line, kJsonLine);
  const bool has_id =
      answer.is_object() && answer.contains("id") && answer["id"].is_number_integer();
  if (!has_id || !answer.contains("score") || !is_score(answer["score"])) {
    problem_ = fmt::format("the scorer {} wrote a line that is no answer: {}", command_,
                           shortened(line, 200));
    return;
  }
  const int64_t id = answer["id"];
  const bool is_known = id >= 0 && id < std::ssize(batch.scores);
  if (!is_known || !batch.scores[static_cast<size_t>(id)].empty()) {
    problem_ = fmt::format("the scorer {} answered id {}, which was not asked", command_, id);
    return;
  }
  // As Python writes it, in the order of the scorer.
  JsonObject object;
  object.parse(line);
  batch.scores[static_cast<size_t>(id)] = *object.json("score");
  ++batch.answered;
}

bool ScorerProcess::exchange(Batch& batch) {
  while (batch.sent < batch.to_send.size()) {
    const ssize_t sent = ::send(socket_, batch.to_send.data() + batch.sent,
                                batch.to_send.size() - batch.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    // If nobody reads any more, what was answered still counts.
    batch.sent = sent < 0 ? batch.to_send.size() : batch.sent + static_cast<size_t>(sent);
  }
  std::array<char, 1 << 16> bytes;
  for (;;) {
    const ssize_t size = ::recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (size == 0) return false;
    received_.append(bytes.data(), static_cast<size_t>(size));
    size_t begin = 0;
    for (size_t end; (end = received_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      take_line(std::string_view(received_).substr(begin, end - begin), batch);
    }
    received_.erase(0, begin);
  }
}

std::vector<std::string> ScorerProcess::score(std::span<const std::string> texts) {
  problem_.clear();
  Batch batch;
  batch.scores.resize(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    batch.to_send += fmt::format("{{\"id\": {}, \"text\": {}}}\n", i, json_text(texts[i]));
  }
  if (pid_ < 0 && !texts.empty()) start();
  Clock::time_point heard = Clock::now();
  while (batch.answered < texts.size()) {
    const size_t answered = batch.answered;
    const bool is_open = exchange(batch);
    if (batch.answered == texts.size()) break;
    if (batch.answered > answered) heard = Clock::now();
    if (!is_open) {
      problem_ = fmt::format("the scorer {} {} before it had answered", command_, end());
      break;
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(timeout_ - (Clock::now() - heard)).count();
    if (left <= 0) {
      ::kill(-pid_, SIGKILL);
      static_cast<void>(end());
      problem_ = fmt::format("the scorer {} did not answer for {} s", command_,
                             static_cast<double>(timeout_.count()) / 1000);
      break;
    }
    const bool is_sending = batch.sent < batch.to_send.size();
    pollfd file = {socket_, static_cast<short>(is_sending ? POLLIN | POLLOUT : POLLIN), 0};
    ::poll(&file, 1, static_cast<int>(left));
  }
  for (std::string& score : batch.scores) {
    if (score.empty()) score = "null";
  }
  return std::move(batch.scores);
}

}  // namespace megatron::corpus
