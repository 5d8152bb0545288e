#pragma once

#include <string>

#include "annex/accelerate/version.h"
#include "megatron/core/error.h"

namespace megatron::frontends {

inline AccelerateVersion version_named(const std::string& name) {
  if (name == "0.27") return AccelerateVersion::k0_27;
  if (name == "1.0") return AccelerateVersion::k1_0;
  if (name == "1.15") return AccelerateVersion::k1_15;
  throw InternalError("version_named: " + name);
}

}  // namespace megatron::frontends
