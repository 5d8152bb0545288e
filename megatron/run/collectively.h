#pragma once

#include <string>
#include <utility>

#include "megatron/comm/group.h"
#include "megatron/core/error.h"

namespace megatron {

// A ConfigError that every rank throws; only one rank needs to print it.
class CommonConfigError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// Calls f, which has the same result on all ranks: its ConfigError becomes a CommonConfigError.
template <class F>
auto collectively(const F& f) {
  try {
    return f();
  } catch (const ConfigError& error) {
    throw CommonConfigError(error.what());
  }
}

// Throws a CommonConfigError on every rank if rank 0 has a failure to report; "" is none.
void throw_on_all_ranks(std::string failure_of_first, const comm::Group& world);

// Calls f on rank 0 alone. If it throws an Error there, every rank throws that text, so that no
// rank waits for a failed one.
template <class F>
void on_first_rank(const comm::Group& world, const F& f) {
  if (world.size() == 1) return f();
  std::string failure;
  if (world.rank() == 0) {
    try {
      f();
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  throw_on_all_ranks(std::move(failure), world);
}

}  // namespace megatron
