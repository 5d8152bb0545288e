#pragma once

#include "megatron/comm/group.h"

namespace megatron::comm {

// Runs the tests of this program in every process of a job, each as one rank of the same world: a
// collective of a test meets the same test's elsewhere. The main of such programs; its result is
// that of the tests of all ranks.
int run_tests_of_rank(int argc, char** argv);

// The group of all processes while their tests run; null before, and if ranks are threads.
const Group* world_of_processes();

}  // namespace megatron::comm
