#pragma once

#include <string>

#include "megatron/core/arg_map.h"
#include "megatron/training/live_run.h"
#include "megatron/training/web_service.h"

namespace megatron {

// A run of an MLflow tracking server, by its REST interface 2.0. The settings are parameters, cut
// to 500 bytes; characters that a name may not have become underscores. A repeated number with the
// same step and time is one number there.
class MlflowService final : public RunService {
 public:
  struct Description {
    std::string experiment;  // created if it is missing
    std::string run_name;    // empty: the server chooses one
    std::string run_id;      // of a run that goes on; empty: a new one
    ArgMap settings = {};
  };
  MlflowService(const std::string& url, const WebLogin& login, Description description);

  std::string start() override;
  void send(std::span<const RunRow> rows) override;
  void finish(bool has_failed) override;

 private:
  std::string experiment_id();
  void create_run(const std::string& experiment);
  void log_settings();

  WebService service_;
  Description description_;
  std::string run_id_;
};

}  // namespace megatron
