#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "megatron/core/file.h"
#include "megatron/settings/training_args.h"
#include "tests/program/program_test.h"
#include "tests/support/source_path.h"

// Every flag of pretrain-gpt shows an effect: a pair of runs, without and with it, differs in the
// log, in the files, in a warning or in the exit code.
namespace megatron::program {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A line of tests/cases/flag_effects.txt.
struct FlagPair {
  Words flag;
  std::string without;  // the command line of the run without it
  std::string refusal;  // empty, or a part of the error that the flag gives
};

struct FlagCases {
  std::map<std::string, std::string> files;        // name and text, in the folder of every run
  std::map<std::string, std::string> checkpoints;  // name and the command that writes it
  std::vector<FlagPair> pairs;
  std::map<std::string, std::string> without_pair;  // flag and reason
};

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  return parts;
}

Words words_in(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::string joined(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Replaces $name by its value, until none is left.
std::string expanded(std::string text, const std::map<std::string, std::string>& values) {
  for (size_t at = text.find('$'); at != std::string::npos; at = text.find('$', at)) {
    const size_t end = std::min(
        text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789", at + 1), text.size());
    text.replace(at, end - at, values.at(text.substr(at + 1, end - at - 1)));
  }
  return text;
}

FlagCases read_flag_cases(const fs::path& path) {
  FlagCases cases;
  std::map<std::string, std::string> values = {{"golden", golden("").string()}};
  std::istringstream lines(read_text(path));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const char kind = line[0];
    if (kind == '$' || kind == '@' || kind == '!') {
      const size_t equals = line.find(" = ");
      const std::string name = line.substr(1, equals - 1);
      const std::string value = expanded(line.substr(equals + 3), values);
      (kind == '$' ? values : kind == '@' ? cases.files : cases.checkpoints)[name] = value;
      continue;
    }
    if (const size_t at = line.find(" ! "); at != std::string::npos) {
      cases.without_pair[line.substr(0, at)] = line.substr(at + 3);
      continue;
    }
    std::vector<std::string> columns = split(line, " | ");
    columns.resize(4);
    const std::string command = columns[2].empty() ? "$gpt" : columns[2];
    const std::string others = columns[1] == "-" ? "" : columns[1];
    cases.pairs.push_back({.flag = words_in(expanded(columns[0], values)),
                           .without = expanded(command + " " + others, values),
                           .refusal = columns[3]});
  }
  return cases;
}

// Ranks print in any order, and times differ.
std::string comparable_log(const std::string& text) {
  static const std::pair<std::regex, const char*> kChanging[] = {
      {std::regex("elapsed time per iteration \\(ms\\): [^|]*|datetime: .*|[0-9.]+ seconds"), "T"},
      {std::regex("\\([0-9.]+, [0-9.]+\\)|\\(seconds\\): .*| rank +[0-9]+: [0-9.]+"), "T"},
      {std::regex("\\[[-0-9]+ [:0-9]+\\] \\| MnRtt.*|Etpt\\(TF\\):.*"), "T"},
      {std::regex("throughput per GPU[^|]*|memory \\(MB\\) .*"), "T"},
  };
  std::vector<std::string> kept;
  bool is_argument = false;
  for (std::string line : split(text, "\n")) {
    if (!is_argument) {
      for (const auto& [pattern, with] : kChanging) line = std::regex_replace(line, pattern, with);
      kept.push_back(line);
    }
    if (line.find("--- arguments ---") != std::string::npos) is_argument = true;
    if (line.find("--- end of arguments ---") != std::string::npos) is_argument = false;
  }
  std::sort(kept.begin(), kept.end());
  return joined(kept);
}

// The operations in the order of the host's thread, and those of other threads.
std::string comparable_profile(const std::string& text) {
  std::string order;
  std::multiset<std::string> others;
  for (const json& event : json::parse(text)) {
    if (!event.contains("cat")) continue;
    const std::string name = event["name"];
    if (event["tid"] == 0) {
      order += name + " ";
    } else {
      others.insert(name);
    }
  }
  for (const std::string& name : others) order += name + " ";
  return order;
}

// What two equal runs have in common. Arguments that a checkpoint or the log repeats do not count.
std::string comparable_file(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name == "args.json" || name == "manifest.json.sum" || name == "checksums.crc32c" ||
      name == "tokenizer_flags.json" || name == "progress.txt" || name == ".place" ||
      name.starts_with("args_")) {
    return "";
  }
  if (name.find("tfevents") != std::string::npos) return std::to_string(fs::file_size(path));
  if (name.ends_with(".wandb") || path.parent_path().filename() == "csv") return "";
  std::string text = read_text(path);
  if (name.starts_with("profile_rank")) return comparable_profile(text);
  if (name.ends_with(".jsonl")) return std::regex_replace(text, std::regex("[0-9.]+"), "N");
  if (name != "manifest.json") return text;
  json manifest = json::parse(text);
  manifest["files"].erase("args.json");
  return manifest.dump();
}

// False if one of them does not exist.
bool is_equal(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::file_size(a, ignored) == fs::file_size(b, ignored) && fs::exists(b) &&
         read_text(a) == read_text(b);
}

struct Effect {
  int exit_code = 0;
  std::string err;
  std::string log;
  std::map<std::string, std::string> files;
  bool operator==(const Effect&) const = default;
};

class FlagEffectsTest : public ProgramTest {
 protected:
  static FlagCases read_cases() {
    return read_flag_cases(source_path("tests/cases/flag_effects.txt"));
  }

  Outcome run_in(const fs::path& folder, const Words& line) const {
    const RunOptions options = {.environment = {{"OMP_NUM_THREADS", "1"}},
                                .launcher = {"env", "-C", folder.string()}};
    return run(line.at(0), {line.begin() + 1, line.end()}, options);
  }

  // The folder of the files that runs start from.
  void prepare(const FlagCases& cases) {
    fs::create_directory(path("given"));
    for (const auto& [name, text] : cases.files) {
      std::ofstream(path("given") / name) << std::regex_replace(text, std::regex(R"(\\n)"), "\n");
    }
    write_ranks();
    for (const auto& [name, command] : cases.checkpoints) {
      const Outcome outcome = run_in(path("given"), words_in(command));
      ASSERT_EQ(outcome.exit_code, 0) << command << "\n" << outcome.err;
    }
  }
  // TikToken's vocabulary of the bytes.
  void write_ranks() const {
    static constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const auto digit = [](int value) { return kDigits[static_cast<size_t>(value % 64)]; };
    json ranks = json::array();
    for (int i = 0; i < 256; ++i) {
      const std::string bytes{digit(i / 4), digit(i * 16), '=', '='};
      ranks.push_back({{"rank", i}, {"token_bytes", bytes}, {"token_str", "x"}});
    }
    std::ofstream(path("given") / "ranks256.json") << ranks.dump();
  }

  Effect effect_of(const std::string& line) {
    if (const auto known = effects_.find(line); known != effects_.end()) return known->second;
    const fs::path given = path("given");
    const fs::path folder = path("run");
    fs::remove_all(folder);
    fs::create_directory(folder);
    for (const auto& entry : fs::directory_iterator(given)) {  // the files that the line names
      const fs::path name = entry.path().filename();
      if (line.find(name.string()) == std::string::npos) continue;
      fs::copy(entry.path(), folder / name, fs::copy_options::recursive);
    }
    const Outcome outcome = run_in(folder, words_in(line));
    Effect effect = {outcome.exit_code, outcome.err, comparable_log(outcome.out), {}};
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file()) continue;
      std::string name = fs::relative(entry.path(), folder).string();
      if (is_equal(entry.path(), given / name)) continue;
      name = std::regex_replace(name, std::regex("[0-9]{8,}.*|[0-9]+-[0-9]+-[0-9]+T.*"), "");
      effect.files[name] += comparable_file(entry.path());
    }
    return effects_[line] = effect;
  }

 private:
  std::map<std::string, Effect> effects_;
};

