#include "megatron/training/live_run.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <stdexcept>

#include "megatron/core/file.h"
#include "megatron/training/mlflow_run.h"
#include "megatron/training/mlflow_service.h"
#include "megatron/training/wandb_run.h"
#include "megatron/training/wandb_service.h"
#include "megatron/training/web_address.h"
#include "tests/support/captured_output.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/web_stand_in.h"

namespace megatron {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Answer = WebStandIn::Answer;
using Request = WebStandIn::Request;

constexpr LiveRun::Pace kQuick = {.first_retry = 1ms, .last_retry = 2ms, .heartbeat = 1h};
// A port that no test binds: connections are refused at once.
const std::string kNobody = "http://127.0.0.1:1";

TEST(WebAddressTest, IsAnOriginAndAPrefix) {
  EXPECT_EQ(web_address_of("http://a:80")->origin, "http://a:80");
  EXPECT_EQ(web_address_of("http://a:80///")->prefix, "");
  EXPECT_EQ(web_address_of("https://a.b/c/d/")->origin, "https://a.b");
  EXPECT_EQ(web_address_of("https://a.b/c/d/")->prefix, "/c/d");
  for (const char* other : {"", "a", "a:80", "file:///a", "http://", "https:///", "http:///a",
                            "http://me:secret@a", "http://a?b", "http://a#b", "http://a b"}) {
    EXPECT_FALSE(web_address_of(other)) << other;
  }
}

// ---- Weights & Biases

Answer wandb_answer(const Request& request) {
  if (request.path != "/graphql") return {};
  return {.body = json::parse(R"({"data": {"upsertBucket": {"inserted": true, "bucket":
    {"name": "r1", "historyLineCount": 0,
     "project": {"name": "p", "entity": {"name": "team"}}}}}})")};
}

WandbService::Description description() {
  return {.id = "r1",
          .project = "p",
          .entity = "team",
          .name = "first",
          .host = "h",
          .settings = {{"lr", 0.5}, {"load", ArgValue()}}};
}

// The parsed lines of the history, and their places.
std::vector<std::pair<int64_t, json>> history_of(const std::vector<Request>& requests) {
  std::vector<std::pair<int64_t, json>> lines;
  for (const Request& request : requests) {
    if (!request.body.contains("files")) continue;
    const json& history = request.body["files"]["wandb-history.jsonl"];
    int64_t place = history["offset"];
    for (const std::string line : history["content"]) {
      lines.emplace_back(place++, json::parse(line, nullptr, false));
    }
  }
  return lines;
}

TEST(WandbServiceTest, CreatesTheRunAndStreamsItsRows) {
  const TemporaryDirectory directory;
  const WebStandIn server(wandb_answer);
  CapturedStdout captured_out;
  std::filesystem::path path;
  {
    WandbRun run(directory.path(), {.project = "p", .name = "first", .id = "r1"});
    path = run.path();
    run.go_live(std::make_unique<WandbService>(WandbAccess{server.url(), "key"}, description()),
                kQuick);
    run.write(10, {{"lm loss", 2.5}});
    run.write(10, {{"lm loss validation", 2.75}});
    run.write(20, {{"lm loss", 2.25}});
  }
  EXPECT_EQ(captured_out.text(), "> the run is shown at " + server.url() + "/team/p/runs/r1\n");
  const std::vector<Request> requests = server.requests();
  EXPECT_EQ(requests[0].path, "/graphql");
  EXPECT_EQ(requests[0].authorization, "Basic YXBpOmtleQ==");  // api:key
  const json& variables = requests[0].body["variables"];
  EXPECT_THAT(requests[0].body["query"], HasSubstr("upsertBucket"));
  EXPECT_EQ(variables["name"], "r1");
  EXPECT_EQ(variables["project"], "p");
  EXPECT_EQ(variables["entity"], "team");
  EXPECT_EQ(variables["displayName"], "first");
  const json config = json::parse(std::string(variables["config"]));
  EXPECT_EQ(config["lr"]["value"], 0.5);
  EXPECT_TRUE(config["load"]["value"].is_null());

  for (size_t i = 1; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].path, "/files/team/p/r1/file_stream");
  }
  const auto lines = history_of(requests);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].first, 0);
  EXPECT_EQ(lines[0].second["_step"], 10);
  EXPECT_EQ(lines[0].second["lm loss"], 2.5);
  EXPECT_EQ(lines[0].second["lm loss validation"], 2.75);
  EXPECT_EQ(lines[1].first, 1);
  EXPECT_EQ(lines[1].second["_step"], 20);
  const json& end = requests.back().body;
  EXPECT_EQ(end["complete"], true);
  EXPECT_EQ(end["exitcode"], 0);
  const json& last = requests[requests.size() - 2].body["files"]["wandb-summary.json"];
  const json summary = json::parse(std::string(last["content"][0]));
  EXPECT_EQ(summary["lm loss"], 2.25);
  EXPECT_EQ(summary["lm loss validation"], 2.75);
  EXPECT_TRUE(std::filesystem::exists(path.string() + ".synced"));
}

