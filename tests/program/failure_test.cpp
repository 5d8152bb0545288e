#include <fmt/format.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <memory>

#include "tests/program/process_tree.h"
#include "tests/program/program_test.h"
#include "tests/program/two_hosts.h"

// A failing job ends within seconds, reports what failed where, loses no checkpoint, and what goes
// on from the last one is as if nothing had happened.
namespace megatron::program {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string failure_content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The process below `parent` that is this rank of its job; -1 when there is none.
pid_t process_of_rank(pid_t parent, int rank) {
  return descendant_with(parent, "RANK=" + std::to_string(rank));
}

std::string host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

class FailureTest : public ProgramTest {
 protected:
  static constexpr int kIterations = 200;

  // A run of two tensor and two data parallel ranks that saves now and then.
  Flags job(const std::string& name) const {
    return unsaved_job(name)
        .with("--save", path(name).string())
        .with("--save-interval", "10")
        .with("--keep-last", "2");
  }
  Flags unsaved_job(const std::string& name) const {
    const Flags flags = golden_flags()
                            .with("--micro-batch-size", "1")
                            .with("--train-iters", std::to_string(kIterations))
                            .with("--lr-decay-iters", std::to_string(kIterations))
                            .with("--eval-iters", "0")
                            .with("--attention-dropout", "0.1")
                            .with("--hidden-dropout", "0.1")
                            .with("--tensor-model-parallel-size", "2")
                            .with("--use-distributed-optimizer")
                            .with("--distributed-timeout-seconds-after-init", "3")
                            .with("--metrics-jsonl", path(name + ".jsonl").string());
    return has_experts_ ? with_experts(flags) : flags;
  }
  // Two ranks have two experts each, with state that is no parameter: the bias of the router.
  static Flags with_experts(const Flags& flags) {
    return flags.with("--num-experts", "4")
        .with("--moe-router-topk", "2")
        .with("--expert-model-parallel-size", "2")
        .with("--sequence-parallel")
        .with("--moe-router-score-function", "sigmoid")
        .with("--moe-router-enable-expert-bias")
        .with("--moe-router-load-balancing-type", "seq_aux_loss")
        .with("--moe-aux-loss-coeff", "1e-2");
  }
  static Words launched(const Words& own, const Flags& flags) {
    Words words = own;
    words.emplace_back("pretrain-gpt");
    for (const std::string& word : flags.words()) words.push_back(word);
    return words;
  }
  static Words processes() { return {"--nproc-per-node", "4", "--ranks", "processes"}; }
  static Words threads() { return {"--nproc-per-node", "4"}; }

