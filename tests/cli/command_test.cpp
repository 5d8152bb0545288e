#include "megatron/cli/command.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "megatron/cli/workloads.h"
#include "megatron/core/error.h"
#include "megatron/settings/edit_distance.h"
#include "megatron/settings/flag_table.h"
#include "megatron/settings/training_args.h"
#include "tests/support/captured_output.h"

namespace megatron::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

int greet(std::span<const std::string> words) {
  std::string name;
  FlagTable flags;
  flags.group("flags");
  flags.add("--first-name", name, "Who is greeted.").required();
  flags.add("--by", name, "Who greets.").required("--first-name");
  if (!parse_flags(flags, "megatron greet --first-name NAME", words)) return 0;
  if (name == "broken") throw std::runtime_error("out of paper");
  if (name == "locked") {
    throw std::filesystem::filesystem_error("status", "/locked/door",
                                            std::make_error_code(std::errc::permission_denied));
  }
  if (name == "crowd") {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  }
  if (name == "two") throw ConfigError(std::vector<std::string>{"one problem", "another"});
  return name == "Ada" ? 0 : 7;
}

struct Outcome {
  int code = 0;
  std::string out;
  std::string err;
};

Outcome run(std::vector<const char*> words) {
  const Command commands[] = {
      {"greet", CommandGroup::kData, "say hello", "--first-name Ada", greet},
      {"bid-farewell", CommandGroup::kData, "say bye", "", greet},
      {"meet", CommandGroup::kInference, "shake hands", "", RunAlone(nullptr), "MG_HANDS"}};
  words.insert(words.begin(), "megatron");
  CapturedStdout captured_out;
  CapturedStderr captured_err;
  Outcome outcome;
  outcome.code = run_program(static_cast<int>(words.size()), words.data(), commands);
  outcome.out = captured_out.text();
  outcome.err = captured_err.text();
  return outcome;
}

TEST(RunProgram, RunsTheNamedCommand) {
  EXPECT_EQ(run({"greet", "--first-name", "Ada"}).code, 0);
  EXPECT_EQ(run({"greet", "--first_name=Ada"}).code, 0);
  EXPECT_EQ(run({"bid_farewell"}).code, 7);
}

TEST(RunProgram, ListsItsCommands) {
  const Outcome help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("data:\n  greet         say hello\n  bid-farewell  say bye\n"));
  EXPECT_THAT(help.out, Not(HasSubstr("inference:")));
  EXPECT_THAT(help.out, HasSubstr("  meet          -DMG_HANDS=ON\n"));
  EXPECT_EQ(run({"help"}).out, help.out);
  EXPECT_EQ(run({}).code, 0);
  EXPECT_EQ(run({}).out, help.out);
}

TEST(RunProgram, NamesTheOptionOfACommandThatTheBuildLeavesOut) {
  const Outcome outcome = run({"meet", "--first-name", "Ada"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err, "error: meet is not in this build; configure with -DMG_HANDS=ON\n");
}

TEST(RunProgram, NamesItsVersion) {
  const Outcome outcome = run({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, testing::StartsWith("megatron 0."));
}

TEST(RunProgram, AnErrorOfTheFileSystemIsASentence) {
  const Outcome outcome = run({"greet", "--first-name", "locked"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err,
            "error: /locked/door: Permission denied; check the path and its permissions\n");
}

TEST(RunProgram, AThreadThatCannotBeStartedIsASentence) {
  const Outcome outcome = run({"greet", "--first-name", "crowd"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err,
            "error: a thread cannot be started: Resource temporarily unavailable; use fewer ranks "
            "or threads, or raise the limit of processes (ulimit -u)\n");
}

TEST(RunProgram, HelpOfACommandShowsItsFlags) {
  const Outcome help = run({"greet", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, testing::StartsWith("example: megatron greet --first-name Ada\n"
                                            "usage: megatron greet --first-name NAME\n"));
  EXPECT_THAT(run({"bid-farewell", "--help"}).out, testing::StartsWith("usage: "));
  EXPECT_THAT(help.out, HasSubstr("Who is greeted. (required)\n"));
  EXPECT_THAT(help.out, HasSubstr("Who greets. (required without --first-name)\n"));
}

TEST(RunProgram, ErrorsAreOneLineEachAndSetTheExitCode) {
  const Outcome unknown = run({"gret"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.err, "error: gret is not a command; did you mean greet?\n");
  EXPECT_EQ(run({"xyzzy"}).err, "error: xyzzy is not a command; --help lists them all\n");
  const Outcome two = run({"greet", "--first-name", "two"});
  EXPECT_EQ(two.code, 2);
  EXPECT_EQ(two.err, "error: one problem\nerror: another\n");
  const Outcome broken = run({"greet", "--first-name", "broken"});
  EXPECT_EQ(broken.code, 1);
  EXPECT_EQ(broken.err, "error: out of paper\n");
}

TEST(ParseFlags, ReportsAllProblemsTogether) {
  const Outcome outcome = run({"greet", "stray", "--frist-name", "Ada"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--frist-name is not a flag; did you mean --first-name?"));
  EXPECT_THAT(outcome.err, HasSubstr("stray belongs to no flag"));
}

TEST(FlagTable, TakesItsOwnFlagsOutOfACommandLine) {
  std::string name;
  bool is_loud = false;
  FlagTable table;
  table.add("--first-name", name, "Who is greeted.");
  table.add_switch("--loud", is_loud, "In capitals.");
  std::vector<std::string> words = {"--layers", "4",  "--first_name",      "Ada",
                                    "--loud",   "-h", "--first-name=Grace"};
  EXPECT_THAT(table.take_own(words),
              ElementsAre("--first_name", "Ada", "--loud", "--first-name=Grace"));
  EXPECT_THAT(words, ElementsAre("--layers", "4", "-h"));
}

TEST(Workloads, AreCommandLinesThatMoreFlagsChange) {
  const auto args_of = [](const char* name, std::vector<std::string> more) {
    return parse_training_args(workload_command(name, more), ModelKind::kGpt, 1);
  };
  const TrainingArgs small = args_of("6.7b", {});
  EXPECT_EQ(small.transformer.hidden_size, 4096);
  EXPECT_EQ(small.transformer.max_position_embeddings, 2048);
  const TrainingArgs llama = args_of("llama3-8b", {"--seq-length=512", "--num-layers", "2"});
  EXPECT_EQ(llama.transformer.num_layers, 2);
  EXPECT_EQ(llama.transformer.max_position_embeddings, 512);
  EXPECT_EQ(llama.transformer.ffn_hidden_size, 14336);
  EXPECT_EQ(workload_kind("llama3-8b"), ModelKind::kGpt);
  EXPECT_EQ(workload_kind("bert-large"), ModelKind::kBert);
  const TrainingArgs bert =
      parse_training_args(workload_command("bert-large", {}), ModelKind::kBert, 1);
  EXPECT_EQ(bert.transformer.seq_length, 512);
  try {
    workload_command("7b", {});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "--workload 7b is unknown; use tiny, 124m, 345m, 774m, 1.3b, 1.5b, 6.7b, "
                 "llama3-8b, bert-large or t5-large");
  }
}

TEST(EditDistance, CountsLetters) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("hidden", "hiden"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("same", "same"), 0u);
}

}  // namespace
}  // namespace megatron::cli
