#include "megatron/trainer.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "bindings.h"
#include "megatron/comm/collectives.h"
#include "megatron/comm/launch_environment.h"
#include "megatron/comm/processes.h"
#include "megatron/core/log.h"

namespace megatron::python {

api::Settings settings_of(nb::handle values) {
  api::Settings settings;
  for (const auto [key, value] : nb::cast<nb::dict>(values)) {
    const auto name = nb::cast<std::string>(key);
    if (value.is_none()) continue;
    if (nb::isinstance<nb::bool_>(value)) {
      settings.set(name, nb::cast<bool>(value));
    } else if (nb::isinstance<nb::str>(value) || nb::isinstance<nb::int_>(value) ||
               nb::isinstance<nb::float_>(value)) {
      settings.set(name, std::string(nb::str(value).c_str()));
    } else if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
      std::vector<std::string> words;
      for (const nb::handle word : value) words.emplace_back(nb::str(word).c_str());
      settings.set(name, words);
    } else {
      throw ConfigError("the value of " + name +
                        " must be a bool, a number, a text or a list of them");
    }
  }
  return settings;
}

namespace {

Split split_of(const std::string& name) {
  if (name == "train") return Split::kTrain;
  if (name == "valid") return Split::kValid;
  if (name == "test") return Split::kTest;
  throw ConfigError("split " + name + " is not known; use train, valid or test");
}

ModelKind kind_of(const std::string& name) {
  if (name == "gpt") return ModelKind::kGpt;
  if (name == "bert") return ModelKind::kBert;
  if (name == "t5") return ModelKind::kT5;
  throw ConfigError("model " + name + " is not known; use gpt, bert or t5");
}

nb::object value_of(const ArgValue& value) {
  return std::visit(
      [](const auto& held) -> nb::object {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::monostate>) {
          return nb::none();
        } else if constexpr (std::is_same_v<Held, DType>) {
          return nb::cast(std::string(name_of(held)));
        } else {
          return nb::cast(held);
        }
      },
      value);
}

ArgValue argument_of(nb::handle value) {
  if (value.is_none()) return std::monostate();
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value);
  if (nb::isinstance<nb::int_>(value)) return nb::cast<int64_t>(value);
  if (nb::isinstance<nb::float_>(value)) return nb::cast<double>(value);
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  if (std::vector<int64_t> numbers; nb::try_cast(value, numbers)) return numbers;
  return nb::cast<std::vector<std::string>>(value);
}

nb::dict dict_of(const api::Losses& losses) {
  nb::dict values;
  for (const auto& [name, value] : losses) values[name.c_str()] = value;
  return values;
}

// Members in the order of construction: the trainer refers to the task.
struct Run {
  std::unique_ptr<api::Task> task;
  std::unique_ptr<api::Trainer> trainer;
};

class PythonTrainer final : public WorldUser {
 public:
  PythonTrainer(nb::handle values, nb::handle arguments, const std::string& config, nb::object task,
                std::shared_ptr<RankWorld> world, const std::string& model)
      : world_(std::move(world)) {
    api::Settings settings = settings_of(values);
    settings.set_model_config(config);
    for (const auto [name, value] : nb::cast<nb::dict>(arguments)) {
      settings.set_argument(nb::cast<std::string>(name), argument_of(value));
    }
    const ModelKind kind = kind_of(model);
    const nb::handle held = task;
    std::unique_ptr<api::Task> made = make_task(std::move(task), kind);
    const api::World place = world_ != nullptr ? world_->get() : api::World();
    run_.open([&] {
      auto run = std::make_unique<Run>();
      run->task = std::move(made);
      run->trainer = std::make_unique<api::Trainer>(kind, settings, *run->task, place);
      return run;
    });
    if (world_ != nullptr) world_->add(*this);
    task_ = held;
  }
  ~PythonTrainer() override {
    if (world_ != nullptr) world_->remove(*this);
  }

  template <class F>
  auto call(const F& f) {
    if (world_ != nullptr) static_cast<void>(world_->get());
    return run_.call([&](Run& run) { return f(*run.trainer); });
  }
  // The same for long work, after which a signal counts.
  template <class F>
  auto step(const F& f) {
    auto result = call(f);
    check_signals();
    return result;
  }
  void close() override {
    run_.close([this] { task_ = {}; });
  }

  // The garbage collector of Python sees the task, which may refer to the trainer.
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<PythonTrainer>(self)->task_.ptr());
    return 0;
  }
  static int clear(PyObject* self) {
    if (nb::inst_ready(self)) nb::inst_ptr<PythonTrainer>(self)->close();
    return 0;
  }

 private:
  const std::shared_ptr<RankWorld> world_;
  nb::handle task_;  // of the run, which keeps it; null after close()
  Guarded<Run, SecondCall::kThrows> run_{"the trainer"};
};

const PyType_Slot trainer_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(&PythonTrainer::traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(&PythonTrainer::clear)},
    {0, nullptr}};