  // The iterations that a job on these ranks would have, undisturbed.
  std::vector<Metrics> undisturbed(const Words& ranks = threads()) const {
    fs::remove(path("undisturbed.jsonl"));
    const Outcome outcome = run("launch", launched(ranks, unsaved_job("undisturbed")));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return metrics_of(path("undisturbed.jsonl"));
  }
  // A run of a few iterations, each of which it saves locally.
  static constexpr int kLocalIterations = 40;
  Flags local_job(const std::string& name) const {
    return unsaved_job(name)
        .with("--distributed-timeout-seconds-after-init", "20")
        .with("--exit-interval", std::to_string(kLocalIterations))
        .with("--non-persistent-ckpt-type", "local")
        .with("--non-persistent-save-interval", "1");
  }
  void expect_as_undisturbed(const std::vector<Metrics>& got, const Words& ranks) const {
    std::vector<Metrics> want = undisturbed(ranks);
    ASSERT_GE(static_cast<int>(want.size()), kLocalIterations);
    want.resize(kLocalIterations);
    expect_as(got, want);
  }
  // The last line of each iteration is that of the undisturbed run, to the last bit.
  static void expect_as(const std::vector<Metrics>& got, const std::vector<Metrics>& want) {
    std::map<double, Metrics> last;
    for (const Metrics& line : got) last[line.at("iteration")] = line;
    ASSERT_EQ(last.size(), want.size());
    for (const Metrics& line : want) EXPECT_EQ(last[line.at("iteration")], line);
  }
  // Goes on by hand from the last checkpoint and compares.
  void expect_resumed(const std::string& name) const {
    const Outcome outcome =
        run("launch", launched(threads(), job(name).with("--load", path(name).string())));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("successfully loaded checkpoint"));
    expect_as(metrics_of(path(name + ".jsonl")), undisturbed());
    for (const auto& entry : fs::directory_iterator(path(name))) {
      EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".tmp")));
    }
  }
  // A save that finds the disk full ends the job; the checkpoint before goes on.
  void expect_full_disk_costs_no_checkpoint(bool is_async) const {
    const fs::path disk = path("full");
    fs::create_directory(disk);
    const bool is_small =
        ::mount("tmpfs", disk.c_str(), "tmpfs", 0, has_experts_ ? "size=6m" : "size=2m") == 0;
    const auto saving = [&](int interval) {
      const Flags flags = job("full")
                              .with("--save", (disk / "save").string())
                              .with("--save-interval", std::to_string(interval));
      return is_async ? flags.with("--async-save") : flags;
    };
    EXPECT_EQ(
        run("launch", launched(processes(), saving(10).with("--exit-interval", "10"))).exit_code,
        0);
    const auto room = fs::space(disk);
    // Leave room for less than a checkpoint.
    if (is_small) std::ofstream(disk / "ballast") << std::string(room.available - 200'000, 'x');
    const Outcome outcome =
        run("launch", launched(processes(), saving(10).with("--load", (disk / "save").string())),
            {.max_file_bytes = is_small ? 0 : 60'000});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_LT(outcome.seconds, 30);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("iteration 20 was not saved"),
                                   AnyOf(HasSubstr("No space left"), HasSubstr("File too large")),
                                   HasSubstr("the checkpoint of iteration 10 is unharmed")));
    EXPECT_FALSE(fs::exists(iteration_in(disk / "save", 20)));
    fs::remove(disk / "ballast");
    const Outcome resumed =
        run("launch", launched(threads(), saving(1000).with("--load", (disk / "save").string())));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    expect_as(metrics_of(path("full.jsonl")), undisturbed());
    if (is_small) {
      EXPECT_EQ(::umount(disk.c_str()), 0);
    }
  }

  bool has_experts_ = false;
};

TEST_F(FailureTest, AKilledRankEndsTheJob) {
  Running running("launch", launched(processes(), job("killed")));
  ASSERT_TRUE(running.wait_for(" iteration       25/"));
  const std::vector<pid_t> ranks = descendants(running.pid());
  ASSERT_EQ(ranks.size(), 4u);
  const pid_t victim = process_of_rank(running.pid(), 1);
  const double before = running.seconds();
  ASSERT_EQ(::kill(victim, SIGKILL), 0);
  const Outcome outcome = running.finish();
  EXPECT_LT(outcome.seconds - before, 10);
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_THAT(errors_of(outcome), ElementsAre(AllOf(HasSubstr("rank 1 on " + host()),
                                                    HasSubstr("killed by signal 9 (SIGKILL)"))));
  for (const pid_t rank : ranks) EXPECT_FALSE(exists(rank));
  expect_resumed("killed");
}

TEST_F(FailureTest, AKilledRankInAnAsyncSaveCostsNoCheckpoint) {
  for (const bool is_early : {false, true}) {
    const std::string name = is_early ? "early" : "late";
    Running running("launch", launched(processes(), job(name).with("--async-save")));
    // The files of iteration 20 are being written, or just were.
    ASSERT_TRUE(running.wait_for(is_early
                                     ? "scheduled an async checkpoint save at iteration      20"
                                     : "saved checkpoint at iteration      20"));
    ASSERT_EQ(::kill(process_of_rank(running.pid(), is_early ? 0 : 1), SIGKILL), 0);
    EXPECT_EQ(running.finish().exit_code, 128 + SIGKILL);
    const std::string latest = failure_content(path(name) / "latest_checkpointed_iteration.txt");
    EXPECT_GE(std::stoi(latest), is_early ? 10 : 20);
    expect_resumed(name);
  }
}

