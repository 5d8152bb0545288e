#include "megatron/inference/engine.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings.h"
#include "megatron/run/loaded_model.h"
#include "megatron/server.h"
#include "model.h"

namespace megatron::python {
namespace {

const char* name_of(Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kFailed:
      return "failed";
    case Finish::kNone:
      break;
  }
  return "";
}

// Result of a step for a request.
struct Event {
  RequestId id = 0;
  std::optional<int32_t> token = {};
  std::optional<double> log_probability = {};
  std::vector<double> prompt_log_probabilities = {};
  std::string finish = {};  // empty: unfinished
};

// The batching engine of a model, which it keeps open for itself: it calls the model's functions
// under the model's guard.
class PythonEngine final : public WorldUser {
  // The model's guard: its weights do not change during a step.
  template <class F>
  auto call(const F& f) {
    return model_->call([&](api::Model&) {
      if (engine_ == nullptr) throw ClosedError("the engine is closed");
      return f(*engine_);
    });
  }

 public:
  PythonEngine(std::shared_ptr<PythonModel> model, const EngineOptions& options)
      : model_(std::move(model)) {
    model_->call([&](api::Model& model) {
      if (!has_decoder(model.kind())) {
        throw Unsupported("an engine continues texts, and a " +
                          std::string(megatron::name_of(model.kind())) + " has no decoder");
      }
      const LoadedModel& loaded = model.loaded();
      vocab_size_ = loaded.vocab_size;
      end_tokens_ = loaded.end_tokens;
      decoder_start_ = loaded.decoder_start;
      is_t5_ = is_encoder_decoder(model.kind());
      engine_ = std::make_unique<Engine>(loaded.inference(), options);
    });
    model_->add(*this);
  }
  ~PythonEngine() override {
    model_->remove(*this);
    close();
  }
  // REQUIRES: no call of this engine is running.
  void close() override {
    const nb::gil_scoped_release release;
    engine_.reset();
  }
  // Waits for one.
  void close_when_idle() {
    call([&](Engine&) { engine_.reset(); });
  }

  RequestId submit(std::vector<int32_t> prompt, Request request, bool ignores_end) {
    request.prompt = std::move(prompt);
    if (is_t5_) {
      if (!decoder_start_) throw ConfigError("the start token of this T5's decoder is not known");
      request.text = std::exchange(request.prompt, {*decoder_start_});
    }
    request.vocab_size = vocab_size_;
    if (!ignores_end) {
      request.stop_tokens.insert(request.stop_tokens.end(), end_tokens_.begin(), end_tokens_.end());
    }
    return call([&](Engine& engine) { return engine.submit(std::move(request)); });
  }
  void cancel(RequestId id) {
    call([&](Engine& engine) { engine.cancel(id); });
  }
  bool has_work() {
    return call([](Engine& engine) { return engine.has_work(); });
  }
  std::vector<Event> step() {
    std::vector<RequestProgress> all = call([](Engine& engine) {
      return engine.has_work() ? engine.step() : std::vector<RequestProgress>();
    });
    check_signals();
    std::vector<Event> events;
    for (RequestProgress& progress : all) {
      Event& event = events.emplace_back();
      event.id = progress.id;
      event.token = progress.token;
      if (progress.token) event.log_probability = progress.log_probability;
      event.prompt_log_probabilities = std::move(progress.prompt_log_probabilities);
      event.finish = name_of(progress.finish);
    }
    return events;
  }

 private:
  const std::shared_ptr<PythonModel> model_;
  int64_t vocab_size_ = 0;
  std::vector<int32_t> end_tokens_;
  std::optional<int32_t> decoder_start_;
  bool is_t5_ = false;
  std::unique_ptr<Engine> engine_;
};

class PythonServer final : public WorldUser {
 public:
  PythonServer(std::shared_ptr<PythonModel> model, const api::ServerOptions& options)
      : model_(std::move(model)) {
    server_ = model_->serve(
        [&](api::Model& served) { return std::make_unique<api::Server>(served, options); });
    model_->add(*this);
  }
  ~PythonServer() override {
    model_->remove(*this);
    close();
  }
  void close() override {
    std::unique_ptr<api::Server> server = std::move(server_);
    {
      const nb::gil_scoped_release release;
      if (server == nullptr) return;
      server.reset();
    }
    model_->stop_serving();
  }
  api::Server& get() const {
    if (server_ == nullptr) throw ClosedError("the server is closed");
    return *server_;
  }

