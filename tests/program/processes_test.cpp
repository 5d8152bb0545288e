#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/program/layout.h"
#include "tests/program/program_test.h"
#include "tests/program/two_hosts.h"

// Ranks that are processes: the same training as ranks that are threads, to the last bit.
namespace megatron::program {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Words appended(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class ProcessesTest : public ProgramTest {
 protected:
  Flags flags_for(const Layout& layout, bool is_llama_style, const std::string& name) const {
    return laid_out(layout_model(golden_flags(), is_llama_style), layout)
        .with("--metrics-jsonl", path(name + ".jsonl").string());
  }
  // Ranks by launch with these flags of its own.
  Words launched(const Layout& layout, const Words& own, const Flags& flags) const {
    Words words = {"--nproc-per-node", std::to_string(layout.ranks())};
    words = appended(std::move(words), own);
    words.emplace_back("pretrain-gpt");
    return appended(std::move(words), flags.words());
  }
  std::vector<Metrics> expect_metrics(const Outcome& outcome, const std::string& name) const {
    EXPECT_EQ(outcome.exit_code, 0) << name << outcome.err << outcome.out;
    EXPECT_THAT(errors_of(outcome), IsEmpty());
    std::vector<Metrics> metrics = metrics_of(path(name + ".jsonl"));
    EXPECT_GE(metrics.size(), 20u);
    return metrics;
  }
  std::vector<Metrics> by_launch(const Layout& layout, bool is_llama_style, const Words& own) {
    const std::string name = "launched";
    std::filesystem::remove(path(name + ".jsonl"));
    return expect_metrics(
        run("launch", launched(layout, own, flags_for(layout, is_llama_style, name))), name);
  }
  std::vector<Metrics> by_mpirun(const Layout& layout, bool is_llama_style) {
    const std::string name = "mpirun";
    std::filesystem::remove(path(name + ".jsonl"));
    const Outcome outcome = run(
        "pretrain-gpt", flags_for(layout, is_llama_style, name).words(),
        {.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}},
         .launcher = {"mpirun", "--oversubscribe", "-n", std::to_string(layout.ranks())}});
    return expect_metrics(outcome, name);
  }
  // The launch of one of two hosts that have half of the ranks each.
  static Words of_host(int host, const Layout& layout, const Flags& flags) {
    Words list = {"--nproc-per-node", std::to_string(layout.ranks() / 2), "--nnodes", "2"};
    list = appended(std::move(list), {"--node-rank", std::to_string(host), "--master-addr",
                                      TwoHosts::address(0), "pretrain-gpt"});
    return appended(std::move(list), flags.words());
  }
  std::vector<Metrics> on_two_hosts(const TwoHosts& hosts, const Layout& layout,
                                    bool is_llama_style) {
    const std::string name = "hosts";
    std::filesystem::remove(path(name + ".jsonl"));
    const Flags flags = flags_for(layout, is_llama_style, name);
    Running right("launch", of_host(1, layout, flags), {.launcher = hosts.launcher(1)});
    const Outcome left = run("launch", of_host(0, layout, flags), {.launcher = hosts.launcher(0)});
    const Outcome other = right.finish();
    EXPECT_EQ(other.exit_code, 0) << other.err << other.out;
    // Rank 0 is the left one's, the last rank, which logs, the right one's.
    EXPECT_EQ(iterations_of(left.out).size(), 0u);
    EXPECT_EQ(iterations_of(other.out).size(), 20u);
    return expect_metrics(left, name);
  }
};

TEST_F(ProcessesTest, EveryLayoutHasTheBitsOfThreads) {
  const TwoHosts hosts;
  bool is_llama_style = false;
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(name_of(layout));
    const std::vector<Metrics> want = by_launch(layout, is_llama_style, {});
    EXPECT_EQ(by_launch(layout, is_llama_style, {"--ranks", "processes"}), want);
    EXPECT_EQ(by_mpirun(layout, is_llama_style), want);
    if (hosts.are_there()) {
      EXPECT_EQ(on_two_hosts(hosts, layout, is_llama_style), want);
    }
    is_llama_style = !is_llama_style;
  }
  if (!hosts.are_there()) {
    GTEST_SKIP() << "two hosts need the right to make network namespaces: not run on two hosts";
  }
}

