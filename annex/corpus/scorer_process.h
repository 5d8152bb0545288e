#pragma once

#include <sys/types.h>

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::corpus {

// A program that scores texts. It reads lines {"id": 7, "text": "..."} on standard input and
// answers each with a line {"id": 7, "score": {"toxicity": 0.25, ...}} on standard output, in any
// order and without waiting for more input. A score is an object of numbers, or null. Not thread
// safe: each thread has its own process, which starts with the first text.
class ScorerProcess {
 public:
  // `command` is a command of the shell. A process that answers nothing for `timeout` is ended.
  ScorerProcess(std::string command, std::chrono::milliseconds timeout);
  // Ends the process: its input ends, and after a second it is killed.
  ~ScorerProcess();
  ScorerProcess(const ScorerProcess&) = delete;
  ScorerProcess& operator=(const ScorerProcess&) = delete;

  // The scores of the texts as JSON, "null" for those without. If the process ends or times out,
  // the texts without an answer have none, and the next call starts another process. Throws IoError
  // if none can be started.
  std::vector<std::string> score(std::span<const std::string> texts);
  // Why the last texts have no score; empty if each was answered.
  const std::string& problem() const { return problem_; }

 private:
  struct Batch;

  void start();
  void stop();
  // Why it ended.
  std::string end();
  // Sends and receives what is ready. False if the process has closed its output.
  bool exchange(Batch& batch);
  void take_line(std::string_view line, Batch& batch);

  std::string command_;
  std::chrono::milliseconds timeout_;
  pid_t pid_ = -1;   // none
  int socket_ = -1;  // its standard input and output
  std::string received_;
  std::string problem_;
};

}  // namespace megatron::corpus