TEST(WandbServiceTest, ARefusalIsAWarningAndTheFileHasTheRun) {
  const TemporaryDirectory directory;
  const WebStandIn server([](const Request&) {
    return Answer{.status = 401, .body = {{"error", "the key is unknown"}}};
  });
  CapturedStderr captured_err;
  std::filesystem::path path;
  {
    WandbRun run(directory.path(), {.project = "p", .name = "first"});
    path = run.path();
    run.go_live(std::make_unique<WandbService>(WandbAccess{server.url(), "key"}, description()),
                kQuick);
    EXPECT_TRUE(server.wait_for(1));
    run.write(10, {{"lm loss", 2.5}});
    run.write(20, {{"lm loss", 2.25}});
  }
  EXPECT_EQ(server.requests().size(), 1u) << "a refused request is not repeated";
  EXPECT_THAT(captured_err.text(),
              AllOf(HasSubstr("answered 401"), HasSubstr("the key is unknown"),
                    HasSubstr("the training goes on"), HasSubstr("`wandb sync "),
                    HasSubstr("2 rows of the run were not sent")));
  EXPECT_THAT(read_text(path), AllOf(HasSubstr("2.5"), HasSubstr("2.25")));
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".synced"));
}

TEST(WandbServiceTest, AnErrorOfGraphqlIsARefusal) {
  const WebStandIn server([](const Request&) {
    return Answer{.body = {{"errors", {{{"message", "no such entity"}}}}}};
  });
  WandbService service({server.url(), "key"}, description());
  try {
    service.start();
    FAIL();
  } catch (const WebError& error) {
    EXPECT_FALSE(error.may_pass());
    EXPECT_THAT(error.what(), HasSubstr("no such entity"));
  }
}

TEST(WandbServiceTest, ARunThatGoesOnAppendsToItsHistory) {
  const WebStandIn server([](const Request& request) {
    Answer answer = wandb_answer(request);
    if (request.path == "/graphql") {
      answer.body["data"]["upsertBucket"]["bucket"]["historyLineCount"] = 7;
    }
    return answer;
  });
  WandbService service({server.url(), "key"}, description());
  service.start();
  const std::vector<RunRow> rows = {{.iteration = 80, .values = {{"lm loss", std::nan("")}}}};
  service.send(rows);
  const json history = server.requests().back().body["files"]["wandb-history.jsonl"];
  EXPECT_EQ(history["offset"], 7);
  EXPECT_EQ(history["content"][0], "{\"lm loss\": NaN}");
}

TEST(WandbServiceTest, NoEntityIsThatOfTheKey) {
  const WebStandIn server(wandb_answer);
  WandbService::Description run = description();
  run.entity = "";
  WandbService({server.url(), "key"}, run).start();
  EXPECT_TRUE(server.requests()[0].body["variables"]["entity"].is_null());
}

// ---- MLflow

Answer mlflow_answer(const Request& request) {
  if (request.path.ends_with("experiments/get-by-name")) {
    return {.status = 404, .body = {{"error_code", "RESOURCE_DOES_NOT_EXIST"}, {"message", "no"}}};
  }
  if (request.path.ends_with("experiments/create")) return {.body = {{"experiment_id", "7"}}};
  if (request.path.ends_with("runs/create")) {
    return {.body = {{"run", {{"info", {{"run_id", "abc"}}}}}}};
  }
  if (request.path.ends_with("runs/update")) {
    return {.body = {{"run_info", {{"run_id", "abc"}, {"experiment_id", "8"}}}}};
  }
  return {};
}

