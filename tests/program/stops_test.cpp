#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <thread>

#include "megatron/core/file.h"
#include "tests/program/program_test.h"

// A program is stopped at each call by which it changes a folder: the next one goes on by itself,
// loses nothing and leaves nothing. MG_STOP_EVERY=3 tries every third call.
namespace megatron::program {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

enum class Stop { kKill, kTear, kFail };

struct Job {
  std::string command;
  Words words;  // paths are relative to the folder of the job
  Stop stop = Stop::kKill;
  bool can_exchange = true;
  bool goes_on_alone = false;  // the stopped job itself must end well
  int64_t every = 1;           // 2: every second call is tried
};

// The bytes of every file below a folder, and the names of folders.
std::map<std::string, std::string> content_of(const fs::path& folder) {
  std::map<std::string, std::string> content;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = fs::relative(entry.path(), folder).string();
    content[name] = entry.is_directory() ? "a folder" : read_text(entry.path());
  }
  return content;
}

std::vector<std::string> names_in(const std::map<std::string, std::string>& content) {
  std::vector<std::string> names;
  for (const auto& [name, text] : content) names.push_back(name);
  return names;
}

class StopsTest : public ProgramTest {
 protected:
  void SetUp() override { fs::create_directories(start()); }

  // Findings of a job.
  fs::path start() const { return path("start"); }

  Outcome run_in(const fs::path& folder, const Job& job, Words environment = {}) const {
    Words launcher = {"env", "-C", folder.string()};
    launcher.insert(launcher.end(), environment.begin(), environment.end());
    return run(job.command, job.words, {.launcher = launcher});
  }
  // Runs a job of the beginning.
  void prepare(const std::string& command, const Words& words) const {
    const Outcome outcome = run_in(start(), {command, words});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }

  // Stops the job at each of its calls that change `changed`, and runs it again.
  void stop_everywhere(const Job& job, const std::string& changed) const {
    const fs::path whole = path("whole");
    fs::remove_all(whole);
    fs::copy(start(), whole, fs::copy_options::recursive);
    Words counting = stopping(whole / changed, job, 0, "");
    counting.push_back("MG_STOP_COUNT=" + path("count").string());
    const Outcome outcome = run_in(whole, job, counting);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const int64_t calls = std::stoll(read_text(path("count")));
    ASSERT_GT(calls, 10);
    const auto wanted = content_of(whole / changed);

    std::atomic<int64_t> next{1};
    const int64_t step = job.every * step_of_calls();
    const auto stop_some = [&] {
      for (int64_t call = next.fetch_add(step); call <= calls; call = next.fetch_add(step)) {
        stop_at(job, changed, call, wanted);
      }
    };
    std::thread other(stop_some);
    stop_some();
    other.join();
    std::cout << job.command << ": stopped at " << (calls + step - 1) / step << " of " << calls
              << " calls\n";
  }

 private:
  static int64_t step_of_calls() {
    const char* every = std::getenv("MG_STOP_EVERY");
    return every != nullptr ? std::max(std::atoi(every), 1) : 1;
  }

  static Words stopping(const fs::path& folder, const Job& job, int64_t call,
                        const std::string& once) {
    const char* how = job.stop == Stop::kKill ? "kill" : job.stop == Stop::kTear ? "tear" : "fail";
    Words words = {"LD_PRELOAD=" MG_STOP_AT_CALL, "MG_STOP_FOLDER=" + folder.string(),
                   "MG_STOP_AT=" + std::to_string(call), std::string("MG_STOP_HOW=") + how};
    if (!once.empty()) words.push_back("MG_STOP_ONCE=" + once);
    if (!job.can_exchange) words.emplace_back("MG_STOP_NO_EXCHANGE=1");
    return words;
  }

  // A restart reports whether it begins at the first iteration.
  static void expect_true_report(const Outcome& restarted) {
    const bool has_loaded = restarted.out.find("successfully loaded") != std::string::npos;
    EXPECT_THAT(restarted.err, HasSubstr(has_loaded ? "1 of 1 from the checkpoint of iteration 2"
                                                    : "1 of 1 from the beginning, nothing was"))
        << restarted.out;
  }