// One file with what every rank did when, on one clock.
TEST_F(ProcessesTest, AProfileHasAllRanks) {
  const TwoHosts hosts;
  const Layout layout{.pp = 4, .layers_a_chunk = 1};
  for (const bool is_on_two : {false, true}) {
    if (is_on_two && !hosts.are_there()) continue;
    const std::string name = is_on_two ? "hosts" : "processes";
    const Flags flags = flags_for(layout, false, name)
                            .with("--train-iters", "4")
                            .with("--profile")
                            .with("--profile-step-start", "2")
                            .with("--profile-step-end", "4")
                            .with_words("--profile-ranks", {"0", "1", "2", "3"})
                            .with("--tensorboard-dir", path(name).string());
    if (is_on_two) {
      Running right("launch", of_host(1, layout, flags), {.launcher = hosts.launcher(1)});
      EXPECT_EQ(run("launch", of_host(0, layout, flags), {.launcher = hosts.launcher(0)}).exit_code,
                0);
      EXPECT_EQ(right.finish().exit_code, 0);
    } else {
      EXPECT_EQ(run("launch", launched(layout, {"--ranks", "processes"}, flags)).exit_code, 0);
    }
    std::ifstream file(path(name) / "profile.json");
    std::map<int, int> forward;
    std::map<int, std::pair<double, double>> spans;  // of the first iteration
    for (const nlohmann::json& event : nlohmann::json::parse(file)) {
      const int rank = event.at("pid");
      if (event.at("name") == "forward_step") {
        forward[rank] += 1;
        EXPECT_GE(event.at("args").at("microbatch"), 0);
      }
      if (event.at("name") != "iteration" || spans.contains(rank)) continue;
      const double begin = event.at("ts");
      spans[rank] = {begin, begin + event.at("dur").get<double>()};
    }
    ASSERT_EQ(forward.size(), 4u);
    for (const auto& [rank, count] : forward) EXPECT_EQ(count, 2 * 8 * 2) << rank;
    // The stages are at work on the same iteration at the same time.
    for (const auto& [rank, span] : spans) {
      EXPECT_LT(span.first, spans.at(0).second);
      EXPECT_GT(span.second, spans.at(0).first);
    }
  }
}

// All that is wrong comes in one message, before data is touched.
TEST_F(ProcessesTest, ProblemsArePrintedOnce) {
  const Flags flags = golden_flags()
                          .with("--num-layers", "7")
                          .with("--num-attention-heads", "3")
                          .with("--seq-length", "31")
                          .with("--tensor-model-parallel-size", "2")
                          .with("--pipeline-model-parallel-size", "2")
                          .with("--decoder-last-pipeline-num-layers", "-1")
                          .with("--num-virtual-stages-per-pipeline-rank", "-2")
                          .with("--sequence-parallel")
                          .with("--overlap-param-gather")
                          .with("--micro-batch-size", "3");
  const auto expect_problems = [&](const Outcome& outcome) {
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(iterations_of(outcome.out).size(), 0u);
    EXPECT_THAT(
        errors_of(outcome),
        ElementsAre(HasSubstr("--num-virtual-stages-per-pipeline-rank -2"),
                    HasSubstr("--decoder-last-pipeline-num-layers -1"),
                    HasSubstr("--overlap-param-gather needs --use-distributed-optimizer"),
                    HasSubstr("--overlap-param-gather needs --overlap-grad-reduce"),
                    HasSubstr("--num-layers 7 do not divide"), HasSubstr("--seq-length 31"),
                    HasSubstr("--hidden-size 32"), HasSubstr("--num-attention-heads 3 must be"),
                    HasSubstr("--global-batch-size 8")));
    EXPECT_FALSE(std::filesystem::exists(path("cache")));
  };
  for (const Words& own : {Words{}, Words{"--ranks", "processes"}}) {
    expect_problems(run("launch", launched({.tp = 2, .pp = 2}, own, flags)));
  }
  expect_problems(run(
      "pretrain-gpt", flags.words(),
      {.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}},
       .launcher = {"mpirun", "--oversubscribe", "-n", "4"}}));
  const Outcome outcome =
      run("launch", launched({.tp = 3}, {"--ranks", "processes"},
                             golden_flags().with("--tensor-model-parallel-size", "2")));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(errors_of(outcome), ElementsAre(AllOf(HasSubstr("3"), HasSubstr("2"))));
}

// What is wrong on every rank alike, but is found out later.
TEST_F(ProcessesTest, AMissingFileIsNamedOnce) {
  const Outcome outcome =
      run("launch", launched({.dp = 4}, {"--ranks", "processes"},
                             golden_flags().with("--vocab-file", path("nowhere").string())));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(errors_of(outcome), ElementsAre(HasSubstr("nowhere")));
}