std::unique_ptr<MlflowService> mlflow_service(const std::string& url,
                                              const std::string& run_id = "") {
  return std::make_unique<MlflowService>(
      url, WebLogin{.token = "t"},
      MlflowService::Description{.experiment = "e & e",
                                 .run_name = "first",
                                 .run_id = run_id,
                                 .settings = {{"lr", 0.5}, {"long", std::string(600, 'x')}}});
}

TEST(MlflowServiceTest, CreatesExperimentAndRunAndLogsBatches) {
  const TemporaryDirectory directory;
  const WebStandIn server(mlflow_answer);
  CapturedStdout captured_out;
  {
    MlflowRun run(mlflow_service(server.url() + "/prefix/"), directory.path() / "unsent", kQuick);
    run.write(10, {{"lm loss", 2.5}, {"a:b", std::nan("")}});
  }
  EXPECT_THAT(captured_out.text(), HasSubstr(server.url() + "/prefix/#/experiments/7/runs/abc"));
  std::vector<std::string> paths;
  for (const Request& request : server.requests()) {
    EXPECT_EQ(request.authorization, "Bearer t");
    paths.push_back(request.path.substr(std::string("/prefix/api/2.0/mlflow/").size()));
  }
  const std::vector<Request> requests = server.requests();
  ASSERT_THAT(paths, ElementsAre("experiments/get-by-name", "experiments/create", "runs/create",
                                 "runs/log-batch", "runs/log-batch", "runs/update"));
  EXPECT_EQ(requests[0].body["experiment_name"], "e & e");
  EXPECT_EQ(requests[2].body["experiment_id"], "7");
  EXPECT_EQ(requests[2].body["run_name"], "first");
  const json& parameters = requests[3].body["params"];
  EXPECT_EQ(parameters[0], json({{"key", "long"}, {"value", std::string(500, 'x')}}));
  EXPECT_EQ(parameters[1], json({{"key", "lr"}, {"value", "0.5"}}));
  const json& metrics = requests[4].body["metrics"];
  EXPECT_EQ(requests[4].body["run_id"], "abc");
  EXPECT_EQ(metrics[0]["key"], "lm loss");
  EXPECT_EQ(metrics[0]["value"], 2.5);
  EXPECT_EQ(metrics[0]["step"], 10);
  EXPECT_GT(metrics[0]["timestamp"], 1'600'000'000'000);
  EXPECT_EQ(metrics[1]["key"], "a_b");
  EXPECT_EQ(metrics[1]["value"], "NaN");
  EXPECT_EQ(requests[5].body["status"], "FINISHED");
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "unsent"));
}

TEST(MlflowServiceTest, AnExceptionEndsTheRunAsFailed) {
  const TemporaryDirectory directory;
  const WebStandIn server(mlflow_answer);
  CapturedStdout captured_out;
  try {
    const MlflowRun run(mlflow_service(server.url()), directory.path() / "unsent", kQuick);
    throw std::runtime_error("a training ends");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(server.requests().back().body["status"], "FAILED");
}

TEST(MlflowServiceTest, ARunThatGoesOnKeepsItsSettings) {
  const WebStandIn server(mlflow_answer);
  EXPECT_THAT(mlflow_service(server.url(), "abc")->start(), HasSubstr("/experiments/8/runs/abc"));
  ASSERT_EQ(server.requests().size(), 1u);
  EXPECT_EQ(server.requests()[0].body["status"], "RUNNING");
}

TEST(MlflowServiceTest, DividesWhatExceedsARequest) {
  const WebStandIn server(mlflow_answer);
  const auto service = mlflow_service(server.url());
  service->start();
  const size_t before = server.requests().size();
  NamedValues values;
  for (int i = 0; i < 1001; ++i) values.emplace_back("n" + std::to_string(i), i);
  const std::vector<RunRow> rows = {{.iteration = 1, .values = values}};
  service->send(rows);
  const std::vector<Request> requests = server.requests();
  ASSERT_EQ(requests.size(), before + 2);
  EXPECT_EQ(requests[before].body["metrics"].size(), 1000u);
  EXPECT_EQ(requests[before + 1].body["metrics"].size(), 1u);
}

// ---- Failures of the network

TEST(LiveRunTest, ADeadNetworkIsOneWarningAndTheRowsAreKept) {
  const TemporaryDirectory directory;
  const std::filesystem::path unsent = directory.path() / "unsent.jsonl";
  CapturedStderr captured_err;
  {
    MlflowRun run(mlflow_service(kNobody), unsent, kQuick);
    for (int i = 1; i <= 3; ++i) run.write(i, {{"lm loss", 1.0 / i}});
  }
  const std::string err = captured_err.text();
  EXPECT_THAT(err, AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("the training goes on"),
                         HasSubstr("3 rows of the run were not sent"), HasSubstr("unsent.jsonl")));
  EXPECT_EQ(err.find("training goes on"), err.rfind("training goes on"));
  EXPECT_THAT(read_text(unsent), AllOf(HasSubstr("\"iteration\": 1, \"lm loss\": 1,"),
                                       HasSubstr("\"iteration\": 3"), HasSubstr("unix_seconds")));
}

