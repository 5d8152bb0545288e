#include "megatron/launch/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/exit_code.h"
#include "megatron/core/host_name.h"
#include "megatron/core/log.h"

namespace megatron::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kErrorMark = "error: ";
constexpr auto kGrace = std::chrono::seconds(5);           // for the others, after one has failed
constexpr auto kGraceElsewhere = std::chrono::seconds(1);  // for all, after one of another host has
constexpr int kLookMs = 100;
constexpr size_t kMaxLine = size_t{64} << 10;  // longer ones are passed on in pieces
constexpr size_t kMaxErrors = 1000;            // of one process; more are dropped

void check(bool holds, const char* call) {
  if (!holds) throw Error(fmt::format("launch: {}: {}", call, std::strerror(errno)));
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }

 private:
  int number_;
};

// While it lives, terminating signals and SIGCHLD are read through a descriptor (signalfd).
class SignalReader {
 public:
  SignalReader() : descriptor_(-1) {
    sigset_t wanted;
    ::sigemptyset(&wanted);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) ::sigaddset(&wanted, signal);
    ::pthread_sigmask(SIG_BLOCK, &wanted, &before_);
    descriptor_ = Descriptor(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
    check(descriptor_.get() >= 0, "signalfd");
  }
  ~SignalReader() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;

  int descriptor() const { return descriptor_.get(); }
  const sigset_t& mask_before() const { return before_; }
  std::optional<signalfd_siginfo> next() const {
    signalfd_siginfo info{};
    if (::read(descriptor_.get(), &info, sizeof(info)) != sizeof(info)) return {};
    return info;
  }

 private:
  sigset_t before_{};
  Descriptor descriptor_;
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& added) {
  // Removes an outer launcher's variables: they describe this process, not its children.
  constexpr std::string_view kOuter[] = {"OMPI_COMM_WORLD_", "PMI_", "PMIX_"};
  std::vector<std::string> list;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view entry = *each;
    bool is_kept = !added.contains(std::string(entry.substr(0, entry.find('='))));
    for (const std::string_view outer : kOuter)
      is_kept &= added.empty() || !entry.starts_with(outer);
    if (is_kept) list.emplace_back(entry);
  }
  for (const auto& [name, value] : added) list.push_back(fmt::format("{}={}", name, value));
  return list;
}

class Job {
 public:
  explicit Job(const std::vector<JobProcess>& processes);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  JobOutcome run(const std::function<bool()>& has_failed_elsewhere);

 private:
  struct Child {
    const JobProcess* process;
    pid_t pid;
    Descriptor errors;              // its standard error
    std::string line;               // not yet complete
    std::vector<std::string> said;  // its error lines
    bool has_ended = false;
  };

  void start(const JobProcess& process);
  void wait_for_news();
  void read(Child& child) const;
  void take_line(Child& child, std::string line) const;
  void reap();
  void judge(const Child& child, int status);
  // Prints lines not printed before; the first is the reason of the outcome.
  void report(const Child& child, const std::vector<std::string>& errors);
  void name_the_silent() const;
  void fail(int exit_code);
  void send(int signal) const;

  SignalReader signals_;
  std::vector<Child> children_;
  std::set<std::string> printed_;
  std::optional<Clock::time_point> failed_at_;
  std::optional<Clock::time_point> failed_elsewhere_at_;
  bool is_killing_ = false;
  const Child* released_ = nullptr;  // the first that ended because of another one
  JobOutcome outcome_;
};

Job::Job(const std::vector<JobProcess>& processes) {
  children_.reserve(processes.size());
  for (const JobProcess& process : processes) start(process);
}

Job::~Job() {
  send(SIGKILL);
  for (const Child& child : children_) {
    if (!child.has_ended) ::waitpid(child.pid, nullptr, 0);
  }
}

void Job::start(const JobProcess& process) {
  std::array<int, 2> ends{};
  check(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe");
  Descriptor read_end(ends[0]);
  const Descriptor write_end(ends[1]);
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  const std::vector<std::string> environment = environment_with(process.environment);
  const std::vector<char*> argv = pointers(process.words);
  const std::vector<char*> envp = pointers(environment);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    throw CommError(
        fmt::format("launch: the process of {} cannot be started: {}; start fewer ranks, or raise "
                    "the limit of processes (ulimit -u)",
                    process.name, std::strerror(errno)));
  }
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kExitFault);  // it has died already
    ::pthread_sigmask(SIG_SETMASK, &signals_.mask_before(), nullptr);
    ::signal(SIGPIPE, SIG_DFL);
    ::dup2(write_end.get(), STDERR_FILENO);
    ::execvpe(argv[0], argv.data(), envp.data());
    ::dprintf(STDERR_FILENO, "error: %s: %s\n", argv[0], std::strerror(errno));
    ::_exit(127);
  }
  children_.push_back({&process, pid, std::move(read_end), {}, {}});
}

void Job::send(int signal) const {
  for (const Child& child : children_) {
    if (!child.has_ended) ::kill(child.pid, signal);
  }
}

