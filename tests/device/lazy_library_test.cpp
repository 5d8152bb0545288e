#include "megatron/device/lazy_library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

// Sets a variable of the environment while it lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { ::unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
};

double cosine(const LazyLibrary& library) { return library.function<double (*)(double)>("cos")(0); }

TEST(LazyLibrary, FindsTheSystemsOnes) {
  EXPECT_EQ(cosine(LazyLibrary("libm.so.6", "install it")), 1);
  EXPECT_NE(message_of<DeviceError>([] {
              LazyLibrary("libm.so.6", "install it").function<void (*)()>("no_such_function");
            }).find("libm.so.6 has no no_such_function"),
            std::string::npos);
}

TEST(LazyLibrary, FindsThoseOfNamedFolders) {
  const TemporaryDirectory directory;
  Dl_info place;
  ASSERT_NE(::dladdr(LazyLibrary("libm.so.6", "").function<void*>("cos"), &place), 0);
  const std::filesystem::path folder = directory.path() / "second";
  std::filesystem::create_directory(folder);
  std::filesystem::create_symlink(place.dli_fname, folder / "libmegatron_cosine.so");
  const auto open = [] { return cosine(LazyLibrary("libmegatron_cosine.so", "install it")); };
  {
    const ScopedVariable path("MEGATRON_LIBRARY_PATH",
                              (directory.path() / "first").string() + "::" + folder.string());
    EXPECT_EQ(open(), 1);
  }
  EXPECT_NE(message_of<DeviceError>(open).find("libmegatron_cosine.so cannot be loaded ("),
            std::string::npos);
}

TEST(LazyLibrary, NamesAllOfTheToolkitThatAreMissing) {
  const auto open = [] { const LazyLibrary library("libnccl.so.2", "install it"); };
  try {
    open();
    GTEST_SKIP() << "NCCL is here";
  } catch (const DeviceError&) {
  }
  const std::string message = message_of<DeviceError>(open);
  EXPECT_TRUE(message.starts_with("libnccl.so.2 cannot be loaded (")) << message;
  EXPECT_TRUE(message.ends_with("; install it")) << message;
  for (const char* const file : {"libcublasLt.so.13", "libcudnn.so.9"}) {
    bool is_missing = false;
    try {
      const LazyLibrary library(file, "");
    } catch (const DeviceError&) {
      is_missing = true;
    }
    EXPECT_EQ(message.find(file) != std::string::npos, is_missing) << message;
  }
}

}  // namespace
}  // namespace megatron
