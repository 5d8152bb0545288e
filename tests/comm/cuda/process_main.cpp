#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "megatron/comm/launch_environment.h"
#include "tests/comm/cuda/ranks.h"

// The tests of peer copies with ranks that are processes.
namespace megatron::comm {

std::vector<Ranks> layouts() {
  const std::optional<LaunchEnvironment> place = launch_environment();
  return {{place ? place->size : 1, false}};
}

}  // namespace megatron::comm

int main(int argc, char** argv) {
  // Other tests start threads.
  GTEST_FLAG_SET(filter, "Layouts/PeerTest.*:Layouts/PeerRecordTest.*");
  return megatron::comm::run_tests_of_rank(argc, argv);
}
