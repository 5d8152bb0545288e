#pragma once

#include <span>
#include <string>
#include <string_view>

namespace megatron {

// A shared library, loaded on first use, so that the program also starts without it. Stays loaded.
class LazyLibrary {
 public:
  // `file` is the linker's name ("libnccl.so.2"). It is searched for in the folders of
  // MEGATRON_LIBRARY_PATH, which colons separate; then in the packages that pip installs beside
  // that of this code; then where the program's own libraries are. Throws DeviceError with the
  // linker's reason, the other libraries of the CUDA toolkit that are missing, and `remedy`.
  LazyLibrary(const char* file, const std::string& remedy);

  // A function of the library, with the type of its declaration. Throws DeviceError if it is
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

// "; also missing: a, b" for those of `libraries` besides `file` that cannot be loaded, or "".
std::string missing_beside(std::string_view file, std::span<const char* const> libraries);

}  // namespace megatron
