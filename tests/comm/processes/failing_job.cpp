#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/processes.h"
#include "megatron/comm/processes/process_group.h"
#include "megatron/core/error.h"

// A rank of a job that goes wrong at rank 1, in the way that the argument names. With the argument
// "shared" the ranks meet in shared memory.
namespace megatron::comm {

// Outside the anonymous namespace: stacks show its name.
[[gnu::noinline]] void compute_without_end() {
  for (;;) {
    for (volatile int i = 0; i < 1000;) i = i + 1;
  }
}

namespace {

// Should the caller make another call than the others?
bool go_wrong(const std::string& how) {
  if (how == "throw") throw ConfigError("the corpus is empty");
  if (how == "kill") ::kill(::getpid(), SIGKILL);
  if (how == "stop") ::kill(::getpid(), SIGSTOP);
  if (how == "hang") compute_without_end();
  if (how == "exit") ::_exit(0);
  return how == "mismatch";
}

void work_in_shared_memory(const Group& world, const std::string& how) {
  const std::unique_ptr<ProcessGroup> group = ProcessGroup::make(world.transport(), 0).group;
  const auto barrier = [&](Operation operation) {
    group->enter({operation}, {});
    group->leave();
  };
  for (int i = 0; i < 3; ++i) barrier(Operation::kConnect);
  if (world.rank() == 1 && go_wrong(how)) return barrier(Operation::kBarrier);
  for (int i = 0; i < 1000; ++i) barrier(Operation::kConnect);
}

void work(const Group& world, const std::string& how) {
  std::vector<float> x(100000, 1);
  const TensorView view{x.data(), {static_cast<int64_t>(x.size())}, DType::kFloat32};
  for (int i = 0; i < 3; ++i) all_reduce(view, Reduce::kSum, world, Stream{});
  if (world.rank() == 1 && go_wrong(how)) return barrier(world);
  for (int i = 0; i < 1000; ++i) all_reduce(view, Reduce::kSum, world, Stream{});
}

}  // namespace
}  // namespace megatron::comm

int main(int argc, char** argv) {
  using namespace megatron::comm;
  const auto place = launch_environment();
  if (!place || argc < 2) return 2;
  try {
    const auto f = argc > 2 && std::string(argv[2]) == "shared" ? work_in_shared_memory : work;
    const std::string how = argv[1];
    const bool is_waited_for = how == "stop" || how == "hang";
    run_process_rank(*place, [&](const Group& world) { f(world, how); },
                     {.timeout = std::chrono::seconds(is_waited_for ? 2 : 30)});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "process %d: %s\n", place->rank, error.what());
    return 3;
  }
  return 0;
}
