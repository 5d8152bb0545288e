#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/cuda.h"
#include "megatron/ranks.h"
#include "megatron/settings.h"
#include "megatron/task.h"
#include "megatron/tensor.h"
#include "megatron/transformer/model_kind.h"

namespace megatron::python {

namespace nb = nanobind;

// An object was used after close().
class ClosedError : public Error {
 public:
  using Error::Error;
};

// C-contiguous numbers in host memory.
using Ids = nb::ndarray<const int64_t, nb::c_contig, nb::device::cpu>;

// The elements, with an owner that Python keeps: an array of the module, which DLPack and the
// buffer protocol read. Without a copy.
nb::object array_of(const api::Tensor& tensor);
// The elements of any array that DLPack or the buffer protocol gives; not copied. Throws ShapeError
// unless they are contiguous, DtypeError for a type that the engine has not.
api::Tensor tensor_of_array(nb::handle array);

// Settings from a dict of names and values; None and False leave a flag out.
api::Settings settings_of(nb::handle values);

// A task in Python. The tasks of the package's classes are made by the trainer; see task.py.
// Throws ConfigError for what a model of that kind does not use.
std::unique_ptr<api::Task> make_task(nb::object task, ModelKind kind);

// Keeps a Python object from threads without the interpreter's lock.
std::shared_ptr<nb::object> kept(nb::object object);

// Throws KeyboardInterrupt, or what another handler of a signal throws. REQUIRES: the lock is held.
void check_signals();

// A user of a world, which ends before it.
class WorldUser {
 public:
  virtual ~WorldUser() = default;
  virtual void close() = 0;
};

// The world that a rank's function got, which ends when the function returns. All calls are made
// with the interpreter's lock.
class RankWorld {
 public:
  explicit RankWorld(api::World world = {}) : world_(std::move(world)) {}

  // Throws ClosedError after end().
  const api::World& get() const {
    if (!world_) throw ClosedError("this world has ended: its ranks have returned");
    return *world_;
  }
  void set(api::World world) { world_ = std::move(world); }
  void add(WorldUser& user) { users_.insert(&user); }
  void remove(WorldUser& user) { users_.erase(&user); }
  // Closes the users.
  void end() {
    while (!users_.empty()) {
      WorldUser& user = **users_.begin();
      users_.erase(users_.begin());
      user.close();
    }
    world_.reset();
  }

 private:
  std::optional<api::World> world_;
  std::set<WorldUser*> users_;
};

// Another call of an object while one is running.
enum class SecondCall {
  kWaits,
  kThrows,  // because the first one may call Python, which may call again
};

// An object of the engine behind an object of Python. Only one thread at a time uses it, without
// the interpreter's lock. After close() a call throws.
template <class T, SecondCall kSecond>
class Guarded {
 public:
  explicit Guarded(const char* name) : name_(name) {}
  ~Guarded() { close(); }

  template <class Make>
  void open(const Make& make) {
    const nb::gil_scoped_release release;
    object_ = make();
  }

  template <class F>
  auto call(const F& f) {
    const Busy busy(*this);
    if (object_ == nullptr) throw ClosedError(std::string(name_) + " is closed");
    const nb::gil_scoped_release release;
    if (shared_device_ >= 0) cuda::synchronize_device(shared_device_);
    if constexpr (std::is_same_v<decltype(f(*object_)), std::vector<api::NamedTensor>>) {
      std::vector<api::NamedTensor> tensors = f(*object_);
      if (!tensors.empty()) shared_device_ = tensors.front().tensor.device;
      return tensors;
    } else {
      return f(*object_);
    }
  }

  // Frees the engine's object.
  void close() {
    close([] {});
  }
  // Calls `first` before that, with the interpreter's lock.
  template <class First>
  void close(const First& first) {
    const Busy busy(*this);
    first();
    const nb::gil_scoped_release release;
    object_.reset();
  }

 private:
  class Busy {
   public:
    explicit Busy(Guarded& guarded) : guarded_(guarded) {
      if constexpr (kSecond == SecondCall::kWaits) {
        const nb::gil_scoped_release release;
        guarded_.mutex_.lock();
      } else if (guarded_.is_busy_.exchange(true)) {
        throw Error(std::string(guarded_.name_) + " is in use by another call");
      }
    }
    ~Busy() {
      if constexpr (kSecond == SecondCall::kWaits) {
        guarded_.mutex_.unlock();
      } else {
        guarded_.is_busy_ = false;
      }
    }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    Guarded& guarded_;
  };

  const char* name_;
  std::unique_ptr<T> object_;
  int shared_device_ = -1;  // the GPU of tensors that other packages have, and may be changing
  std::atomic<bool> is_busy_ = false;  // of kThrows
  std::mutex mutex_;                   // of kWaits
};

void bind_data(nb::module_& m);
void bind_engine(nb::module_& m);
void bind_errors(nb::module_& m);
void bind_model(nb::module_& m);
void bind_task(nb::module_& m);
void bind_tensor(nb::module_& m);
void bind_trainer(nb::module_& m);

}  // namespace megatron::python