TEST_F(FlagEffectsTest, EveryPairDiffers) {
  const FlagCases cases = read_cases();
  prepare(cases);
  for (const FlagPair& pair : cases.pairs) {
    const std::string flag = joined(pair.flag);
    const Effect without = effect_of(pair.without);
    const Effect with = effect_of(pair.without + " " + flag);
    if (!pair.refusal.empty()) {
      EXPECT_EQ(without.exit_code, 0) << pair.without << "\n" << without.err;
      EXPECT_EQ(with.exit_code, 2) << flag;
      EXPECT_THAT(with.err, testing::HasSubstr(pair.refusal)) << flag;
      continue;
    }
    EXPECT_EQ(with.exit_code, 0) << flag << " with " << pair.without << "\n" << with.err;
    EXPECT_FALSE(with == without) << flag << " shows no effect with " << pair.without;
  }
}

// Else every pair would differ.
TEST_F(FlagEffectsTest, EqualRunsDoNotDiffer) {
  const FlagCases cases = read_cases();
  prepare(cases);
  const std::set<std::string> changing = {"--seed",
                                          "--profile",
                                          "--tensorboard-dir",
                                          "--metrics-jsonl",
                                          "--csv-dir",
                                          "--wandb-project",
                                          "--timing-log-level",
                                          "--log-throughput",
                                          "--overlap-grad-reduce",
                                          "--use-tp-pp-dp-mapping"};
  std::set<std::string> lines;
  for (const FlagPair& pair : cases.pairs) {
    if (!changing.contains(pair.flag.front())) continue;
    lines.insert(pair.without);
    lines.insert(pair.without + " " + joined(pair.flag));
  }
  EXPECT_GE(lines.size(), changing.size());
  for (const std::string& line : lines) {
    const Effect first = effect_of(line);
    EXPECT_TRUE(first == effect_of(line + " ")) << line;
  }
}

// Each used flag has a pair or a reason; each reason belongs to a used flag.
TEST_F(FlagEffectsTest, EveryUsedFlagHasAPair) {
  const FlagCases cases = read_cases();
  std::set<std::string> named;
  for (const FlagPair& pair : cases.pairs) named.insert(pair.flag.front());
  TrainingArgs args;
  const FlagTable flags = training_flags(args);
  std::set<std::string> used;
  for (const Flag& flag : flags.rows()) {
    if (flag.status != FlagStatus::kUsed) continue;
    used.insert(flag.names.front());
    const bool is_known = std::any_of(flag.names.begin(), flag.names.end(), [&](const auto& name) {
      return named.contains(name) || cases.without_pair.contains(name);
    });
    EXPECT_TRUE(is_known) << flag.names.front() << " needs a line in tests/cases/flag_effects.txt";
  }
  for (const auto& [flag, reason] : cases.without_pair) {
    EXPECT_TRUE(used.contains(flag)) << flag;
    EXPECT_FALSE(named.contains(flag)) << flag << " has a pair";
  }
}

}  // namespace
}  // namespace megatron::program
