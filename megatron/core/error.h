#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace megatron {

// Root of every exception of the project. A message names the subject, its value, the rule and the
// remedy; it is written for the person who can act on it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The user asked for something impossible; printed once, exit code 2. Holds all problems found.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& problem) : Error(problem) {}
  // One line per problem. REQUIRES: problems is not empty.
  explicit ConfigError(const std::vector<std::string>& problems);
};

// A tensor has the wrong shape or element type: the caller's mistake.
class ShapeError : public Error {
 public:
  using Error::Error;
};
class DtypeError : public Error {
 public:
  using Error::Error;
};

// The operating system refused a file operation; the message has the path and the system's reason.
class IoError : public Error {
 public:
  using Error::Error;
};

// A file was read but its content breaks the format; the message has the path and the offset.
class FormatError : public Error {
 public:
  using Error::Error;
};

// A device or its library failed: out of memory, CUDA, cuBLAS, cuDNN, oneDNN.
class DeviceError : public Error {
 public:
  using Error::Error;
};

// A collective failed: NCCL, MPI, a lost rank.
class CommError : public Error {
 public:
  using Error::Error;
};

// A valid request that this build or version does not support.
class Unsupported : public Error {
 public:
  using Error::Error;
};

// A bug in this program.
class InternalError : public Error {
 public:
  using Error::Error;
};

// Throws InternalError with `claim` and the caller's position unless `holds`.
void invariant(bool holds, const char* claim, const char* file = __builtin_FILE(),
               int line = __builtin_LINE());

}  // namespace megatron