TEST_F(FailureTest, ARankThatHangsIsNamedAndEnded) {
  Running running("launch", launched(processes(), job("stopped")));
  ASSERT_TRUE(running.wait_for(" iteration       25/"));
  const std::vector<pid_t> ranks = descendants(running.pid());
  const double before = running.seconds();
  const pid_t hanging = process_of_rank(running.pid(), 2);
  ASSERT_EQ(::kill(hanging, SIGSTOP), 0);
  const Outcome outcome = running.finish();
  EXPECT_LT(outcome.seconds - before, 20);
  EXPECT_EQ(outcome.exit_code, 1);
  // Who waits, for whom, in which call of which group. It may have waited for a rank that waited
  // for the hanging one.
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("waited 3 s for rank"), HasSubstr(" of the world)"),
                                 HasSubstr(" in group ")));
  EXPECT_THAT(outcome.err, HasSubstr(fmt::format("rank 2 on {} (process {}) did not end within",
                                                 host(), hanging)));
  // Who waits also shows where.
  for (const char* other : {"rank 0", "rank 1", "rank 3"}) {
    EXPECT_THAT(outcome.err,
                HasSubstr(fmt::format("the calls of all threads of {}, innermost first", other)));
  }
  EXPECT_THAT(outcome.err, HasSubstr("  megatron::Trainer::train_step()\n"));
  for (const char* other : {"rank 0 on", "rank 1 on", "rank 3 on"}) {
    EXPECT_THAT(outcome.err, Not(HasSubstr(fmt::format("{} {} (process", other, host()))));
  }
  for (const pid_t rank : ranks) EXPECT_FALSE(exists(rank));
  expect_resumed("stopped");
}

TEST_F(FailureTest, NoRankOutlivesItsLauncher) {
  Running running("launch", launched(processes(), unsaved_job("orphans")));
  ASSERT_TRUE(running.wait_for(" iteration        5/"));
  const std::vector<pid_t> ranks = descendants(running.pid());
  ASSERT_EQ(ranks.size(), 4u);
  running.send(SIGKILL);
  running.finish();
  for (int i = 0; i < 500 && std::any_of(ranks.begin(), ranks.end(), exists); ++i) ::usleep(10'000);
  for (const pid_t rank : ranks) EXPECT_FALSE(exists(rank));
}

class FullDiskTest : public FailureTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Saves, FullDiskTest, testing::Bool(),
                         [](const auto& save) { return save.param ? "async" : "waited"; });

TEST_P(FullDiskTest, CostsNoCheckpoint) { expect_full_disk_costs_no_checkpoint(GetParam()); }

class ExpertFailureTest : public FailureTest {
 protected:
  ExpertFailureTest() { has_experts_ = true; }
};

TEST_F(ExpertFailureTest, AKilledRankCostsNoCheckpoint) {
  Running running("launch", launched(processes(), job("experts")));
  ASSERT_TRUE(running.wait_for(" iteration       25/"));
  ASSERT_EQ(::kill(process_of_rank(running.pid(), 1), SIGKILL), 0);
  EXPECT_EQ(running.finish().exit_code, 128 + SIGKILL);
  expect_resumed("experts");
}

TEST_F(ExpertFailureTest, AFullDiskCostsNoCheckpoint) {
  expect_full_disk_costs_no_checkpoint(false);
}

TEST_F(FailureTest, ACableIsPulled) {
  const TwoHosts hosts;
  if (!hosts.are_there()) {
    GTEST_SKIP() << "two hosts need the right to make network namespaces: not run";
  }
  const auto words = [&](int host) {
    return launched({"--nproc-per-node", "2", "--nnodes", "2", "--node-rank", std::to_string(host),
                     "--master-addr", TwoHosts::address(0)},
                    job("cut"));
  };
  Running left("launch", words(0), {.launcher = hosts.launcher(0)});
  Running right("launch", words(1), {.launcher = hosts.launcher(1)});
  ASSERT_TRUE(right.wait_for(" iteration       25/"));
  const double before = right.seconds();
  hosts.cut();
  const Outcome outcome = left.finish();
  const Outcome other = right.finish();
  EXPECT_LT(other.seconds - before, 20);
  for (const Outcome* each : {&outcome, &other}) {
    EXPECT_EQ(each->exit_code, 1);
    EXPECT_THAT(each->err, AllOf(HasSubstr("waited 3 s for rank"), HasSubstr(" in group ")));
  }
  EXPECT_THAT(outcome.err, HasSubstr(" on " + hosts.name(1)));
  EXPECT_THAT(other.err, HasSubstr(" on " + hosts.name(0)));
  expect_resumed("cut");
}

