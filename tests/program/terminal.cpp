#include "tests/program/terminal.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <vector>

namespace megatron::program {
namespace {

constexpr int kSilenceMs = 60'000;

// All bytes until the last process has closed the terminal. False if they stopped coming.
bool read_all(int terminal, std::string& text) {
  std::array<char, 4096> part{};
  pollfd waiting = {.fd = terminal, .events = POLLIN, .revents = 0};
  while (::poll(&waiting, 1, kSilenceMs) > 0) {
    const ssize_t count = ::read(terminal, part.data(), part.size());
    if (count <= 0) return true;  // EIO: closed
    text.append(part.data(), static_cast<size_t>(count));
  }
  return false;
}

}  // namespace

Outcome run_on_terminal(const std::string& command, const Words& words) {
  Words all = {MG_PROGRAM, command};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (const std::string& word : all) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const winsize size = {.ws_row = 24, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (pid < 0) throw std::runtime_error("forkpty failed");
  if (pid == 0) {
    ::setenv("TERM", "xterm", 1);
    ::unsetenv("NO_COLOR");
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  Outcome outcome;
  if (!read_all(terminal, outcome.out)) ::kill(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  ::close(terminal);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

}  // namespace megatron::program