// The arrays of a dict by the names of Batch's fields, which the dict keeps.
api::Batch batch_of(const nb::dict& arrays) {
  api::Batch batch;
  const auto read = [&]<class T>(const char* name, std::span<const T>& into) {
    if (!arrays.contains(name)) return;
    using Array = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
    const auto array = nb::cast<Array>(arrays[name], false);  // a conversion would be a copy
    into = {array.data(), array.size()};
  };
  read("tokens", batch.tokens);
  read("labels", batch.labels);
  read("loss_mask", batch.loss_mask);
  read("token_types", batch.token_types);
  read("attention_mask", batch.attention_mask);
  read("decoder_tokens", batch.decoder_tokens);
  read("sentence_order", batch.sentence_order);
  read("values", batch.values);
  return batch;
}

// This process's rank in a job of processes, until close(): a thread holds the connections.
class ProcessWorld {
 public:
  ProcessWorld() {
    const std::optional<comm::LaunchEnvironment> place = comm::launch_environment();
    world_ = std::make_shared<RankWorld>();
    if (!place || place->size == 1) return;
    thread_ = std::thread([this, place = *place] { run(place); });
    const nb::gil_scoped_release release;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_ready_ || failure_ != nullptr; });
    if (failure_ == nullptr) return;
    lock.unlock();
    thread_.join();
    std::rethrow_exception(failure_);
  }
  ~ProcessWorld() {
    if (!thread_.joinable()) return;
    try {
      close("the process ended before its world was closed");
    } catch (const std::exception& error) {
      print_error(error.what());
    }
  }

  std::shared_ptr<RankWorld> world() const { return world_; }

  // Waits for the other ranks, or, with a failure, tells them of it.
  void close(const std::string& failure) {
    world_->end();
    if (!thread_.joinable()) return;
    const nb::gil_scoped_release release;
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
      reason_ = failure;
    }
    changed_.notify_all();
    thread_.join();
    if (failure_ != nullptr && failure.empty()) std::rethrow_exception(failure_);
  }

 private:
  void run(const comm::LaunchEnvironment& place) {
    try {
      comm::run_process_rank(place, [this](const comm::Group& group) {
        std::unique_lock lock(mutex_);
        world_->set(api::World(group));
        is_ready_ = true;
        changed_.notify_all();
        changed_.wait(lock, [this] { return ends_; });
        if (!reason_.empty()) throw Error(reason_);
      });
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      changed_.notify_all();
    }
  }

  std::shared_ptr<RankWorld> world_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ready_ = false;
  bool ends_ = false;
  std::string reason_;
  std::exception_ptr failure_;
};

// The ranks are threads, which take turns with the interpreter's lock.
void run_ranks(int count, const nb::object& f) {
  if (count < 1) throw ConfigError("run_ranks: there must be at least one rank");
  {
    const nb::gil_scoped_release release;
    api::run_ranks(count, [&](const api::World& world) {
      const nb::gil_scoped_acquire acquire;
      const auto own = std::make_shared<RankWorld>(world);
      try {
        f(own);
      } catch (...) {
        own->end();
        throw;
      }
      own->end();
    });
  }
  check_signals();
}

}  // namespace

