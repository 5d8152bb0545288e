#include "megatron/training/trackers.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/host_name.h"
#include "megatron/core/log.h"
#include "megatron/core/parts.h"
#include "megatron/training/csv_folder.h"
#include "megatron/training/dashboard.h"
#include "megatron/training/metrics_file.h"
#include "megatron/training/mlflow_run.h"
#include "megatron/training/mlflow_service.h"
#include "megatron/training/wandb_run.h"
#include "megatron/training/wandb_service.h"

namespace megatron {
namespace {

// The value of a variable; empty without it.
std::string of_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The service to which a run goes; none: it stays offline.
std::optional<WandbAccess> wandb_access(const std::string& mode) {
  WandbAccess access;
  access.key = of_environment("WANDB_API_KEY");
  if (const std::string url = of_environment("WANDB_BASE_URL"); !url.empty()) access.url = url;
  if (mode == "offline" || (mode.empty() && access.key.empty())) return {};
  if (!mode.empty() && mode != "online") {
    warn(fmt::format("WANDB_MODE {} is not online, offline or disabled; the run is offline", mode));
    return {};
  }
  if (access.key.empty()) {
    warn("WANDB_MODE online needs WANDB_API_KEY, the key of an account; the run is offline");
    return {};
  }
  if (!kHasServer) {
    warn(missing_part("a live run of Weights & Biases", "MG_SERVER") + "; the run is offline");
    return {};
  }
  return access;
}

std::unique_ptr<Tracker> open_wandb(const RunConfig& run) {
  const TrainingConfig& config = run.training;
  const std::string mode = of_environment("WANDB_MODE");
  if (mode == "disabled") return nullptr;
  const std::optional<WandbAccess> access = wandb_access(mode);
  auto tracker = std::make_unique<WandbRun>(
      config.wandb_save_dir, WandbRun::Description{.project = config.wandb_project,
                                                   .name = config.wandb_exp_name,
                                                   .id = of_environment("WANDB_RUN_ID"),
                                                   .settings = run.settings});
  if constexpr (kHasServer) {
    if (access) {
      const std::string entity =
          config.wandb_entity.empty() ? of_environment("WANDB_ENTITY") : config.wandb_entity;
      tracker->go_live(std::make_unique<WandbService>(
                           *access, WandbService::Description{.id = tracker->id(),
                                                              .project = config.wandb_project,
                                                              .entity = entity,
                                                              .name = config.wandb_exp_name,
                                                              .host = host_name(),
                                                              .settings = run.settings}),
                       {});
    }
  }
  return tracker;
}

std::unique_ptr<Tracker> open_mlflow(const RunConfig& run) {
  if constexpr (kHasServer) {
    const TrainingConfig& config = run.training;
    auto service = std::make_unique<MlflowService>(
        config.mlflow_tracking_uri,
        WebLogin{.token = of_environment("MLFLOW_TRACKING_TOKEN"),
                 .user = of_environment("MLFLOW_TRACKING_USERNAME"),
                 .password = of_environment("MLFLOW_TRACKING_PASSWORD")},
        MlflowService::Description{.experiment = config.mlflow_experiment,
                                   .run_name = config.mlflow_run_name,
                                   .run_id = of_environment("MLFLOW_RUN_ID"),
                                   .settings = run.settings});
    const std::tm now = fmt::localtime(std::time(nullptr));
    const std::string file = fmt::format("mlflow-unsent-{:%Y%m%d_%H%M%S}-{}.jsonl", now, getpid());
    return std::make_unique<MlflowRun>(
        std::move(service), std::filesystem::path(run.checkpoint.save) / file, LiveRun::Pace{});
  } else {
    refuse_missing("--mlflow-experiment", "MG_SERVER");
  }
}

std::unique_ptr<Tracker> open_dashboard(const RunConfig& run) {
  if constexpr (kHasServer) {
    const TrainingConfig& config = run.training;
    const std::string name = std::filesystem::path(run.checkpoint.save).filename().string();
    auto dashboard = std::make_unique<Dashboard>(
        Dashboard::Description{.host = config.dashboard_host,
                               .port = config.dashboard_port,
                               .name = name.empty() ? "training run" : name,
                               .settings = run.settings});
    print_line(fmt::format("> the run is shown at http://{}:{}", config.dashboard_host,
                           dashboard->port()));
    return dashboard;
  } else {
    refuse_missing("--dashboard-port", "MG_SERVER");
  }
}

}  // namespace

std::vector<std::unique_ptr<Tracker>> open_trackers(const RunConfig& run) {
  const TrainingConfig& config = run.training;
  std::vector<std::unique_ptr<Tracker>> trackers;
  const auto open = [&](const std::string& named, const auto& make) {
    if (named.empty()) return;
    try {
      if (std::unique_ptr<Tracker> tracker = make()) trackers.push_back(std::move(tracker));
    } catch (const Error& error) {
      warn(fmt::format("{}; the run continues without this tracker", error.what()));
    }
  };
  open(config.metrics_jsonl, [&] { return std::make_unique<MetricsFile>(config.metrics_jsonl); });
  open(config.csv_dir, [&] { return std::make_unique<CsvFolder>(config.csv_dir); });
  open(config.wandb_project, [&] { return open_wandb(run); });
  open(config.mlflow_experiment, [&] { return open_mlflow(run); });
  open(config.dashboard_port == 0 ? "" : config.dashboard_host,
       [&] { return open_dashboard(run); });
  return trackers;
}

}  // namespace megatron
