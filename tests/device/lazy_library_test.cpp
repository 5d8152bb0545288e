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

TEST(LazyLibrary, NamesAllThatAreMissing) {
  const char* const libraries[] = {"libabsent_a.so.1", "libm.so.6", "libabsent_b.so.2",
                                   "libabsent_c.so.3"};
  EXPECT_EQ(missing_beside("libabsent_a.so.1", libraries),
            "; also missing: libabsent_b.so.2, libabsent_c.so.3");
  const char* const present[] = {"libabsent_a.so.1", "libm.so.6"};
  EXPECT_EQ(missing_beside("libabsent_a.so.1", present), "");
}

}  // namespace
}  // namespace megatron