TEST_F(ProcessesTest, DifferentFlagsAreNamedWithBothValues) {
  const auto rank = [&](int number, const Flags& flags) {
    return std::make_unique<Running>(
        "pretrain-gpt", flags.words(),
        RunOptions{.environment = {{"RANK", std::to_string(number)},
                                   {"WORLD_SIZE", "2"},
                                   {"LOCAL_RANK", std::to_string(number)},
                                   {"LOCAL_WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "localhost"},
                                   {"MASTER_PORT", std::to_string(20000 + ::getpid() % 12000)}}});
  };
  const auto first = rank(0, golden_flags().with("--num-threads", "2"));
  const auto second = rank(1, golden_flags().with("--lr", "2e-3").with("--bf16"));
  const Outcome outcome = first->finish();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(errors_of(outcome),
              ElementsAre(HasSubstr("--accumulate-allreduce-grads-in-fp32"),
                          HasSubstr("--bf16 is False on rank 0, True on rank 1"),
                          HasSubstr("--lr is 0.001 on rank 0, 0.002 on rank 1")));
  const Outcome silent = second->finish();
  EXPECT_EQ(silent.exit_code, 2);
  EXPECT_THAT(errors_of(silent), IsEmpty());
}

// generate and score by threads, by processes and on two hosts.
TEST_F(ProcessesTest, InferenceHasTheTextOfThreads) {
  const TwoHosts hosts;
  std::ofstream(path("input")) << "{\"ids\": [5, 17, 99, 4]}\n{\"ids\": [64, 3, 3]}\n";
  const auto words = [&](const Words& own, const std::string& command, const Words& more = {}) {
    Words all =
        appended(own, {command, "--load", golden("hf/gpt2").string(), "--device", "cpu",
                       "--tensor-model-parallel-size", "2",
                       command == "score" ? "--input" : "--prompt-file", path("input").string()});
    if (command == "generate")
      all = appended(std::move(all), {"--json", "--logprobs", "--max-new-tokens", "8"});
    return appended(std::move(all), more);
  };
  const auto of = [&](int host) {
    return Words{"--nproc-per-node", "1",
                 "--nnodes",         "2",
                 "--node-rank",      std::to_string(host),
                 "--master-addr",    TwoHosts::address(0)};
  };
  for (const std::string command : {"generate", "score"}) {
    const Outcome threads = run("launch", words({"--nproc-per-node", "2"}, command));
    EXPECT_EQ(threads.exit_code, 0) << threads.err;
    EXPECT_THAT(threads.out, HasSubstr("logprobs"));
    const Outcome processes =
        run("launch", words({"--nproc-per-node", "2", "--ranks", "processes"}, command));
    EXPECT_EQ(processes.exit_code, 0) << processes.err;
    EXPECT_EQ(processes.out, threads.out);
    if (!hosts.are_there()) continue;
    for (const bool differ : {false, true}) {
      const Words more = differ ? Words{"--num-threads", "2"} : Words{};
      Running right("launch", words(of(1), command, more), {.launcher = hosts.launcher(1)});
      const Outcome left = run("launch", words(of(0), command), {.launcher = hosts.launcher(0)});
      const Outcome other = right.finish();
      EXPECT_EQ(left.exit_code, differ ? 2 : 0) << left.err;
      EXPECT_EQ(other.exit_code, differ ? 2 : 0) << other.err;
      EXPECT_EQ(left.out, differ ? "" : threads.out);
      EXPECT_EQ(other.out, "");
      if (!differ) continue;
      EXPECT_THAT(errors_of(left),
                  ElementsAre(AllOf(HasSubstr("the command line is --load "),
                                    HasSubstr(" on rank 0 on " + hosts.name(0)),
                                    HasSubstr(" --num-threads 2 on rank 1 on " + hosts.name(1)))));
    }
  }
}

TEST_F(ProcessesTest, FlagsOfLaunchAreChecked) {
  const auto errors = [&](const Words& own, const Flags& flags) {
    const Outcome outcome = run("launch", launched({}, own, flags));
    EXPECT_EQ(outcome.exit_code, 2);
    return errors_of(outcome);
  };
  EXPECT_THAT(
      errors({"--nnodes", "2", "--ranks", "threads", "--max-restarts", "-1"}, golden_flags()),
      ElementsAre(HasSubstr("--max-restarts -1 must be at least 0"),
                  HasSubstr("--ranks threads works on one host only"),
                  HasSubstr("--nnodes 2 needs --master-addr"),
                  HasSubstr("--nnodes 2 needs --node-rank")));
  EXPECT_THAT(
      errors({"--nnodes", "2", "--node-rank", "2", "--master-addr", "here"}, golden_flags()),
      ElementsAre(HasSubstr("--node-rank 2 must be below --nnodes 2")));
  EXPECT_THAT(errors({"--hostfile", path("none").string()}, golden_flags()),
              ElementsAre(HasSubstr("--hostfile")));
}

// mpirun refuses to run as root, so that a hostfile of this machine alone must not need it.
TEST_F(ProcessesTest, OnlyAHostfileOfOtherMachinesGoesThroughMpirun) {
  std::ofstream(path("hosts")) << "# this machine\nlocalhost slots=4\n";
  const Layout layout{.tp = 2, .dp = 2};
  const Words hostfile = {"--hostfile", path("hosts").string()};
  const std::vector<Metrics> want = by_launch(layout, false, {});
  Flags flags = flags_for(layout, false, "launch");
  const RunOptions no_mpirun = {.environment = {{"PATH", "/nowhere"}}};
  const Outcome here = run("launch", launched(layout, hostfile, flags), no_mpirun);
  EXPECT_EQ(expect_metrics(here, "launch"), want);

  Words words = hostfile;
  words.emplace_back("pretrain-gpt");
  flags = flags_for(layout, false, "deepspeed");
  const auto with_flags = [&](Words all) {
    const Words more = flags.words();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  EXPECT_EQ(expect_metrics(run("deepspeed", with_flags(words), no_mpirun), "deepspeed"), want);

  flags = flags_for(layout, false, "mpirun");
  words.insert(words.begin(), "--force_multi");
  const Outcome by_mpirun = run(
      "deepspeed", with_flags(words),
      {.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}});
  EXPECT_EQ(expect_metrics(by_mpirun, "mpirun"), want);
}

}  // namespace
}  // namespace megatron::program