TEST_F(FailureTest, ARestartGoesOnAsIfNothingHadHappened) {
  for (const Words& ranks : {threads(), processes()}) {
    const std::string name = ranks == threads() ? "threads" : "processes";
    Words own = ranks;
    own.insert(own.end(), {"--max-restarts", "2"});
    Running running("launch", launched(own, job(name)));
    ASSERT_TRUE(running.wait_for(" iteration       25/"));
    const std::vector<pid_t> children = descendants(running.pid());
    ASSERT_EQ(children.size(), ranks == threads() ? 1u : 4u);
    ::kill(children.back(), SIGKILL);
    const Outcome outcome = running.finish();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr("restart 1 of 2 from the checkpoint of iteration 2"),
                      HasSubstr("was killed by signal 9"), Not(HasSubstr("restart 2"))));
    expect_as(metrics_of(path(name + ".jsonl")), undisturbed());
  }
}

// Eight ranks go on from checkpoints in memory, of the last iteration that all of them have saved.
TEST_F(FailureTest, LocalCheckpointsLoseLessThanTwoIterations) {
  for (const char* const ranks : {"threads", "processes"}) {
    const Flags flags = local_job(ranks);
    const auto lines = [&] { return metrics_of(path(std::string(ranks) + ".jsonl")); };
    Running running(
        "launch",
        launched({"--nproc-per-node", "8", "--ranks", ranks, "--max-restarts", "2"}, flags));
    ASSERT_TRUE(running.wait_for(" iteration       15/"));
    const pid_t victim = std::string(ranks) == "threads" ? descendants(running.pid()).back()
                                                         : process_of_rank(running.pid(), 3);
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    const double killed = running.seconds();
    ASSERT_TRUE(running.wait_for("successfully loaded local checkpoints at iteration"));
    const auto before = static_cast<int>(lines().size());  // iterations
    while (static_cast<int>(lines().size()) <= before && !running.has_ended()) ::usleep(10'000);
    EXPECT_LT(running.seconds() - killed, 10);
    const int loaded = static_cast<int>(lines()[static_cast<size_t>(before)].at("iteration")) - 1;
    EXPECT_LT(before - loaded, 2);
    const Outcome outcome = running.finish();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("restart 1 of 2"), Not(HasSubstr("restart 2"))));
    expect_as_undisturbed(lines(), {"--nproc-per-node", "8"});
    for (const auto& entry : fs::directory_iterator("/dev/shm")) {
      EXPECT_THAT(entry.path().filename().string(),
                  Not(HasSubstr(fmt::format("megatron-local-{}", running.pid()))));
    }
  }
}

// The checkpoint that it begins with has a higher iteration than its local ones.
TEST_F(FailureTest, AFinetuningGoesOnFromItsLocalCheckpoints) {
  EXPECT_EQ(
      run("launch", launched(threads(), job("begun").with("--exit-interval", "20"))).exit_code, 0);
  const auto tuned = [&](const Flags& flags) {
    return flags.with("--load", path("begun").string())
        .with("--finetune")
        .with("--exit-interval", "15");
  };
  Words restarting = processes();
  restarting.insert(restarting.end(), {"--max-restarts", "1"});
  Running running("launch", launched(restarting, tuned(local_job("tuned"))));
  ASSERT_TRUE(running.wait_for(" iteration       10/"));
  ::kill(descendants(running.pid()).back(), SIGKILL);
  const Outcome outcome = running.finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("successfully loaded local checkpoints at iteration"));
  EXPECT_EQ(run("launch", launched(threads(), tuned(unsaved_job("whole")))).exit_code, 0);
  expect_as(metrics_of(path("tuned.jsonl")), metrics_of(path("whole.jsonl")));
}

TEST_F(FailureTest, ARestartWithoutASaveBeginsAgain) {
  Words own = processes();
  own.insert(own.end(), {"--max-restarts", "1"});
  Running running("launch", launched(own, unsaved_job("begin")));
  ASSERT_TRUE(running.wait_for(" iteration        5/"));
  ::kill(descendants(running.pid()).back(), SIGKILL);
  const Outcome outcome = running.finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("warning: without --save a restart begins at the first iteration"),
                    HasSubstr("restart 1 of 1 from the beginning, nothing was saved")));
  expect_as(metrics_of(path("begin.jsonl")), undisturbed());
}