void bind_trainer(nb::module_& m) {
  nb::class_<RankWorld>(m, "World", "All ranks of a run, as one of them sees them.")
      .def_prop_ro("rank", [](const RankWorld& w) { return w.get().rank(); })
      .def_prop_ro("size", [](const RankWorld& w) { return w.get().size(); })
      .def(
          "barrier",
          [](const RankWorld& w) {
            const api::World world = w.get();
            const nb::gil_scoped_release release;
            comm::barrier(world.group());
          },
          "Waits for all ranks, which call it alike.");
  nb::class_<ProcessWorld>(m, "ProcessWorld")
      .def(nb::init<>())
      .def_prop_ro("world", &ProcessWorld::world)
      .def("close", &ProcessWorld::close, nb::arg("failure") = "");
  m.def("run_ranks", &run_ranks, nb::arg("count"), nb::arg("f"));
  m.def("print_line", [](const std::string& text) { print_line(text); });

  nb::class_<api::StepResult>(m, "StepResult", "The results of an iteration.")
      .def_ro("iteration", &api::StepResult::iteration, "Updates of the weights, with this one.")
      .def_ro("is_skipped", &api::StepResult::is_skipped,
              "Gradients overflowed: nothing was updated.")
      .def_ro("loss", &api::StepResult::loss,
              "Mean over the microbatches; None on ranks without the last stage.")
      .def_ro("grad_norm", &api::StepResult::grad_norm, "Before clipping.")
      .def_ro("learning_rate", &api::StepResult::learning_rate, "Of the next iteration.")
      .def_ro("loss_scale", &api::StepResult::loss_scale)
      .def_ro("consumed_samples", &api::StepResult::consumed_samples)
      .def_prop_ro("losses", [](const api::StepResult& step) { return dict_of(step.losses); })
      .def("__repr__", [](const api::StepResult& step) {
        return "StepResult(iteration=" + std::to_string(step.iteration) +
               (step.loss ? ", loss=" + std::to_string(*step.loss) : "") + ")";
      });

  nb::class_<api::Layout>(m, "Layout", "Where a rank is in the layout of a run.")
      .def_ro("tensor_rank", &api::Layout::tensor_rank)
      .def_ro("tensor_size", &api::Layout::tensor_size)
      .def_ro("pipeline_rank", &api::Layout::pipeline_rank)
      .def_ro("pipeline_size", &api::Layout::pipeline_size)
      .def_ro("data_rank", &api::Layout::data_rank)
      .def_ro("data_size", &api::Layout::data_size);

  using T = PythonTrainer;
  using nb::arg;
  nb::class_<T>(m, "Trainer", nb::type_slots(trainer_slots))
      .def(nb::init<nb::handle, nb::handle, const std::string&, nb::object,
                    std::shared_ptr<RankWorld>, const std::string&>(),
           arg("settings"), arg("arguments"), arg("model_config"), arg("task").none(),
           arg("world").none(), arg("model"))
      .def("next",
           [](T& t) { return t.step([](api::Trainer& trainer) { return trainer.next(); }); })
      .def("train_step",
           [](T& t) { return t.step([](api::Trainer& trainer) { return trainer.train_step(); }); })
      .def(
          "train_step",
          [](T& t, const nb::dict& arrays) {
            const api::Batch batch = batch_of(arrays);
            return t.step([&](api::Trainer& trainer) { return trainer.train_step(batch); });
          },
          arg("arrays"))
      .def(
          "evaluate",
          [](T& t, const std::string& split) {
            const Split of = split_of(split);
            return dict_of(t.step([&](api::Trainer& trainer) { return trainer.evaluate(of); }));
          },
          arg("split"))
      .def(
          "evaluate_step",
          [](T& t, const std::string& split) {
            const Split of = split_of(split);
            return dict_of(
                t.step([&](api::Trainer& trainer) { return trainer.evaluate_step(of); }));
          },
          arg("split"))
      .def(
          "evaluate_step",
          [](T& t, const nb::dict& arrays) {
            const api::Batch batch = batch_of(arrays);
            return dict_of(
                t.step([&](api::Trainer& trainer) { return trainer.evaluate_step(batch); }));
          },
          arg("arrays"))
      .def(
          "generate",
          [](T& t, const std::vector<std::vector<int32_t>>& prompts, int64_t max_new_tokens,
             double temperature, int64_t top_k, double top_p, uint64_t seed,
             const std::vector<int32_t>& stop_tokens) {
            const api::GenerateOptions options = {.max_new_tokens = max_new_tokens,
                                                  .temperature = temperature,
                                                  .top_k = top_k,
                                                  .top_p = top_p,
                                                  .seed = seed,
                                                  .stop_tokens = stop_tokens};
            return t.step(
                [&](api::Trainer& trainer) { return trainer.generate(prompts, options); });
          },
          arg("prompts"), arg("max_new_tokens"), arg("temperature"), arg("top_k"), arg("top_p"),
          arg("seed"), arg("stop_tokens"))
      .def("save", [](T& t) { t.call([](api::Trainer& trainer) { trainer.save(); }); })
      .def(
          "save",
          [](T& t, const std::string& directory) {
            t.call([&](api::Trainer& trainer) { trainer.save(directory); });
          },
          arg("directory"))
      .def(
          "load",
          [](T& t, const std::string& directory) {
            t.call([&](api::Trainer& trainer) { trainer.load(directory); });
          },
          arg("directory"))
      .def("parameters",
           [](T& t) {
             nb::dict all;
             for (const api::NamedTensor& one :
                  t.call([](api::Trainer& trainer) { return trainer.parameters(); })) {
               all[one.name.c_str()] = nb::cast(one.tensor);
             }
             return all;
           })
      .def_prop_ro(
          "iteration",
          [](T& t) { return t.call([](api::Trainer& trainer) { return trainer.iteration(); }); })
      .def_prop_ro(
          "rows", [](T& t) { return t.call([](api::Trainer& trainer) { return trainer.rows(); }); })
      .def_prop_ro(
          "seq_length",
          [](T& t) { return t.call([](api::Trainer& trainer) { return trainer.seq_length(); }); })
      .def_prop_ro(
          "layout",
          [](T& t) { return t.call([](api::Trainer& trainer) { return trainer.layout(); }); })
      .def_prop_ro("settings",
                   [](T& t) {
                     nb::dict all;
                     for (const auto& [name, value] :
                          t.call([](api::Trainer& trainer) { return trainer.resolved(); })) {
                       all[name.c_str()] = value_of(value);
                     }
                     return all;
                   })
      .def("data_parallel_mean",
           [](T& t, const std::vector<float>& values) {
             return t.call(
                 [&](api::Trainer& trainer) { return trainer.data_parallel_mean(values); });
           })
      .def("data_parallel_gather",
           [](T& t, const std::vector<float>& values) {
             return t.call(
                 [&](api::Trainer& trainer) { return trainer.data_parallel_gather(values); });
           })
      .def("close", &T::close);
}

}  // namespace megatron::python
