#include "megatron/device/lazy_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "megatron/core/error.h"

namespace megatron {
namespace {

std::string reason() {
  const char* const text = ::dlerror();
  return text != nullptr ? text : "unknown reason";
}

void* opened(const char* file) {
  const auto in = [&](std::string_view folder) {
    return ::dlopen(fmt::format("{}/{}", folder, file).c_str(), RTLD_NOW | RTLD_LOCAL);
  };
  const char* const path = std::getenv("MEGATRON_LIBRARY_PATH");
  for (std::string_view rest = path != nullptr ? path : ""; !rest.empty();) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    if (void* const handle = folder.empty() ? nullptr : in(folder)) return handle;
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
  }
  for (const char* const package : {"cu13", "cudnn", "nccl"}) {
    // The linker replaces $ORIGIN by the folder of the file that has this code.
    if (void* const handle = in(fmt::format("$ORIGIN/../nvidia/{}/lib", package))) return handle;
  }
  return ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
}

constexpr const char* kToolkit[] = {"libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2"};

}  // namespace

std::string missing_beside(std::string_view file, std::span<const char* const> libraries) {
  std::string names;
  for (const std::string_view other : libraries) {
    if (other != file && opened(other.data()) == nullptr) names += fmt::format(", {}", other);
  }
  return names.empty() ? names : "; also missing: " + names.substr(2);
}

LazyLibrary::LazyLibrary(const char* file, const std::string& remedy)
    : file_(file), handle_(opened(file)) {
  if (handle_ == nullptr) {
    const std::string why = reason();
    const bool is_of_toolkit =
        std::ranges::any_of(kToolkit, [&](std::string_view one) { return one == file; });
    throw DeviceError(fmt::format("{} cannot be loaded ({}){}; {}", file, why,
                                  is_of_toolkit ? missing_beside(file, kToolkit) : "", remedy));
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
