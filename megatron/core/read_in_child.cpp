#include "megatron/core/read_in_child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <new>
#include <system_error>

#include "megatron/core/error.h"

namespace megatron {
namespace {

struct ChildLimits {
  uint64_t memory_bytes;
  uint64_t processor_seconds;
  unsigned clock_seconds;
};

ChildLimits limits_for(uint64_t file_bytes) {
  return {.memory_bytes = (uint64_t{1} << 30) + 16 * file_bytes,
          .processor_seconds = 5 + file_bytes / 20'000'000,
          .clock_seconds = static_cast<unsigned>(60 + file_bytes / 2'000'000)};
}

// Addresses that this process uses.
uint64_t virtual_bytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

void set_limit(int resource, uint64_t value) {
  struct rlimit limit {};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return;
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < value) return;  // a lower one is in force
  limit.rlim_cur = value;
  ::setrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
}

void apply_limits(const ChildLimits& limits, uint64_t used_bytes) {
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_AS, used_bytes + limits.memory_bytes);
  set_limit(RLIMIT_CPU, limits.processor_seconds);
  ::alarm(limits.clock_seconds);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM, SIGXCPU, SIGTERM,
                           SIGINT, SIGHUP, SIGPIPE}) {
    ::signal(signal, SIG_DFL);
  }
  const int nowhere = ::open("/dev/null", O_RDWR);
  if (nowhere < 0) return;
  for (int stream = 0; stream <= 2; ++stream) ::dup2(nowhere, stream);
}

// The first byte of what the child sends.
enum class Reply : char { kResult = 'r', kError = 'e', kException = 'x', kNoMemory = 'm' };

void send_reply(int pipe, Reply kind, std::string_view text) {
  const std::string all = static_cast<char>(kind) + std::string(text);
  for (size_t at = 0; at < all.size();) {
    const ssize_t written = ::write(pipe, all.data() + at, all.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    at += static_cast<size_t>(written);
  }
}

void read_and_send(int pipe, std::string (*read)(void*), void* argument) {
  try {
    send_reply(pipe, Reply::kResult, read(argument));
  } catch (const Error& error) {
    send_reply(pipe, Reply::kError, error.what());
  } catch (const std::bad_alloc&) {
    send_reply(pipe, Reply::kNoMemory, {});
  } catch (const std::length_error&) {
    send_reply(pipe, Reply::kNoMemory, {});
  } catch (const std::exception& error) {
    send_reply(pipe, Reply::kException, error.what());
  } catch (...) {
    send_reply(pipe, Reply::kException, "an exception without text");
  }
}

std::string read_reply(int pipe) {
  std::string all;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = ::read(pipe, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return all;
    all.append(buffer, static_cast<size_t>(count));
  }
}

std::string end_of_child(int status, const ChildLimits& limits) {
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  switch (signal) {
    case 0:
      return fmt::format("ends with code {}", WEXITSTATUS(status));
    case SIGXCPU:
      return fmt::format("takes more than {} s", limits.processor_seconds);
    case SIGALRM:
      return fmt::format("takes more than {} s", limits.clock_seconds);
    default:
      return fmt::format("crashes ({})", ::strsignal(signal));
  }
}

}  // namespace

std::string read_in_child(const std::filesystem::path& path, std::string_view library,
                          std::string (*read)(void*), void* argument) {
  std::error_code no_size;
  const uint64_t size = std::filesystem::file_size(path, no_size);
  if (no_size) throw IoError(fmt::format("{}: cannot open: {}", path.string(), no_size.message()));
  const ChildLimits limits = limits_for(size);
  const uint64_t used = virtual_bytes();
  int ends[2];
  const bool has_pipe = ::pipe2(ends, O_CLOEXEC) == 0;
  const pid_t child = has_pipe ? ::fork() : -1;
  if (child < 0) {
    const int reason = errno;
    if (has_pipe) {
      ::close(ends[0]);
      ::close(ends[1]);
    }
    throw IoError(fmt::format(
        "{}: no process can be started to read it: {}; check memory and the limit of processes "
        "(ulimit -u)",
        path.string(), std::strerror(reason)));
  }
  if (child == 0) {
    apply_limits(limits, used);
    read_and_send(ends[1], read, argument);
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string reply;
  std::exception_ptr failure;
  try {
    reply = read_reply(ends[0]);
  } catch (...) {
    failure = std::current_exception();
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (failure) std::rethrow_exception(failure);

  const auto fail = [&](const std::string& what) {
    throw FormatError(
        fmt::format("{}: {} {} when it reads this file, which is damaged; delete it, "
                    "so that it is made again",
                    path.string(), library, what));
  };
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || reply.empty())
    fail(end_of_child(status, limits));
  const Reply kind{reply[0]};
  reply.erase(0, 1);
  switch (kind) {
    case Reply::kResult:
      return reply;
    case Reply::kError:
      throw FormatError(reply);
    case Reply::kNoMemory:
      fail(fmt::format("needs more than {} MiB", limits.memory_bytes >> 20));
      break;
    case Reply::kException:
      fail(fmt::format("fails ({})", reply));
      break;
  }
  throw InternalError("read_in_child: the child's reply has an unknown kind");
}

}  // namespace megatron
