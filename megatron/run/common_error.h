#pragma once

#include "megatron/core/error.h"

namespace megatron {

// A ConfigError that every rank throws alike; one rank is enough to print it.
class CommonConfigError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// Calls f, which has the same result on all ranks: its ConfigError becomes a CommonConfigError.
template <class F>
auto in_common(const F& f) {
  try {
    return f();
  } catch (const ConfigError& error) {
    throw CommonConfigError(error.what());
  }
}

}  // namespace megatron