TEST_F(FailureTest, TwoHostsRestartTogether) {
  const TwoHosts hosts;
  if (!hosts.are_there()) {
    GTEST_SKIP() << "two hosts need the right to make network namespaces: not run";
  }
  const auto words = [&](int host) {
    return launched({"--nproc-per-node", "2", "--nnodes", "2", "--node-rank", std::to_string(host),
                     "--master-addr", TwoHosts::address(0), "--max-restarts", "1"},
                    job("pair"));
  };
  Running left("launch", words(0), {.launcher = hosts.launcher(0)});
  Running right("launch", words(1), {.launcher = hosts.launcher(1)});
  ASSERT_TRUE(right.wait_for(" iteration       25/"));
  ASSERT_EQ(::kill(process_of_rank(right.pid(), 3), SIGKILL), 0);
  const Outcome outcome = left.finish();
  const Outcome other = right.finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("restart 1 of 1"), HasSubstr("rank 3")));
  EXPECT_THAT(other.err, AllOf(HasSubstr("restart 1 of 1"), HasSubstr("rank 3 on "),
                               HasSubstr("was killed by signal 9")));
  expect_as(metrics_of(path("pair.jsonl")), undisturbed());
}

// Two hosts, whose launch gets the same words but for what a test adds.
class TwoHostsTest : public FailureTest {
 protected:
  void SetUp() override {
    if (!hosts_.are_there()) {
      GTEST_SKIP() << "two hosts need the right to make network namespaces: not run";
    }
  }
  static Words of_host(int host, const Flags& flags, const Words& own = {}) {
    Words words = {"--nproc-per-node", "2",
                   "--nnodes",         "2",
                   "--node-rank",      std::to_string(host),
                   "--master-addr",    TwoHosts::address(0)};
    words.insert(words.end(), own.begin(), own.end());
    return launched(words, flags);
  }
  // On a host; the program after these words.
  std::unique_ptr<Running> start(int host, const Words& words, const Words& prefix = {}) const {
    Words launcher = hosts_.launcher(host);
    launcher.insert(launcher.end(), prefix.begin(), prefix.end());
    return std::make_unique<Running>("launch", words, RunOptions{.launcher = launcher});
  }
  std::string name(int host) const { return hosts_.name(host); }

 private:
  TwoHosts hosts_;
};

// Tensor parallel ranks share a host; data parallel ranks, or stages, are on both.
TEST_F(TwoHostsTest, TrainAsOneHostToTheBit) {
  for (const char* const stages : {"1", "2"}) {
    const auto flags = [&](const std::string& name) {
      return unsaved_job(name + stages)
          .with("--pipeline-model-parallel-size", stages)
          .with("--exit-interval", "20");
    };
    const auto left = start(0, of_host(0, flags("two")));
    const auto right = start(1, of_host(1, flags("two")));
    for (const auto* host : {&left, &right}) {
      const Outcome outcome = (*host)->finish();
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    }
    EXPECT_EQ(run("launch", launched(threads(), flags("one"))).exit_code, 0);
    expect_as(metrics_of(path(std::string("two") + stages + ".jsonl")),
              metrics_of(path(std::string("one") + stages + ".jsonl")));
  }
}

