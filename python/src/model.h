#pragma once

#include <memory>
#include <string>

#include "bindings.h"
#include "megatron/model.h"

namespace megatron::python {

// A Model of Python. Engines share it.
class PythonModel final : public WorldUser {
 public:
  PythonModel(const std::string& directory, const api::ModelOptions& options,
              std::shared_ptr<RankWorld> world);
  ~PythonModel() override;

  template <class F>
  auto call(const F& f) {
    if (world_ != nullptr) static_cast<void>(world_->get());
    if (is_served_) throw Error("the model is being served: close its server first");
    return model_.call(f);
  }
  // The model for a server, which alone uses it until stop_serving().
  template <class F>
  auto serve(const F& f) {
    auto server = call(f);
    is_served_ = true;
    return server;
  }
  void stop_serving() { is_served_ = false; }
  // Closes the engines first.
  void close() override;
  void add(WorldUser& engine) { engines_.insert(&engine); }
  void remove(WorldUser& engine) { engines_.erase(&engine); }

 private:
  const std::shared_ptr<RankWorld> world_;
  std::set<WorldUser*> engines_;
  bool is_served_ = false;
  Guarded<api::Model, SecondCall::kWaits> model_{"the model"};
};

}  // namespace megatron::python