TEST(LiveRunTest, AServiceThatComesBackGetsAllRows) {
  std::atomic<int> failures = 3;
  const WebStandIn server([&](const Request& request) {
    if (failures-- > 0) return Answer{.status = 503};
    return wandb_answer(request);
  });
  CapturedStderr captured_err;
  CapturedStdout captured_out;
  int64_t kept = 0;
  LiveRun live(
      std::make_unique<WandbService>(WandbAccess{server.url(), "key"}, description()),
      [&](const RunRow&) { ++kept; }, "they are gone", kQuick);
  live.add({.iteration = 10, .values = {{"_step", 10}}});
  live.add({.iteration = 20, .values = {{"_step", 20}}});
  EXPECT_TRUE(server.wait_for(5));  // three failures, the run, its rows
  EXPECT_TRUE(live.finish(false));
  EXPECT_EQ(kept, 0);
  std::vector<int64_t> steps;
  for (const auto& [place, line] : history_of(server.requests())) {
    EXPECT_EQ(place, static_cast<int64_t>(steps.size()));
    steps.push_back(line["_step"]);
  }
  EXPECT_THAT(steps, ElementsAre(10, 20));
  EXPECT_THAT(captured_err.text(), Not(HasSubstr("were not sent")));
}

TEST(LiveRunTest, AFullQueueKeepsTheRow) {
  std::atomic<bool> may_answer = false;
  const WebStandIn server([&](const Request& request) {
    may_answer.wait(false);
    return wandb_answer(request);
  });
  CapturedStderr captured_err;
  CapturedStdout captured_out;
  std::vector<int64_t> kept;
  LiveRun::Pace pace = kQuick;
  pace.max_rows = 2;
  LiveRun live(
      std::make_unique<WandbService>(WandbAccess{server.url(), "key"}, description()),
      [&](const RunRow& row) { kept.push_back(row.iteration); }, "they are gone", pace);
  for (int64_t i = 1; i <= 3; ++i) live.add({.iteration = i});
  EXPECT_THAT(kept, ElementsAre(3));
  may_answer = true;
  may_answer.notify_all();
  EXPECT_FALSE(live.finish(false));
  EXPECT_THAT(captured_err.text(), HasSubstr("1 rows of the run were not sent; they are gone"));
}

TEST(LiveRunTest, SaysThatAnIdleRunGoesOn) {
  const WebStandIn server(wandb_answer);
  CapturedStdout captured_out;
  LiveRun::Pace pace = kQuick;
  pace.heartbeat = 1ms;
  LiveRun live(
      std::make_unique<WandbService>(WandbAccess{server.url(), "key"}, description()),
      [](const RunRow&) {}, "", pace);
  EXPECT_TRUE(server.wait_for(4));
  EXPECT_TRUE(live.finish(false));
  const json body = server.requests()[2].body;
  EXPECT_FALSE(body.contains("files"));
  EXPECT_EQ(body["complete"], false);
}

}  // namespace
}  // namespace megatron
