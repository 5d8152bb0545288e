#include "megatron/comm/processes.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/messages/message_transport.h"
#include "megatron/comm/mpi/mpi_wire.h"
#include "megatron/comm/secret.h"
#include "megatron/comm/share_threads.h"
#include "megatron/comm/tcp/sockets.h"
#include "megatron/comm/tcp/tcp_wire.h"
#include "megatron/core/error.h"
#include "megatron/core/parts.h"

namespace megatron::comm {
namespace {

constexpr int64_t kMaxHostName = 64;

std::unique_ptr<Wire> make_wire(const LaunchEnvironment& place, std::chrono::milliseconds timeout) {
  if (place.launcher == LaunchEnvironment::Launcher::kMpi) {
    if constexpr (kHasMpi) {
      return mpi::make_mpi_wire();
    } else {
      refuse_missing("MPI", "MG_MPI");
    }
  }
  return tcp::make_tcp_wire(place, secret_of_job(tcp::is_local_name(place.master_address)),
                            timeout);
}

// True if the launcher bound this process to some of the host's cores.
bool is_bound() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return ::sched_getaffinity(0, sizeof(cores), &cores) == 0 &&
         CPU_COUNT(&cores) < ::sysconf(_SC_NPROCESSORS_ONLN);
}

// The host name of every rank; empty if there is one host.
std::vector<std::string> host_names(Transport& world) {
  std::array<char, kMaxHostName> own{};
  ::gethostname(own.data(), own.size() - 1);
  std::vector<char> all(own.size() * static_cast<size_t>(world.size()));
  world.run({Operation::kAllGather, DType::kUInt8, kMaxHostName}, own.data(), all.data());
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) {
    names.emplace_back(all.data() + rank * kMaxHostName);
  }
  const bool is_one = std::all_of(names.begin(), names.end(),
                                  [&](const std::string& name) { return name == names[0]; });
  return is_one ? std::vector<std::string>() : names;
}

void run_in_world(const std::shared_ptr<MessageRouter>& router,
                  const std::function<void(const Group& world)>& f) {
  Membership everybody{.name = "world", .rank = router->rank(), .world_ranks = {}};
  for (int i = 0; i < router->size(); ++i) everybody.world_ranks.push_back(i);
  const auto transport = std::make_shared<MessageTransport>(router, std::move(everybody));
  router->context()->hosts = host_names(*transport);
  f(Group(transport));
  router->flush();
  transport->run({Operation::kBarrier}, nullptr, nullptr);
}

}  // namespace

void run_process_rank(const LaunchEnvironment& place,
                      const std::function<void(const Group& world)>& f,
                      const ProcessRankOptions& options) {
  if (place.size == 1) {
    return f(Group(make_self_transport({.name = "world", .rank = 0, .world_ranks = {0}})));
  }
  if (!is_bound() && std::getenv("OMP_NUM_THREADS") == nullptr)
    use_threads(shared_threads(place.local_size));
  const auto context = std::make_shared<RankContext>();
  context->timeout = options.timeout;
  context->local_rank = place.local_rank;
  context->local_size = place.local_size;
  const auto router = std::make_shared<MessageRouter>(make_wire(place, options.timeout), context);
  if (router->size() != place.size) {
    throw CommError(
        fmt::format("the launcher announces {} ranks and MPI connects {}; link the "
                    "program with the MPI that mpirun belongs to",
                    place.size, router->size()));
  }
  try {
    run_in_world(router, f);
  } catch (const std::exception& error) {
    if (router->failure()) throw ReleasedError(error.what());  // the others know the failure
    router->tell_failure(error.what());
    throw;
  }
  router->close();
}

}  // namespace megatron::comm