void Job::wait_for_news() {
  std::vector<pollfd> requests = {{signals_.descriptor(), POLLIN, 0}};
  for (const Child& child : children_) {
    requests.push_back({child.has_ended ? -1 : child.errors.get(), POLLIN, 0});
  }
  ::poll(requests.data(), requests.size(), kLookMs);
  while (const std::optional<signalfd_siginfo> info = signals_.next()) {
    const auto signal = static_cast<int>(info->ssi_signo);
    if (signal == SIGCHLD) continue;
    outcome_.is_final = true;
    if (info->ssi_code != SI_KERNEL) send(signal);  // a terminal tells the children too
  }
}

void Job::read(Child& child) const {
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t count = ::read(child.errors.get(), buffer.data(), buffer.size());
    if (count <= 0) return;
    child.line.append(buffer.data(), static_cast<size_t>(count));
    for (size_t end = 0; (end = child.line.find('\n')) != std::string::npos;) {
      take_line(child, child.line.substr(0, end));
      child.line.erase(0, end + 1);
    }
    if (child.line.size() >= kMaxLine) take_line(child, std::exchange(child.line, {}));
  }
}

void Job::take_line(Child& child, std::string line) const {
  if (line.starts_with(kErrorMark)) {
    line.erase(0, kErrorMark.size());
    if (child.said.size() < kMaxErrors) child.said.push_back(std::move(line));
    return;
  }
  const bool is_first = &child == &children_.front();
  const std::string text =
      fmt::format("{}{}\n", is_first ? "" : fmt::format("[{}] ", child.process->name), line);
  // Failing to write standard error must not end the job.
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
}

void Job::report(const Child& child, const std::vector<std::string>& errors) {
  for (const std::string& error : errors) {
    const std::string speaker = child.process->speaker + ": ";
    const std::string text = error.starts_with(speaker) ? error.substr(speaker.size()) : error;
    if (!printed_.insert(text).second) continue;
    print_error(error);
    if (outcome_.reason.empty()) outcome_.reason = error;
  }
}

// A hanging rank does not notice that another has failed. The rank that timed out may have waited
// for a third one, which itself waited for the hanging one.
void Job::name_the_silent() const {
  for (const Child& child : children_) {
    if (child.has_ended) continue;
    warn(fmt::format(
        "{} on {} (process {}) did not end within {} s of the failure and is killed; if a rank "
        "hung, it is this one",
        child.process->name, host_name(), child.pid, kGrace.count()));
  }
}

void Job::fail(int exit_code) {
  if (!failed_at_) failed_at_ = Clock::now();
  if (outcome_.exit_code == 0) outcome_.exit_code = exit_code;
}

void Job::judge(const Child& child, int status) {
  if (WIFEXITED(status)) {
    const int code = WEXITSTATUS(status);
    if (code == 0) return;
    if (code != kExitReleased) {
      report(child, child.said);
      return fail(code);
    }
    if (released_ == nullptr) released_ = &child;
    if (!failed_at_) failed_at_ = Clock::now();
    return;
  }
  if (is_killing_) return;
  const int signal = WTERMSIG(status);
  report(child, child.said);
  if (!outcome_.is_final) {
    report(child,
           {fmt::format("{} on {} (process {}) was killed by signal {} (SIG{}){}",
                        child.process->name, host_name(), child.pid, signal, ::sigabbrev_np(signal),
                        signal == SIGKILL ? "; the system does so when memory runs out" : "")});
  }
  fail(128 + signal);
}

void Job::reap() {
  for (Child& child : children_) {
    int status = 0;
    if (child.has_ended) continue;
    read(child);
    if (::waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    read(child);
    if (!child.line.empty()) take_line(child, std::exchange(child.line, {}));
    child.has_ended = true;
    judge(child, status);
  }
}

JobOutcome Job::run(const std::function<bool()>& has_failed_elsewhere) {
  const auto is_running = [&] {
    for (const Child& child : children_) {
      if (!child.has_ended) return true;
    }
    return false;
  };
  while (is_running()) {
    wait_for_news();
    reap();
    if (!failed_elsewhere_at_ && has_failed_elsewhere && has_failed_elsewhere()) {
      failed_elsewhere_at_ = Clock::now();
    }
    const Clock::time_point now = Clock::now();
    if (!is_killing_ && ((failed_at_ && now - *failed_at_ > kGrace) ||
                         (failed_elsewhere_at_ && now - *failed_elsewhere_at_ > kGraceElsewhere))) {
      is_killing_ = true;
      if (!failed_elsewhere_at_) name_the_silent();
      send(SIGKILL);
    }
  }
  if (outcome_.exit_code == 0 && (released_ != nullptr || (is_killing_ && !failed_at_))) {
    outcome_.is_released = true;
    if (released_ != nullptr && !failed_elsewhere_at_) report(*released_, released_->said);
    fail(kExitFault);
    if (failed_elsewhere_at_) return outcome_;  // the failing host reports the reason
  }
  if (outcome_.exit_code != 0 && outcome_.reason.empty() && !outcome_.is_final) {
    outcome_.reason = fmt::format("the ranks of {} ended with exit code {}; rank 0 says why",
                                  host_name(), outcome_.exit_code);
    print_error(outcome_.reason);
  }
  return outcome_;
}

}  // namespace

JobOutcome run_job(const std::vector<JobProcess>& processes,
                   const std::function<bool()>& has_failed_elsewhere) {
  ::signal(SIGPIPE, SIG_IGN);  // nobody may be there to read what this process says
  return Job(processes).run(has_failed_elsewhere);
}

}  // namespace megatron::launch
