#include "annex/deepspeed/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"
#include "tests/support/json_lines.h"
#include "tests/support/message_of.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Hosts = std::vector<HostSlots>;

// [["worker-0", 4], ...] or [["worker-0", [0, 1]], ...]
Hosts hosts_of(const json& list) {
  Hosts hosts;
  for (const json& entry : list) {
    HostSlots host{entry[0], {}};
    if (entry[1].is_array()) {
      host.slots = entry[1].get<std::vector<int64_t>>();
    } else {
      for (int64_t slot = 0; slot < entry[1].get<int64_t>(); ++slot) host.slots.push_back(slot);
    }
    hosts.push_back(host);
  }
  return hosts;
}

Hosts result_of(const std::string& function, const json& input) {
  if (function == "fetch_hostfile") return read_hostfile(input["text"], "hostfile");
  if (function == "parse_resource_filter") {
    return filtered(hosts_of(input["host_info"]), input["include_str"], input["exclude_str"]);
  }
  if (function == "parse_inclusion_exclusion") {
    return filtered(hosts_of(input["resource_pool"]), input["inclusion"], input["exclusion"]);
  }
  return limited(hosts_of(input["active_resources"]), input["num_nodes"], input["num_gpus"]);
}

TEST(DeepSpeedHosts, AreChosenAsThere) {
  int compared = 0;
  for (const json& line : golden_lines("deepspeed/launcher.jsonl")) {
    const json& input = line["input"];
    if (input.contains("path")) continue;  // a missing file: the command looks first
    SCOPED_TRACE(line.dump());
    if (line.contains("error")) {
      EXPECT_THROW(result_of(line["function"], input), Error);
    } else {
      EXPECT_EQ(result_of(line["function"], input), hosts_of(line["result"]));
    }
    ++compared;
  }
  EXPECT_EQ(compared, 68);
}

TEST(DeepSpeedHosts, FaultsHaveSentences) {
  const auto read = [](const std::string& text) {
    return message_of<FormatError>([&] { read_hostfile(text, "hosts"); });
  };
  EXPECT_THAT(read("a slots=1\nb\n"), HasSubstr("hosts: line 2 is \"b\"; it must be a host"));
  EXPECT_THAT(read("a slots=1\na slots=2\n"), HasSubstr("line 2 names the host a again"));
  EXPECT_THAT(read("#\n"), HasSubstr("hosts: names no host"));
  const Hosts hosts = {{"a", {0, 1}}};
  const auto filter = [&](const std::string& include, const std::string& exclude) {
    return message_of<ConfigError>([&] { filtered(hosts, include, exclude); });
  };
  EXPECT_THAT(filter("b", ""), HasSubstr("--include b: there is no host \"b\""));
  EXPECT_THAT(filter("", "a:2"), HasSubstr("--exclude a:2: host a has no slot 2"));
  EXPECT_THAT(filter("a:x", ""), HasSubstr("the slot \"x\" is no number"));
  EXPECT_THAT(filter("a:0:1", ""), HasSubstr("more than one colon"));
  EXPECT_THAT(filter("a", "a"), HasSubstr("exclude each other"));
  const auto choose = [&](const HostChoice& choice) {
    return message_of<ConfigError>([&] { chosen_hosts(hosts, choice); });
  };
  EXPECT_THAT(choose({.include = "a", .exclude = "", .num_gpus = 1}),
              HasSubstr("--num_nodes and --num_gpus cannot be combined"));
  EXPECT_THAT(choose({.include = "", .exclude = "a"}), HasSubstr("no slot is left"));
}

TEST(DeepSpeedHosts, WithoutAHostfileAreThisMachine) {
  const auto slots = [](const HostChoice& choice, const std::string& visible) {
    return local_hosts(choice, 4, visible)[0].slots;
  };
  using testing::ElementsAre;
  EXPECT_THAT(slots({}, ""), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(slots({}, "3,1"), ElementsAre(3, 1));
  EXPECT_THAT(slots({.include = {}, .exclude = {}, .num_gpus = 2}, "3"), ElementsAre(0, 1));
  EXPECT_THAT(slots({.include = "localhost:1,2", .exclude = {}}, "3"), ElementsAre(1, 2));
  EXPECT_THAT(local_hosts({}, 0, "")[0].slots, ElementsAre(0));
  EXPECT_THAT(
      message_of<ConfigError>([&] { slots({.include = {}, .exclude = {}, .num_nodes = 2}, ""); }),
      HasSubstr("--num_nodes 2 needs --hostfile"));
  EXPECT_THAT(message_of<ConfigError>([&] { slots({}, "GPU-1"); }),
              HasSubstr("CUDA_VISIBLE_DEVICES=GPU-1 must be numbers"));
}

}  // namespace
}  // namespace megatron::frontends
