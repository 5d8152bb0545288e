#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/processes.h"
#include "tests/comm/cuda/ranks.h"
#include "tests/comm/values.h"

// Every process runs the same tests, as one rank of the same world.
namespace megatron::comm {
namespace {

const Group* the_world = nullptr;  // of this process

int run(int argc, char** argv) {
  ::unsetenv("GTEST_OUTPUT");                    // all processes would write the same file
  GTEST_FLAG_SET(filter, "Layouts/PeerTest.*");  // other tests start threads
  testing::InitGoogleTest(&argc, argv);
  const std::optional<LaunchEnvironment> place = launch_environment();
  if (!place || place->size < 2) {
    std::fprintf(stderr, "comm_cuda_process_test: start several, by spawn.sh\n");
    return 2;
  }
  int result = 0;
  run_process_rank(*place,
                   [&](const Group& world) {
                     the_world = &world;
                     std::vector<int32_t> failed = {RUN_ALL_TESTS()};
                     all_reduce(view_of(failed), Reduce::kMax, world, Stream{});
                     result = failed[0];
                   },
                   {.timeout = std::chrono::seconds(60)});
  return result;
}

}  // namespace

std::vector<Ranks> layouts() {
  const std::optional<LaunchEnvironment> place = launch_environment();
  return {{place ? place->size : 1, false}};
}

const Group* world_of_processes() { return the_world; }

}  // namespace megatron::comm

int main(int argc, char** argv) { return megatron::comm::run(argc, argv); }
