#include "megatron/comm/threads.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>

#include <exception>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "megatron/comm/share_threads.h"
#include "megatron/comm/threads/thread_transport.h"
#include "megatron/comm/threads/thread_world.h"
#include "megatron/core/error.h"

namespace megatron::comm {
namespace {

void run_rank(ThreadWorld& world, int rank, const std::function<void(const Group& world)>& f,
              std::exception_ptr& error) {
  try {
    Membership everybody{.name = "world", .rank = rank, .world_ranks = {}};
    for (int i = 0; i < world.size(); ++i) everybody.world_ranks.push_back(i);
    f(Group(std::make_shared<ThreadTransport>(world, std::move(everybody))));
  } catch (const std::exception& thrown) {
    error = std::current_exception();
    world.rank_failed(rank, thrown.what());
  } catch (...) {
    error = std::current_exception();
    world.rank_failed(rank, "an exception outside std::exception");
  }
  world.rank_ended(rank);
}

std::string no_thread(int rank, int count, const std::system_error& error) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NPROC, &limit);
  return fmt::format(
      "the thread of rank {} of {} cannot be started: {}; use fewer ranks, or raise the limit of "
      "processes and threads (ulimit -u, now {})",
      rank, count, error.code().message(),
      limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur));
}

}  // namespace

void run_ranks(int count, const std::function<void(const Group& world)>& f,
               const ThreadRanksOptions& options) {
  invariant(count > 0, "there is at least one rank");
  if (count == 1) {
    f(Group(make_self_transport({.name = "world", .rank = 0, .world_ranks = {0}})));
    return;
  }
  ThreadWorld world(count, options.timeout);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(count));
  const int threads_per_rank = shared_threads(count);
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<size_t>(count));
    try {
      for (int rank = 0; rank < count; ++rank) {
        threads.emplace_back([&, rank] {
          ::pthread_setname_np(::pthread_self(), fmt::format("rank {}", rank).c_str());
          use_threads(threads_per_rank);
          run_rank(world, rank, f, errors[static_cast<size_t>(rank)]);
        });
      }
    } catch (const std::system_error& error) {  // releases the ranks that already run
      const auto rank = static_cast<int>(threads.size());
      const std::string message = no_thread(rank, count, error);
      errors[threads.size()] = std::make_exception_ptr(CommError(message));
      world.rank_failed(rank, message);
    }
  }
  const std::optional<ThreadWorld::Failure> first = world.failure();
  if (first && errors[static_cast<size_t>(first->rank)]) {
    std::rethrow_exception(errors[static_cast<size_t>(first->rank)]);
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace megatron::comm
