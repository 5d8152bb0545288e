#include "megatron/training/dashboard.h"

#include <gmock/gmock.h>
#include <httplib.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"

namespace megatron {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class DashboardTest : public testing::Test {
 protected:
  httplib::Result got(const std::string& path, const httplib::Headers& headers = {}) const {
    httplib::Client client("127.0.0.1", dashboard_.port());
    return client.Get(path, headers);
  }
  json data(const std::string& query = "") const {
    const httplib::Result answer = got("/run.json" + query);
    return answer && answer->status == 200 ? json::parse(answer->body) : json();
  }

  Dashboard dashboard_{{.name = "a <run>", .settings = {{"train_iters", int64_t{50}}}}};
};

TEST_F(DashboardTest, GivesTheRunAndThenItsNewPoints) {
  EXPECT_TRUE(data()["run"]["series"].empty());
  for (const int64_t iteration : {10, 20, 30}) {
    dashboard_.write(iteration, {{"lm loss", iteration == 20 ? std::nan("") : 0.5},
                                 {"elapsed_ms_per_iteration", 100}});
  }
  const json whole = data();
  EXPECT_EQ(whole["after"], -1);
  EXPECT_EQ(whole["run"]["name"], "a <run>");
  EXPECT_EQ(whole["run"]["settings"]["train_iters"], "50");
  EXPECT_EQ(whole["run"]["series"]["lm loss"]["v"], json({0.5, nullptr, 0.5}));
  dashboard_.write(30, {{"lm loss validation", 0.75}});
  dashboard_.write(40, {{"lm loss", 0.25}, {"elapsed_ms_per_iteration", 100}});
  const json more = data("?after=29&id=" + whole["id"].get<std::string>());
  EXPECT_EQ(more["id"], whole["id"]);
  EXPECT_EQ(more["after"], 29);
  EXPECT_EQ(more["run"]["series"]["lm loss"]["i"], json({30, 10}));
  EXPECT_EQ(more["run"]["series"]["lm loss validation"]["v"], json({0.75}));
  EXPECT_EQ(more["run"]["progress"]["seconds"], json({3, 4}));
  EXPECT_EQ(data("?after=29&id=other")["after"], -1);
  EXPECT_EQ(data("?after=x&id=" + whole["id"].get<std::string>())["after"], -1);
}

TEST_F(DashboardTest, ARunThatGoesBackIsGivenAnew) {
  dashboard_.write(10, {{"lm loss", 3}});
  dashboard_.write(20, {{"lm loss", 2}});
  const std::string id = data()["id"];
  dashboard_.write(15, {{"lm loss", 1}});
  const json again = data("?after=20&id=" + id);
  EXPECT_NE(again["id"], id);
  EXPECT_EQ(again["after"], -1);
  EXPECT_EQ(again["run"]["series"]["lm loss"]["v"], json({3, 1}));
}

TEST_F(DashboardTest, KeepsAShapeOfALongRun) {
  for (int64_t i = 1; i <= 20'000; ++i) dashboard_.write(i, {{"lm loss", i == 7777 ? 9 : 1}});
  const json loss = data()["run"]["series"]["lm loss"];
  EXPECT_LE(loss["n"], 6000);
  EXPECT_EQ(loss["max"], 9);
  EXPECT_EQ(loss["minAt"], 1);
}

TEST_F(DashboardTest, ThePageMayAskOnlyItsServer) {
  const httplib::Result page = got("/");
  EXPECT_EQ(page->status, 200);
  EXPECT_THAT(page->body, HasSubstr("<title>a &lt;run&gt;</title>"));
  EXPECT_THAT(page->body, HasSubstr(R"({"runs":[],"live":"run.json"})"));
  EXPECT_THAT(page->body, Not(HasSubstr("http-equiv")));
  EXPECT_THAT(page->get_header_value("Content-Security-Policy"),
              HasSubstr("default-src 'none'; script-src 'sha256-"));
}

TEST_F(DashboardTest, RefusesForeignPagesAndNames) {
  for (const char* const path : {"/", "/run.json"}) {
    EXPECT_EQ(got(path, {{"Host", "localhost"}})->status, 200);
    const httplib::Result foreign = got(path, {{"Host", "evil.example"}});
    EXPECT_EQ(foreign->status, 403);
    EXPECT_EQ(foreign->body,
              "the Host evil.example is not a name of this server; ask for 127.0.0.1 or localhost, "
              "as through ssh -L");
    EXPECT_EQ(got(path, {{"Origin", "http://evil.example"}})->status, 403);
  }
  EXPECT_EQ(got("/other")->status, 404);
}

TEST_F(DashboardTest, NamesAPortThatIsTaken) {
  const int port = dashboard_.port();
  EXPECT_EQ(message_of<IoError>([&] { Dashboard second({.port = port}); }),
            "--dashboard-port " + std::to_string(port) +
                ": cannot listen on 127.0.0.1; is another run or server there?");
}

}  // namespace
}  // namespace megatron
