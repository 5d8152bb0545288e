// A library for LD_PRELOAD. It counts the calls that change what is in one folder, and at one of
// them it kills the program, writes half and kills it, or lets the call fail as on a full disk.
//
//   MG_STOP_FOLDER       the folder, an absolute path
//   MG_STOP_AT           the number of the call, from 1; 0: none
//   MG_STOP_HOW          kill, tear or fail
//   MG_STOP_ONCE         a file that is made at this call; where it exists nothing happens any more
//   MG_STOP_COUNT        a file that gets the number of calls when the program ends by itself
//   MG_STOP_NO_EXCHANGE  if set, names cannot be exchanged, as on some file systems
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

struct Plan {
  std::string folder = setting("MG_STOP_FOLDER");
  std::string how = setting("MG_STOP_HOW");
  std::string once = setting("MG_STOP_ONCE");
  std::string count = setting("MG_STOP_COUNT");
  bool can_exchange = setting("MG_STOP_NO_EXCHANGE").empty();
  int64_t at = std::atoll(setting("MG_STOP_AT").c_str());
  std::atomic<int64_t> calls{0};

  ~Plan() {
    if (count.empty() || calls == 0) return;
    const std::string text = std::to_string(calls.load());
    const long file = ::syscall(SYS_openat, AT_FDCWD, count.c_str(), O_WRONLY | O_CREAT, 0600);
    static_cast<void>(::syscall(SYS_write, file, text.data(), text.size()));
  }
};

Plan& plan() {
  static Plan plan;
  return plan;
}

// The function of the C library.
template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

std::string path_of(int descriptor) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = ::readlink(link.c_str(), path, sizeof path);
  return std::string(path, size > 0 ? static_cast<size_t>(size) : 0);
}

std::string path_at(int directory, const char* path) {
  if (path[0] == '/') return path;
  char working[PATH_MAX];
  const std::string base = directory != AT_FDCWD                          ? path_of(directory)
                           : ::getcwd(working, sizeof working) != nullptr ? working
                                                                          : "";
  return base + "/" + path;
}

enum class Fate { kPasses, kTears, kFails };

[[noreturn]] void die() {
  ::kill(::getpid(), SIGKILL);
  while (true) ::pause();
}

// Counts a call on a path.
Fate fate_of(const std::string& path) {
  Plan& p = plan();
  const bool is_inside = !p.folder.empty() && std::string_view(path).starts_with(p.folder);
  if (!is_inside || ++p.calls != p.at) return Fate::kPasses;
  if (!p.once.empty()) {
    const long made =
        ::syscall(SYS_openat, AT_FDCWD, p.once.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (made < 0) return Fate::kPasses;
    ::syscall(SYS_close, made);
  }
  if (p.how == "kill") die();
  if (p.how == "tear") return Fate::kTears;
  errno = ENOSPC;
  return Fate::kFails;
}

// A call that cannot be half done.
bool fails(const std::string& path) {
  const Fate fate = fate_of(path);
  if (fate == Fate::kTears) die();
  return fate == Fate::kFails;
}

template <class... Rest>
ssize_t write_by(const char* name, int file, const void* bytes, size_t size, Rest... rest) {
  auto* real = next<ssize_t(int, const void*, size_t, Rest...)>(name);
  const Fate fate = file > 2 ? fate_of(path_of(file)) : Fate::kPasses;
  if (fate == Fate::kFails) return -1;
  if (fate == Fate::kPasses) return real(file, bytes, size, rest...);
  static_cast<void>(real(file, bytes, size / 2, rest...));
  die();
}

int open_by(const char* name, const char* path, int flags, mode_t mode) {
  if ((flags & (O_CREAT | O_TRUNC)) != 0 && fails(path_at(AT_FDCWD, path))) return -1;
  return next<int(const char*, int, mode_t)>(name)(path, flags, mode);
}

int open_at_by(const char* name, int directory, const char* path, int flags, mode_t mode) {
  if ((flags & (O_CREAT | O_TRUNC)) != 0 && fails(path_at(directory, path))) return -1;
  return next<int(int, const char*, int, mode_t)>(name)(directory, path, flags, mode);
}

mode_t mode_in(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

}  // namespace

extern "C" {

ssize_t write(int file, const void* bytes, size_t size) {
  return write_by("write", file, bytes, size);
}
ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  return write_by("pwrite", file, bytes, size, offset);
}
int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return open_by("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return open_by("open64", path, flags, mode);
}
int openat(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return open_at_by("openat", directory, path, flags, mode);
}
int fsync(int file) { return fails(path_of(file)) ? -1 : next<int(int)>("fsync")(file); }
int ftruncate(int file, off_t size) noexcept {
  return fails(path_of(file)) ? -1 : next<int(int, off_t)>("ftruncate")(file, size);
}
int rename(const char* from, const char* to) noexcept {
  if (fails(path_at(AT_FDCWD, from))) return -1;
  return next<int(const char*, const char*)>("rename")(from, to);
}
int renameat2(int from_directory, const char* from, int to_directory, const char* to,
              unsigned flags) noexcept {
  if (!plan().can_exchange) {
    errno = EINVAL;
    return -1;
  }
  if (fails(path_at(from_directory, from))) return -1;
  return next<int(int, const char*, int, const char*, unsigned)>("renameat2")(
      from_directory, from, to_directory, to, flags);
}
int unlink(const char* path) noexcept {
  return fails(path_at(AT_FDCWD, path)) ? -1 : next<int(const char*)>("unlink")(path);
}
int unlinkat(int directory, const char* path, int flags) noexcept {
  if (fails(path_at(directory, path))) return -1;
  return next<int(int, const char*, int)>("unlinkat")(directory, path, flags);
}
int rmdir(const char* path) noexcept {
  return fails(path_at(AT_FDCWD, path)) ? -1 : next<int(const char*)>("rmdir")(path);
}
int remove(const char* path) noexcept {
  if (fails(path_at(AT_FDCWD, path))) return -1;
  return next<int(const char*)>("remove")(path);
}
int mkdir(const char* path, mode_t mode) noexcept {
  return fails(path_at(AT_FDCWD, path)) ? -1 : next<int(const char*, mode_t)>("mkdir")(path, mode);
}

}  // extern "C"
