#include "megatron/training/mlflow_service.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "megatron/core/json.h"
#include "megatron/core/printable.h"

namespace megatron {
namespace {

using nlohmann::json;

// Limits of a request of the server.
constexpr size_t kMaxMetrics = 1000;
constexpr size_t kMaxParameters = 100;
constexpr size_t kMaxParameterBytes = 500;

const std::string kRoot = "/api/2.0/mlflow/";

int64_t milliseconds(double unix_seconds) { return std::llround(unix_seconds * 1000); }

int64_t now() {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}

std::string valid_name(std::string name) {
  constexpr std::string_view kOthers = "_-. /";
  for (char& c : name) {
    const bool is_word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!is_word && kOthers.find(c) == std::string_view::npos) c = '_';
  }
  return name;
}

// JSON of protobuf has words for numbers that JSON lacks.
json metric_value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

std::string parameter_text(const ArgValue& value) {
  std::string text = text_of(value);
  text.resize(utf8_prefix(std::string_view(text).substr(0, kMaxParameterBytes)));
  return text;
}

bool is_missing(const WebError& error) {
  const json answer = try_parse_json(error.answer());
  return answer.is_object() && answer.value("error_code", json()) == "RESOURCE_DOES_NOT_EXIST";
}

}  // namespace

MlflowService::MlflowService(const std::string& url, const WebLogin& login, Description description)
    : service_(url, login), description_(std::move(description)) {}

std::string MlflowService::experiment_id() {
  try {
    return service_
        .get(kRoot + "experiments/get-by-name", "experiment_name", description_.experiment)
        .at("experiment")
        .at("experiment_id");
  } catch (const WebError& error) {
    if (!is_missing(error)) throw;
  }
  return service_.post(kRoot + "experiments/create", {{"name", description_.experiment}})
      .at("experiment_id");
}

std::string MlflowService::start() {
  std::string experiment;
  if (description_.run_id.empty()) {
    experiment = experiment_id();
    if (run_id_.empty()) create_run(experiment);
    log_settings();
  } else {  // a run that goes on, whose settings the server has: it refuses others
    run_id_ = description_.run_id;
    experiment = service_.post(kRoot + "runs/update", {{"run_id", run_id_}, {"status", "RUNNING"}})
                     .at("run_info")
                     .at("experiment_id");
  }
  return fmt::format("{}/#/experiments/{}/runs/{}", service_.url(), experiment, run_id_);
}

void MlflowService::create_run(const std::string& experiment) {
  json run = {{"experiment_id", experiment},
              {"start_time", now()},
              {"tags", json::array({{{"key", "mlflow.source.name"}, {"value", "megatron"}}})}};
  if (!description_.run_name.empty()) run["run_name"] = description_.run_name;
  run_id_ = service_.post(kRoot + "runs/create", run).at("run").at("info").at("run_id");
}

void MlflowService::log_settings() {
  json parameters = json::array();
  const auto post = [&] {
    if (parameters.empty()) return;
    service_.post(kRoot + "runs/log-batch", {{"run_id", run_id_}, {"params", parameters}});
    parameters.clear();
  };
  for (const auto& [name, value] : description_.settings) {
    parameters.push_back({{"key", valid_name(name)}, {"value", parameter_text(value)}});
    if (parameters.size() == kMaxParameters) post();
  }
  post();
}

void MlflowService::send(std::span<const RunRow> rows) {
  json metrics = json::array();
  const auto post = [&] {
    if (metrics.empty()) return;
    service_.post(kRoot + "runs/log-batch", {{"run_id", run_id_}, {"metrics", metrics}});
    metrics.clear();
  };
  for (const RunRow& row : rows) {
    for (const auto& [name, value] : row.values) {
      metrics.push_back({{"key", valid_name(name)},
                         {"value", metric_value(value)},
                         {"timestamp", milliseconds(row.unix_seconds)},
                         {"step", row.iteration}});
      if (metrics.size() == kMaxMetrics) post();
    }
  }
  post();
}

void MlflowService::finish(bool has_failed) {
  service_.post(
      kRoot + "runs/update",
      {{"run_id", run_id_}, {"status", has_failed ? "FAILED" : "FINISHED"}, {"end_time", now()}});
}

}  // namespace megatron