 private:
  const std::shared_ptr<PythonModel> model_;
  std::unique_ptr<api::Server> server_;
};

}  // namespace

void bind_engine(nb::module_& m) {
  using nb::arg;
  nb::class_<Event>(m, "Event", "What a step did for a request.")
      .def_ro("id", &Event::id)
      .def_ro("token", &Event::token)
      .def_ro("log_probability", &Event::log_probability)
      .def_ro("prompt_log_probabilities", &Event::prompt_log_probabilities)
      .def_ro("finish", &Event::finish, "stop, length or failed; empty: unfinished");
  nb::class_<PythonEngine>(m, "Engine")
      .def(
          "__init__",
          [](PythonEngine* self, std::shared_ptr<PythonModel> model, int64_t max_rows,
             int64_t max_step_tokens, int64_t cache_tokens, bool reuse_prefixes) {
            if (max_rows < 1 || max_step_tokens < 1 || cache_tokens < 0) {
              throw ConfigError(
                  "max_rows and max_step_tokens must be 1 or more, and cache_tokens "
                  "0 or more");
            }
            EngineOptions options;
            options.max_rows = max_rows;
            options.max_step_tokens = max_step_tokens;
            options.cache_tokens = cache_tokens;
            options.reuse_prefixes = reuse_prefixes;
            new (self) PythonEngine(std::move(model), options);
          },
          arg("model"), arg("max_rows"), arg("max_step_tokens"), arg("cache_tokens"),
          arg("reuse_prefixes"))
      .def(
          "submit",
          [](PythonEngine& engine, std::vector<int32_t> prompt, int64_t max_new_tokens,
             double temperature, int64_t top_k, double top_p, uint64_t seed, int64_t row,
             std::vector<int32_t> stop_tokens, bool ignore_end, bool log_probabilities,
             std::optional<double> repetition_penalty) {
            if (max_new_tokens < 0) throw ConfigError("max_new_tokens must be 0 or more");
            Request request;
            request.max_new_tokens = max_new_tokens;
            request.sampling.temperature = temperature;
            request.sampling.top_k = top_k;
            request.sampling.top_p = top_p;
            if (repetition_penalty) request.sampling.repetition_penalty = *repetition_penalty;
            request.seed = seed;
            request.row = row;
            request.stop_tokens = std::move(stop_tokens);
            request.return_log_probabilities = log_probabilities;
            return engine.submit(std::move(prompt), std::move(request), ignore_end);
          },
          arg("prompt"), arg("max_new_tokens"), arg("temperature"), arg("top_k"), arg("top_p"),
          arg("seed"), arg("row"), arg("stop_tokens"), arg("ignore_end"), arg("log_probabilities"),
          arg("repetition_penalty").none())
      .def("cancel", &PythonEngine::cancel, arg("id"))
      .def("has_work", &PythonEngine::has_work)
      .def("step", &PythonEngine::step)
      .def("close", &PythonEngine::close_when_idle);
  nb::class_<PythonServer>(m, "Server")
      .def(
          "__init__",
          [](PythonServer* self, std::shared_ptr<PythonModel> model, const std::string& host,
             int port, const std::string& api_key, const std::string& name,
             int64_t max_running_requests, int64_t cache_tokens) {
            new (self) PythonServer(std::move(model), {.host = host,
                                                       .port = port,
                                                       .api_key = api_key,
                                                       .name = name,
                                                       .max_running_requests = max_running_requests,
                                                       .cache_tokens = cache_tokens});
          },
          arg("model"), arg("host"), arg("port"), arg("api_key"), arg("name"),
          arg("max_running_requests"), arg("cache_tokens"))
      .def_prop_ro("port", [](PythonServer& s) { return s.get().port(); })
      .def_prop_ro("name", [](PythonServer& s) { return s.get().name(); })
      .def("close", &PythonServer::close);
}

}  // namespace megatron::python
