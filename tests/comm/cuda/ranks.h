#pragma once

#include <ostream>
#include <vector>

#include "tests/comm/processes/run_tests.h"

namespace megatron::comm {

struct Ranks {
  int count = 2;
  bool share_a_gpu = true;  // else they take turns through all of the machine
};

inline void PrintTo(const Ranks& ranks, std::ostream* out) {
  *out << ranks.count << (ranks.share_a_gpu ? "OnOneGpu" : "OnAllGpus");
}

// The ranks of this program's tests: threads that each test starts, or this process and others
// (process_main.cpp).
std::vector<Ranks> layouts();

}  // namespace megatron::comm