// Its ranks are stopped most of the time.
TEST_F(TwoHostsTest, ASlowHostChangesNoBit) {
  const auto flags = [&](const std::string& name) {
    return unsaved_job(name)
        .with("--distributed-timeout-seconds-after-init", "20")
        .with("--exit-interval", "20");
  };
  const auto left = start(0, of_host(0, flags("slow")));
  const auto right = start(1, of_host(1, flags("slow")));
  ASSERT_TRUE(right->wait_for(" iteration        3/"));
  const std::vector<pid_t> slow = {process_of_rank(right->pid(), 2),
                                   process_of_rank(right->pid(), 3)};
  const auto send = [&](int signal) {
    for (const pid_t rank : slow) {
      if (exists(rank)) ::kill(rank, signal);
    }
  };
  while (!right->has_ended() && right->seconds() < 60) {
    send(SIGSTOP);
    ::usleep(4'000);
    send(SIGCONT);
    ::usleep(1'000);
  }
  const Outcome outcome = left->finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const Outcome other = right->finish();
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(run("launch", launched(threads(), flags("quick"))).exit_code, 0);
  expect_as(metrics_of(path("slow.jsonl")), metrics_of(path("quick.jsonl")));
}

TEST_F(TwoHostsTest, DifferentFlagsAreNamedWithTheirHosts) {
  const auto left = start(0, of_host(0, unsaved_job("flags")));
  const auto right = start(1, of_host(1, unsaved_job("flags").with("--lr", "2e-3").with("--bf16")));
  const Outcome outcome = left->finish();
  const Outcome other = right->finish();
  for (const Outcome* each : {&outcome, &other}) {
    EXPECT_EQ(each->exit_code, 2);
    EXPECT_LT(each->seconds, 10);
  }
  EXPECT_THAT(errors_of(outcome),
              ElementsAre(HasSubstr("--accumulate-allreduce-grads-in-fp32"),
                          HasSubstr("--bf16 is False on ranks 0, 1 on " + name(0) +
                                    ", True on ranks 2, 3 on " + name(1)),
                          HasSubstr("--lr is 0.001 on ranks 0, 1 on " + name(0) +
                                    ", 0.002 on ranks 2, 3 on " + name(1))));
}

TEST_F(TwoHostsTest, HostsThatDoNotFitAreToldBothSo) {
  const Flags flags = unsaved_job("fit");
  // Another build: the same program but for one byte of its build id.
  std::string program = failure_content(MG_PROGRAM);
  const std::string note("\4\0\0\0\24\0\0\0\3\0\0\0GNU\0", 16);
  const size_t at = program.find(note);
  ASSERT_NE(at, std::string::npos);
  program[at + note.size()] ^= 1;
  std::ofstream(path("program"), std::ios::binary) << program;
  fs::permissions(path("program"), fs::perms::owner_all);
  const Words as_other = {"sh", "-c", "program=$1; shift 2; exec \"$program\" \"$@\"", "sh",
                          path("program").string()};

  const std::string both = "host 0 (" + name(0) + ")";
  const std::string second = "host 1 (" + name(1) + ")";
  const struct {
    Words left, right, prefix;
    std::string error;
  } cases[] = {
      {of_host(0, flags),
       of_host(1, flags, {"--nproc-per-node", "3"}),
       {},
       "--nproc-per-node is 2 on " + both + ", 3 on " + second + "; give all hosts the same"},
      {of_host(0, flags),
       of_host(0, flags),
       {},
       "two processes are host 0: " + both + " and host 0 (" + name(1) +
           "); give each host its own --node-rank"},
      {of_host(0, flags), of_host(1, flags), as_other,
       second + " runs another build of the program ("},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.error);
    const auto left = start(0, each.left);
    const auto right = start(1, each.right, each.prefix);
    for (const Outcome& outcome : {left->finish(), right->finish()}) {
      EXPECT_EQ(outcome.exit_code, 2);
      EXPECT_LT(outcome.seconds, 10);
      EXPECT_THAT(errors_of(outcome), ElementsAre(HasSubstr(each.error)));
    }
  }
}

TEST_F(TwoHostsTest, BadInputOnOneHostEndsBoth) {
  fs::create_directory(path("words"));
  const fs::path data = golden("megatron/data");
  fs::copy(data / "vocab.json", path("words"));
  const Flags flags = job("input").with("--vocab-file", (path("words") / "vocab.json").string());
  const Words without = {"unshare",
                         "--mount",
                         "sh",
                         "-c",
                         "mount -t tmpfs none \"$0\" && exec \"$@\"",
                         path("words").string()};
  const auto left = start(0, of_host(0, flags, {"--max-restarts", "3"}));
  const auto right = start(1, of_host(1, flags, {"--max-restarts", "3"}), without);
  for (const Outcome& outcome : {left->finish(), right->finish()}) {
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_LT(outcome.seconds, 5);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("vocab.json"), Not(HasSubstr("restart"))));
  }
}

TEST_F(TwoHostsTest, ALaunchThatIsKilledEndsTheOtherHost) {
  for (const int victim : {0, 1}) {
    const std::string run = "launch" + std::to_string(victim);
    const Words own = {"--max-restarts", "3"};
    std::unique_ptr<Running> hosts[] = {start(0, of_host(0, job(run), own)),
                                        start(1, of_host(1, job(run), own))};
    ASSERT_TRUE(hosts[1]->wait_for(" iteration       15/"));
    hosts[victim]->send(SIGKILL);
    const double before = hosts[1 - victim]->seconds();
    const Outcome outcome = hosts[1 - victim]->finish();
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_LT(outcome.seconds - before, 5);
    EXPECT_THAT(errors_of(outcome).back(),
                HasSubstr("host " + std::to_string(victim) + " (" + name(victim) +
                          ") is gone: its launch has ended"));
    EXPECT_EQ(hosts[victim]->finish().exit_code, 128 + SIGKILL);
  }
}

