#include "tests/comm/processes/run_tests.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/processes.h"
#include "tests/comm/values.h"

namespace megatron::comm {
namespace {

const Group* the_world = nullptr;  // of this process

}  // namespace

const Group* world_of_processes() { return the_world; }

int run_tests_of_rank(int argc, char** argv) {
  ::unsetenv("GTEST_OUTPUT");  // all processes would write the same file
  testing::InitGoogleTest(&argc, argv);
  const std::optional<LaunchEnvironment> place = launch_environment();
  if (!place || place->size < 2) {
    std::fprintf(stderr, "%s: start several, by mpirun or spawn.sh\n", argv[0]);
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

}  // namespace megatron::comm
