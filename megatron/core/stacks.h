#pragma once

#include <string>

namespace megatron {

// The calls of every thread of this process, innermost first, for a report of a hang: names of
// functions, demangled. Threads with equal calls share an entry. A thread that does not answer
// within a fraction of a second, such as one inside a driver, is named without its calls. Keeps a
// handler of the first free real-time signal. Thread safe.
//
//   thread 4711 (rank 2):
//     megatron::comm::all_reduce(...)
//     ...
std::string stacks_of_all_threads();

}  // namespace megatron
