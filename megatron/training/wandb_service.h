#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "megatron/core/arg_map.h"
#include "megatron/training/live_run.h"
#include "megatron/training/web_service.h"

namespace megatron {

struct WandbAccess {
  std::string url = "https://api.wandb.ai";
  std::string key = {};
};

// A run of Weights & Biases, by the requests of its client: the GraphQL mutation upsertBucket
// creates it, posts to .../file_stream append lines to its history and replace its summary. A
// line has a place in the history, so that a repeated request adds nothing.
class WandbService final : public RunService {
 public:
  struct Description {
    std::string id;
    std::string project;
    std::string entity;  // empty: that of the key
    std::string name;
    std::string host;
    ArgMap settings = {};
  };
  WandbService(const WandbAccess& access, Description description);

  std::string start() override;
  void send(std::span<const RunRow> rows) override;
  void finish(bool has_failed) override;

 private:
  WebService service_;
  Description description_;
  std::string stream_;                          // path of the run's file_stream
  int64_t num_lines_ = 0;                       // of its history
  std::map<std::string, std::string> summary_;  // the last value of each number, as JSON
};

}  // namespace megatron
