#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "tests/program/process_tree.h"
#include "tests/program/program_test.h"

// A run under faults that must not end it: ranks that stop for a while, full disks under logs,
// closed standard streams, packets of strangers.
namespace megatron::program {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr int kRanks = 8;

// MG_FAULT_ITERATIONS asks for a longer run.
int iterations() {
  const char* const asked = std::getenv("MG_FAULT_ITERATIONS");
  return asked != nullptr ? std::atoi(asked) : 60;
}

// A small disk for logs, which tests fill; an ordinary folder where mounting is not allowed.
class LogDisk {
 public:
  explicit LogDisk(fs::path folder) : folder_(std::move(folder)) {
    fs::create_directory(folder_);
    is_mounted_ = ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=256k") == 0;
  }
  ~LogDisk() {
    if (is_mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  LogDisk(const LogDisk&) = delete;
  LogDisk& operator=(const LogDisk&) = delete;

  bool is_mounted() const { return is_mounted_; }
  const fs::path& folder() const { return folder_; }
  void fill() const { std::ofstream(folder_ / "ballast") << std::string(1 << 20, 'x'); }
  void free() const { fs::remove(folder_ / "ballast"); }

 private:
  fs::path folder_;
  bool is_mounted_ = false;
};

// Sends bytes that are no message of ours to a port of this host.
void disturb(uint16_t port, std::mt19937& random) {
  const int stranger = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::connect(stranger, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  std::string bytes(random() % 4096, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  std::this_thread::sleep_for(5ms);
  const ssize_t ignored = ::send(stranger, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  static_cast<void>(ignored);
  ::close(stranger);
}

// Counts of each fault.
struct Faults {
  int stopped = 0, full = 0, strangers = 0;
};

// Disturbs the ranks below `launch`, one kind of fault after the other, until it ends.
Faults disturb_until_the_end(const Running& launch, const LogDisk& disk) {
  Faults faults;
  std::mt19937 random(17);
  while (!launch.has_ended()) {
    for (const uint16_t port : listening_ports(launch.pid())) {
      disturb(port, random);
      ++faults.strangers;
    }
    disk.fill();
    ++faults.full;
    const pid_t rank = descendant_with(launch.pid(), "RANK=" + std::to_string(random() % kRanks));
    if (rank > 0 && ::kill(rank, SIGSTOP) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 500));
      ::kill(rank, SIGCONT);
      ++faults.stopped;
    }
    disk.free();
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
  }
  return faults;
}

class FaultsTest : public ProgramTest {
 protected:
  Flags job(const std::string& name) const {
    const std::string count = std::to_string(iterations());
    return golden_flags()
        .with("--micro-batch-size", "1")
        .with("--train-iters", count)
        .with("--lr-decay-iters", count)
        .with("--eval-iters", "0")
        .with("--attention-dropout", "0.1")
        .with("--hidden-dropout", "0.1")
        .with("--tensor-model-parallel-size", "2")
        .with("--pipeline-model-parallel-size", "2")
        .with("--use-distributed-optimizer")
        .with("--distributed-timeout-seconds-after-init", "30")
        .with("--save", path(name).string())
        .with("--save-interval", count)
        .with("--metrics-jsonl", path(name + ".jsonl").string());
  }
  static Words launched(const std::string& ranks, const Flags& flags) {
    Words words = {"--nproc-per-node", std::to_string(kRanks), "--ranks", ranks, "pretrain-gpt"};
    for (const std::string& word : flags.words()) words.push_back(word);
    return words;
  }
};

TEST_F(FaultsTest, EndWithTheBitsOfAnUndisturbedRun) {
  const LogDisk disk(path("logs"));
  if (!disk.is_mounted()) GTEST_SKIP() << "a full disk needs the right to mount one: not run";
  const Words with_full_logs = {"sh", "-c", "logs=$1; shift; exec \"$@\" <&- 2>\"$logs\"/err", "sh",
                                disk.folder().string()};
  Running launch(
      "launch",
      launched("processes",
               job("disturbed").with("--tensorboard-dir", (disk.folder() / "tb").string())),
      {.launcher = with_full_logs, .limit_seconds = 10.0 * iterations()});
  EXPECT_TRUE(launch.wait_for(" iteration        1/"));
  const Faults faults = disturb_until_the_end(launch, disk);
  const Outcome outcome = launch.finish();
  std::ifstream err(disk.folder() / "err");
  const std::string said{std::istreambuf_iterator<char>(err), {}};
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << said;
  EXPECT_THAT(said, testing::Not(testing::HasSubstr("error: "))) << said;
  EXPECT_GT(faults.stopped, 0);
  EXPECT_GT(faults.full, 0);
  EXPECT_GT(faults.strangers, 0);
  std::cout << outcome.seconds << " s: " << faults.stopped << " times a rank stopped, "
            << faults.full << " times the disk was full, " << faults.strangers << " strangers\n";

  EXPECT_EQ(
      run("launch", launched("threads", job("undisturbed")), {.limit_seconds = 10.0 * iterations()})
          .exit_code,
      0);
  EXPECT_EQ(metrics_of(path("disturbed.jsonl")), metrics_of(path("undisturbed.jsonl")));
  expect_identical(read_saved_run(iteration_in(path("disturbed"), iterations())),
                   read_saved_run(iteration_in(path("undisturbed"), iterations())));
}

}  // namespace
}  // namespace megatron::program
