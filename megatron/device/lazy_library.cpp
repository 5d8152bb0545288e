#include "megatron/device/lazy_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "megatron/core/error.h"

namespace megatron {
namespace {

std::string reason() {
  const char* const text = ::dlerror();
  return text != nullptr ? text : "unknown reason";
}

}  // namespace

LazyLibrary::LazyLibrary(const char* file, const std::string& remedy)
    : file_(file), handle_(::dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    throw DeviceError(fmt::format("{} cannot be loaded ({}); {}", file, reason(), remedy));
  }
}

void* LazyLibrary::address_of(const char* name) const {
  void* const address = ::dlsym(handle_, name);
  if (address == nullptr) {
    throw DeviceError(
        fmt::format("{} has no {} ({}); install a newer version", file_, name, reason()));
  }
  return address;
}

}  // namespace megatron
