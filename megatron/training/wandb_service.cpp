#include "megatron/training/wandb_service.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/core/json.h"
#include "megatron/core/printable.h"
#include "megatron/training/wandb_values.h"

namespace megatron {
namespace {

using nlohmann::json;

constexpr const char* kUpsertBucket = R"(
mutation UpsertBucket($name: String, $project: String, $entity: String, $displayName: String,
                      $config: JSONString, $host: String) {
  upsertBucket(input: {name: $name, modelName: $project, entityName: $entity,
                       displayName: $displayName, config: $config, host: $host}) {
    bucket { name historyLineCount project { name entity { name } } }
    inserted
  }
})";

// An object of names and values that are JSON already.
std::string json_object(const std::map<std::string, std::string>& values) {
  std::string text;
  for (const auto& [name, value] : values) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", dump_json(json(name)), value);
  }
  return "{" + text + "}";
}

std::map<std::string, std::string> json_of_row(const RunRow& row) {
  std::map<std::string, std::string> values;
  for (const auto& [name, value] : row.values) values[name] = wandb_json(value);
  return values;
}

}  // namespace

WandbService::WandbService(const WandbAccess& access, Description description)
    : service_(access.url, {.user = "api", .password = access.key}),
      description_(std::move(description)) {}

std::string WandbService::start() {
  std::map<std::string, std::string> config;
  for (const auto& [name, setting] : description_.settings) {
    config[name] = json_object({{"value", wandb_json(setting)}, {"desc", "null"}});
  }
  const json entity = description_.entity.empty() ? json() : json(description_.entity);
  const json answer = service_.post("/graphql", {{"query", kUpsertBucket},
                                                 {"variables",
                                                  {{"name", description_.id},
                                                   {"project", description_.project},
                                                   {"entity", entity},
                                                   {"displayName", description_.name},
                                                   {"config", json_object(config)},
                                                   {"host", description_.host}}}});
  if (answer.contains("errors") && !answer["errors"].empty()) {
    throw WebError(fmt::format("{} refuses the run: {}", service_.url(),
                               shortened(dump_json(answer["errors"]), 300)),
                   false);
  }
  const json& bucket = answer.at("data").at("upsertBucket").at("bucket");
  const json& project = bucket.at("project");
  const std::string path = fmt::format("{}/{}", project.at("entity").at("name").get<std::string>(),
                                       project.at("name").get<std::string>());
  const std::string id = bucket.at("name");
  stream_ = fmt::format("/files/{}/{}/file_stream", path, id);
  // A run that goes on, by WANDB_RUN_ID.
  if (const auto lines = bucket.find("historyLineCount"); lines != bucket.end()) {
    if (lines->is_number_integer()) num_lines_ = *lines;
  }
  std::string page = service_.url();
  if (page == WandbAccess().url) page = "https://wandb.ai";
  return fmt::format("{}/{}/runs/{}", page, path, id);
}

void WandbService::send(std::span<const RunRow> rows) {
  json body = {{"complete", false}, {"failed", false}, {"dropped", 0}, {"uploaded", json::array()}};
  if (!rows.empty()) {
    json lines = json::array();
    for (const RunRow& row : rows) {
      const std::map<std::string, std::string> values = json_of_row(row);
      lines.push_back(json_object(values));
      for (const auto& [name, value] : values) summary_[name] = value;
    }
    body["files"] = {
        {"wandb-history.jsonl", {{"offset", num_lines_}, {"content", std::move(lines)}}},
        {"wandb-summary.json", {{"offset", 0}, {"content", json::array({json_object(summary_)})}}}};
  }
  service_.post(stream_, body);
  num_lines_ += static_cast<int64_t>(rows.size());
}

void WandbService::finish(bool has_failed) {
  service_.post(stream_, {{"complete", true},
                          {"exitcode", has_failed ? 1 : 0},
                          {"dropped", 0},
                          {"uploaded", json::array()}});
}

}  // namespace megatron
