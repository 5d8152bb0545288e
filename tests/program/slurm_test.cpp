#include <signal.h>

#include <cstdlib>
#include <fstream>

#include "megatron/core/file.h"
#include "tests/program/layout.h"
#include "tests/program/process_tree.h"
#include "tests/program/program_test.h"
#include "tests/support/source_path.h"

// Ranks that Slurm starts, on two hosts. tests/interop/slurm.sh makes a cluster to run this on.
namespace megatron::program {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class SlurmTest : public ProgramTest {
 protected:
  void SetUp() override {
    if (std::system("timeout 10 srun -N 2 -n 2 true >/dev/null 2>&1") != 0) {
      GTEST_SKIP() << "there is no Slurm with two hosts: not run; tests/interop/slurm.sh makes one";
    }
  }
  Flags flags(const std::string& name) const {
    return laid_out(layout_model(golden_flags(), false), {.tp = 2, .dp = 2})
        .with("--metrics-jsonl", path(name + ".jsonl").string());
  }
  // A run that ends when it is told to.
  Flags long_flags(const std::string& name) const {
    return flags(name)
        .with("--train-iters", "100000")
        .with("--eval-iters", "0")
        .with("--exit-signal-handler")
        .with("--save", path(name).string())
        .with("--save-interval", "100000")
        .with("--distributed-timeout-seconds-after-init", "5");
  }
  std::vector<Metrics> expect_metrics(const Outcome& outcome, const std::string& name) const {
    EXPECT_EQ(outcome.exit_code, 0) << name << outcome.err << outcome.out;
    return metrics_of(path(name + ".jsonl"));
  }
  std::vector<Metrics> by_threads() const {
    Words words = {"--nproc-per-node", "4", "pretrain-gpt"};
    for (const std::string& word : flags("threads").words()) words.push_back(word);
    return expect_metrics(run("launch", words), "threads");
  }
  // A script of examples/slurm; its first argument is the program.
  fs::path batch_script(const std::string& name) const {
    std::string text = read_text(source_path("examples/slurm/" + name + ".sbatch"));
    const std::string program = " megatron ";
    const size_t srun = text.find("\nsrun ");
    text.replace(text.find(program, srun), program.size(), " \"$PROGRAM\" ");
    text.insert(srun + 1, "PROGRAM=$1\nshift\n");
    std::ofstream(path(name + ".sbatch")) << text;
    return path(name + ".sbatch");
  }
  Words by_sbatch(const std::string& name, const std::string& script) const {
    return {"sbatch", "--wait", "--output=" + path(name + ".out").string(), batch_script(script)};
  }
  static Words two_on_each() { return {"srun", "-N", "2", "-n", "4", "--ntasks-per-node=2"}; }
};

TEST_F(SlurmTest, StepsHaveTheBitsOfThreads) {
  const std::vector<Metrics> want = by_threads();
  const auto expect_same = [&](const std::string& name, const Words& launcher,
                               const std::map<std::string, std::string>& environment = {}) {
    const RunOptions options{.environment = environment, .launcher = launcher};
    const Outcome outcome = run("pretrain-gpt", flags(name).words(), options);
    EXPECT_EQ(expect_metrics(outcome, name), want) << name;
  };
  expect_same("two_on_each", two_on_each());
  expect_same("three_and_one", {"srun", "-N", "2", "-n", "4", "--distribution=pack"});
  expect_same("address", two_on_each(), {{"MASTER_ADDR", "left"}, {"MASTER_PORT", "29517"}});
  for (const char* const script : {"tasks", "launch"}) {
    expect_same(script, by_sbatch(script, script));
  }
  if (std::system("srun --mpi=list 2>&1 | grep -q pmix") == 0) {
    expect_same("pmix", {"srun", "--mpi=pmix", "-N", "2", "-n", "4", "--ntasks-per-node=2"});
  }
  Words words = {"--nnodes", "2", "--nproc-per-node", "2", "pretrain-gpt"};
  for (const std::string& word : flags("launch").words()) words.push_back(word);
  EXPECT_EQ(
      expect_metrics(run("launch", words, {.launcher = {"srun", "-N", "2", "-n", "2"}}), "launch"),
      want);
}

TEST_F(SlurmTest, AKilledRankEndsTheStep) {
  Running running("pretrain-gpt", long_flags("killed").words(), {.launcher = two_on_each()});
  ASSERT_TRUE(running.wait_for(" iteration       25/"));
  const double before = running.seconds();
  ASSERT_EQ(::kill(descendant_with(1, "SLURM_PROCID=2"), SIGKILL), 0);
  const Outcome outcome = running.finish();
  EXPECT_LT(outcome.seconds - before, 10);
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 2 of the world on right failed"),
                                 HasSubstr("right: task 2: Killed")));
}

// scancel ends a step as the time limit and --signal do: by SIGTERM.
TEST_F(SlurmTest, ASignalSavesACheckpoint) {
  for (const std::string script : {"", "tasks", "launch"}) {
    const bool is_batch = !script.empty();
    const std::string name = is_batch ? script : "step";
    Words launcher = is_batch ? by_sbatch(name, script) : two_on_each();
    launcher.insert(launcher.begin() + 1, "--job-name=" + name);
    Running running("pretrain-gpt", long_flags(name).words(), {.launcher = launcher});
    const fs::path log = path(name + ".out");
    ASSERT_TRUE(is_batch ? running.wait_for(" iteration       25/", log)
                         : running.wait_for(" iteration       25/"));
    ASSERT_EQ(std::system(("scancel --name=" + name).c_str()), 0);
    const Outcome outcome = running.finish();
    const auto last = static_cast<int>(metrics_of(path(name + ".jsonl")).back().at("iteration"));
    EXPECT_LT(last, 100'000);
    EXPECT_TRUE(fs::exists(iteration_in(path(name), last))) << outcome.out << outcome.err;
  }
}

}  // namespace
}  // namespace megatron::program
