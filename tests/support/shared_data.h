#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include "tests/support/source_path.h"

namespace megatron {

// The path of a file of the data beside the repository: under $MG_SHARED, else ../shared.
inline std::filesystem::path shared_data(const std::string& name) {
  const char* const folder = std::getenv("MG_SHARED");
  const std::filesystem::path root = folder != nullptr
                                         ? std::filesystem::path(folder)
                                         : std::filesystem::path(source_path("../shared"));
  return root / name;
}

}  // namespace megatron

// Skips the test unless the file exists. The data may not be part of the repository.
#define MG_NEEDS_SHARED(name)                                               \
  if (!std::filesystem::exists(megatron::shared_data(name))) {              \
    GTEST_SKIP() << "needs ../shared/" << (name) << ": not found, not run"; \
  }                                                                         \
  static_assert(true)

// Skips a test that unpacks files where the program for that is not installed.
#define MG_NEEDS_XZ()                                    \
  if (std::system("xz --version > /dev/null 2>&1") != 0) \
    GTEST_SKIP() << "needs the program xz: not run";     \
  static_assert(true)