// The other host has copies of its checkpoints in memory, and waits for the host in its place.
TEST_F(TwoHostsTest, ALostHostIsReplacedAndGetsItsCheckpoints) {
  for (const int victim : {1, 0}) {
    const std::string name = victim == 0 ? "first" : "second";
    const Flags flags = local_job(name).with("--replication");
    std::unique_ptr<Running> hosts[2];
    for (int i = 0; i < 2; ++i) hosts[i] = start(i, of_host(i, flags, {"--max-restarts", "1"}));
    ASSERT_TRUE(hosts[1]->wait_for(" iteration       15/"));
    hosts[victim]->send(SIGKILL);
    EXPECT_EQ(hosts[victim]->finish().exit_code, 128 + SIGKILL);
    const auto before = static_cast<int>(metrics_of(path(name + ".jsonl")).size());
    hosts[victim] = start(victim, of_host(victim, flags, {"--max-restarts", "1"}));
    for (const auto& host : hosts) {
      const Outcome outcome = host->finish();
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    }
    const std::vector<Metrics> lines = metrics_of(path(name + ".jsonl"));
    ASSERT_GT(static_cast<int>(lines.size()), before);
    const double next = lines[static_cast<size_t>(before)].at("iteration");
    EXPECT_LT(before + 1 - next, 2);
    expect_as_undisturbed(lines, threads());
  }
}

TEST_F(FailureTest, ASignalStopsAllRanksAtTheSameIteration) {
  for (const Words& ranks : {threads(), processes()}) {
    for (const bool to_one : {false, true}) {
      if (to_one && ranks == threads()) continue;
      const std::string name =
          "signal" + std::to_string(ranks.size()) + (to_one ? "_to_one" : "_to_launch");
      const Flags flags = job(name).with("--exit-signal-handler");
      Running running("launch", launched(ranks, flags));
      ASSERT_TRUE(running.wait_for(" iteration       15/"));
      ::kill(to_one ? process_of_rank(running.pid(), 2) : running.pid(), SIGTERM);
      const Outcome outcome = running.finish();
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_THAT(errors_of(outcome), ElementsAre());
      EXPECT_THAT(outcome.out, HasSubstr("exiting program after receiving SIGTERM."));
      const auto last = static_cast<int>(metrics_of(path(name + ".jsonl")).back().at("iteration"));
      EXPECT_LT(last, kIterations);
      EXPECT_TRUE(fs::exists(iteration_in(path(name), last)));
      expect_resumed(name);
    }
  }
}

// The superuser has no such limit, so the program runs as another user.
TEST_F(FailureTest, ALimitOfProcessesIsNamed) {
  Words launcher;
  if (::geteuid() == 0) {
    launcher = {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"};
    if (run("--version", {}, {.launcher = launcher}).exit_code != 0) {
      GTEST_SKIP() << "other users may not run the program where it is: not run";
    }
  }
  launcher.insert(launcher.end(), {"prlimit", "--nproc=8"});
  for (const std::string ranks : {"threads", "processes"}) {
    const Outcome outcome =
        run("launch", launched({"--nproc-per-node", "16", "--ranks", ranks}, unsaved_job("limit")),
            {.launcher = launcher});
    EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
    EXPECT_LT(outcome.seconds, 10);
    EXPECT_THAT(errors_of(outcome),
                ElementsAre(AllOf(HasSubstr(" of rank "), HasSubstr(" cannot be started"),
                                  HasSubstr("ulimit -u"))));
  }
}

// A restart would only end the same way.
TEST_F(FailureTest, BadInputIsNotTriedAgain) {
  Words own = processes();
  own.insert(own.end(), {"--max-restarts", "3"});
  const Outcome outcome = run("launch", launched(own, job("bad").with("--num-layers", "0")));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, Not(HasSubstr("restart")));
}

}  // namespace
}  // namespace megatron::program
