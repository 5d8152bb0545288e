#pragma once

#include <string>

namespace megatron {

// A shared library that the program loads when it first needs it, so that it starts where the
// library is missing. Stays loaded.
class LazyLibrary {
 public:
  // `file` as the linker names it ("libnccl.so.2"), looked for where the program's own libraries
  // are. Throws DeviceError with the linker's reason and `remedy`.
  LazyLibrary(const char* file, const std::string& remedy);

  // A function of the library, as the type of its declaration. Throws DeviceError when it is
  // missing.
  template <class F>
  F function(const char* name) const {
    return reinterpret_cast<F>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;

  const char* file_;
  void* handle_;
};

}  // namespace megatron