  void stop_at(const Job& job, const std::string& changed, int64_t call,
               const std::map<std::string, std::string>& wanted) const {
    const std::string name = job.command + std::to_string(call);
    const fs::path folder = path("stopped" + name);
    fs::copy(start(), folder, fs::copy_options::recursive);
    const Outcome stopped =
        run_in(folder, job, stopping(folder / changed, job, call, path("once" + name).string()));
    EXPECT_TRUE(fs::exists(path("once" + name))) << "call " << call << " did not come";
    if (job.goes_on_alone) {
      EXPECT_EQ(stopped.exit_code, 0) << "call " << call << ": " << stopped.err;
      expect_true_report(stopped);
    }
    if (job.stop == Stop::kFail && stopped.exit_code != 0) {
      EXPECT_EQ(stopped.exit_code, 2) << "call " << call << ": " << stopped.err;
      EXPECT_THAT(stopped.err, HasSubstr("No space left on device")) << "call " << call;
    }
    const Outcome again = run_in(folder, job);
    EXPECT_EQ(again.exit_code, 0) << "after call " << call << ": " << again.err;
    const auto content = content_of(folder / changed);
    EXPECT_EQ(names_in(content), names_in(wanted)) << "after call " << call;
    EXPECT_TRUE(content == wanted) << "after call " << call << ": other bytes";
    fs::remove_all(folder);
    fs::remove(path("once" + name));
  }
};

class SaveStopsTest : public StopsTest {
 protected:
  // Saves at iteration 2.
  static Flags training() {
    return golden_run("cache")
        .with("--num-layers", "1")
        .with("--hidden-size", "16")
        .with("--num-attention-heads", "2")
        .with("--train-iters", "2")
        .with("--eval-iters", "0")
        .with("--save", "save")
        .with("--load", "save")
        .with("--save-interval", "2");
  }
  // Goes on, saves at iteration 4 and deletes that of 2.
  static Flags more_training() {
    return training().with("--train-iters", "4").with("--keep-last", "1");
  }
};

TEST_F(SaveStopsTest, AFirstSave) {
  stop_everywhere({"pretrain-gpt", training().words(), Stop::kTear}, "save");
}

TEST_F(SaveStopsTest, AFirstSaveInMegatronsFormat) {
  stop_everywhere({"pretrain-gpt", training().with("--save-format", "megatron").words()}, "save");
}

TEST_F(SaveStopsTest, TheNextSaveAndTheEndOfTheOldCheckpoint) {
  prepare("pretrain-gpt", training().words());
  stop_everywhere({"pretrain-gpt", more_training().words()}, "save");
}

TEST_F(SaveStopsTest, AFullDisk) {
  prepare("pretrain-gpt", training().words());
  stop_everywhere({"pretrain-gpt", more_training().words(), Stop::kFail}, "save");
}

// The run ends at the iteration where it begins, and so saves it again.
TEST_F(SaveStopsTest, TheSameIterationWhereNamesCannotBeExchanged) {
  prepare("pretrain-gpt", training().words());
  for (const Stop stop : {Stop::kKill, Stop::kFail}) {
    stop_everywhere({"pretrain-gpt", training().words(), stop, false}, "save");
  }
}

TEST_F(SaveStopsTest, AJobThatRestartsItself) {
  Words words = {"--nproc-per-node", "2", "--max-restarts", "1", "pretrain-gpt"};
  const Words flags = training().with("--tensor-model-parallel-size", "2").words();
  words.insert(words.end(), flags.begin(), flags.end());
  stop_everywhere({.command = "launch", .words = words, .goes_on_alone = true, .every = 3}, "save");
}

TEST_F(StopsTest, Conversions) {
  prepare("pretrain-gpt", golden_run("cache")
                              .with("--num-layers", "1")
                              .with("--train-iters", "1")
                              .with("--eval-iters", "0")
                              .with("--save", "save")
                              .with("--save-interval", "1")
                              .words());
  for (const char* saver : {"megatron", "native", "hf"}) {
    stop_everywhere({"convert-checkpoint", {"--load", "save", "--save", "out", "--saver", saver}},
                    "out");
  }
}

// They replace older files of the same names.
TEST_F(StopsTest, DataSetsAndVocabularies) {
  const std::string corpus = (golden("megatron/data") / "corpus.jsonl").string();
  const auto learn = [&](const char* size) {
    return Words{"--input", corpus, "--output-dir", "out", "--vocab-size", size};
  };
  prepare("train-tokenizer", learn("300"));
  const auto tokenize = [&](const char* key) {
    return Words{"--input",          corpus,
                 "--json-keys",      key,
                 "--output-prefix",  "out/set",
                 "--vocab-file",     (golden("megatron/data") / "vocab.json").string(),
                 "--merge-file",     (golden("megatron/data") / "merges.txt").string(),
                 "--tokenizer-type", "GPT2BPETokenizer",
                 "--workers",        "1"};
  };
  prepare("preprocess-data", tokenize("text"));
  for (const Stop stop : {Stop::kTear, Stop::kFail}) {
    Words with_end = tokenize("text");
    with_end.emplace_back("--append-eod");
    stop_everywhere({"preprocess-data", with_end, stop}, "out");
    stop_everywhere({"train-tokenizer", learn("320"), stop}, "out");
  }
}

}  // namespace
}  // namespace megatron::program
