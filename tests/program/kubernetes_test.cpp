#include "megatron/core/file.h"
#include "tests/program/free_port.h"
#include "tests/program/layout.h"
#include "tests/program/program_test.h"
#include "tests/support/source_path.h"

// The environments and commands of examples/kubernetes, with pods that are processes of this host.
namespace megatron::program {
namespace {

class KubernetesTest : public ProgramTest {
 protected:
  Flags flags(const std::string& name) const {
    return laid_out(layout_model(golden_flags(), false), {.tp = 2, .dp = 2})
        .with("--metrics-jsonl", path(name + ".jsonl").string());
  }
  std::vector<Metrics> by_threads() const {
    Words words = {"--nproc-per-node", "4", "pretrain-gpt"};
    for (const std::string& word : flags("threads").words()) words.push_back(word);
    const Outcome outcome = run("launch", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return metrics_of(path("threads.jsonl"));
  }
  // Runs the pods of a job and expects the numbers of threads.
  void expect_job(const std::string& name, const std::vector<RunOptions>& pods) const {
    std::vector<std::unique_ptr<Running>> running;
    for (const RunOptions& pod : pods) {
      running.push_back(std::make_unique<Running>("pretrain-gpt", flags(name).words(), pod));
    }
    for (const auto& pod : running) {
      const Outcome outcome = pod->finish();
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    }
    EXPECT_EQ(metrics_of(path(name + ".jsonl")), by_threads());
  }
};

// The shell script of the containers of jobset.yaml.
std::string script_of_jobset() {
  const std::string text = read_text(source_path("examples/kubernetes/jobset.yaml"));
  const size_t begin = text.find("exec megatron launch");
  return text.substr(begin, text.find("- megatron\n", begin) - begin);
}

TEST_F(KubernetesTest, PodsOfAJobSetHaveTheBitsOfThreads) {
  std::string script = script_of_jobset();
  const std::string program = " megatron ";
  script.replace(script.find(program), program.size(), " \"$0\" ");
  const std::string port = " --master-port " + std::to_string(free_port()) + " \"$@\"";
  script.replace(script.find(" \"$@\""), 5, port);
  std::vector<RunOptions> pods;
  for (const char* const index : {"0", "1"}) {
    pods.push_back({.environment = {{"JOB_COMPLETION_INDEX", index}, {"MASTER_ADDR", "localhost"}},
                    .launcher = {"bash", "-c", script}});
  }
  expect_job("jobset", pods);
}

// Kubeflow's operator does not set LOCAL_RANK.
TEST_F(KubernetesTest, PodsOfAPyTorchJobHaveTheBitsOfThreads) {
  const std::string port = std::to_string(free_port());
  std::vector<RunOptions> pods;
  for (const char* const rank : {"0", "1", "2", "3"}) {
    pods.push_back({.environment = {{"RANK", rank},
                                    {"WORLD_SIZE", "4"},
                                    {"MASTER_ADDR", "localhost"},
                                    {"MASTER_PORT", port}}});
  }
  expect_job("pytorchjob", pods);
}

}  // namespace
}  // namespace megatron::program
