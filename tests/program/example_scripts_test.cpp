#include <csignal>
#include <fstream>

#include "tests/program/free_port.h"
#include "tests/program/program_test.h"
#include "tests/support/source_path.h"

// The scripts of examples/, with sizes for a laptop behind their names.
namespace megatron::program {
namespace {

using testing::HasSubstr;

struct Script {
  std::string name;
  const char* vocabulary;
  const char* data;
  int ranks = 1;
};
void PrintTo(const Script& script, std::ostream* out) { *out << script.name; }

// The command that runs examples/<name>.sh with this program.
RunOptions options_of(const std::string& name, std::map<std::string, std::string> environment) {
  environment["MERGE_FILE"] = golden("megatron/data/merges.txt").string();
  // The words of the program, its command and the flags become those of the script.
  const char* const kShell = "export MEGATRON=\"$1\"; shift 2; exec \"$0\" \"$@\"";
  return {.environment = std::move(environment),
          .launcher = {"sh", "-c", kShell, source_path("examples/" + name + ".sh")}};
}

Outcome run_script(const std::string& name, const Words& words,
                   std::map<std::string, std::string> environment) {
  return run("", words, options_of(name, std::move(environment)));
}

class ExampleScriptTest : public ProgramTest, public testing::WithParamInterface<Script> {};

TEST_P(ExampleScriptTest, Trains) {
  const Script& script = GetParam();
  Flags tiny = Flags()
                   .with("--num-layers", "2")
                   .with("--hidden-size", "32")
                   .with("--num-attention-heads", "4")
                   .with("--max-position-embeddings", "64")
                   .with("--micro-batch-size", "1")
                   .with("--global-batch-size", "8")
                   .with("--train-iters", "2")
                   .with("--lr-decay-iters", "2")
                   .with("--log-interval", "1")
                   .with("--eval-iters", "0")
                   .with("--split", "1")
                   .with("--data-cache-path", path("cache").string())
                   .with("--device", "cpu")
                   .with("--num-threads", "1");
  if (script.name.find("t5") == std::string::npos) {
    tiny = tiny.with("--seq-length", "32");
  } else {
    tiny = tiny.with("--encoder-seq-length", "32")
               .with("--decoder-seq-length", "32")
               .with("--kv-channels", "8")
               .with("--ffn-hidden-size", "128");
  }
  const Outcome outcome = run_script(script.name, tiny.words(),
                                     {{"DATA_PATH", golden(script.data).string()},
                                      {"VOCAB_FILE", golden(script.vocabulary).string()},
                                      {"CHECKPOINT_PATH", path("checkpoints").string()},
                                      {"GPUS_PER_NODE", std::to_string(script.ranks)}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("iteration        2/       2"));
  EXPECT_TRUE(std::filesystem::exists(path("checkpoints") / "latest_checkpointed_iteration.txt"));
}

constexpr const char* kGptWords = "megatron/data/vocab.json";
constexpr const char* kBertWords = "megatron/data/bert-vocab.txt";
constexpr const char* kDocuments = "megatron/data/corpus_text_document";
constexpr const char* kSentences = "megatron/data/sentences_text_sentence";
INSTANTIATE_TEST_SUITE_P(
    Scripts, ExampleScriptTest,
    testing::Values(Script{"pretrain_gpt", kGptWords, kDocuments},
                    Script{"pretrain_gpt_single_node", kGptWords, kDocuments, 2},
                    Script{"pretrain_gpt_distributed", kGptWords, kDocuments, 2},
                    Script{"pretrain_gpt_distributed_with_mp", kGptWords, kDocuments, 4},
                    Script{"pretrain_bert", kBertWords, kSentences},
                    Script{"pretrain_bert_distributed", kBertWords, kSentences, 2},
                    Script{"pretrain_bert_distributed_with_mp", kBertWords, kSentences, 4},
                    Script{"pretrain_t5", kBertWords, kSentences},
                    Script{"pretrain_t5_distributed", kBertWords, kSentences, 2},
                    Script{"pretrain_t5_distributed_with_mp", kBertWords, kSentences, 4}),
    [](const testing::TestParamInfo<Script>& script) { return script.param.name; });

class TrainedModelScriptTest : public ProgramTest {
 protected:
  // Of a GPT that is there.
  static std::map<std::string, std::string> model() {
    return {{"CHECKPOINT_PATH", golden("megatron/gpt/ckpt/iter_0000010").string()},
            {"VOCAB_FILE", golden(kGptWords).string()}};
  }
};

TEST_F(TrainedModelScriptTest, ContinuesText) {
  RunOptions options = options_of("generate_text", model());
  options.input = "The river\nA mill\n";
  const Outcome outcome = run("", {"--max-new-tokens", "4", "--device", "cpu"}, options);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::AllOf(HasSubstr("The river"), HasSubstr("A mill")));
}

TEST_F(TrainedModelScriptTest, MeasuresIt) {
  std::ofstream(path("lambada.jsonl")) << "{\"text\": \"the river and the mill\"}\n";
  std::map<std::string, std::string> environment = model();
  environment["VALID_DATA"] = path("lambada.jsonl").string();
  const Outcome outcome = run_script("evaluate_zeroshot_gpt", {"--device", "cpu"}, environment);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("validation results on LAMBADA | number correct: "));
  environment["TASK"] = "WIKITEXT103";
  std::ofstream(path("wiki.txt")) << "the river and the mill of the town";
  environment["VALID_DATA"] = path("wiki.txt").string();
  const Outcome perplexity = run_script("evaluate_zeroshot_gpt",
                                        {"--device", "cpu", "--detokenizer", "wiki"}, environment);
  EXPECT_EQ(perplexity.exit_code, 0) << perplexity.err;
  EXPECT_THAT(perplexity.out, HasSubstr("adjusted ppl: "));
}

TEST_F(TrainedModelScriptTest, ServesIt) {
  for (const char* const name :
       {"run_text_generation_server_345M", "run_text_generation_server_345M_8_tensor_parallel"}) {
    std::map<std::string, std::string> environment = model();
    environment["GPUS_PER_NODE"] = "2";
    const std::string port = std::to_string(free_port());
    Running server("", {"--port", port, "--device", "cpu"}, options_of(name, environment));
    EXPECT_TRUE(server.wait_for("serving iter_0000010 at http://127.0.0.1:" + port)) << name;
    server.send(SIGTERM);
    const Outcome outcome = server.finish();
    EXPECT_EQ(outcome.exit_code, 0) << name << outcome.err;
  }
}

// The scripts that fine-tune a BERT.
class TaskScriptTest : public ProgramTest {
 protected:
  void expect_to_train(const std::string& name, std::map<std::string, std::string> environment) {
    environment["VOCAB_FILE"] = golden(kBertWords).string();
    environment["CHECKPOINT_PATH"] = path(name).string();
    environment["PRETRAINED_CHECKPOINT"] = "";
    environment["GPUS_PER_NODE"] = "2";
    const Outcome outcome = run_script(name,
                                       {"--num-layers",
                                        "2",
                                        "--hidden-size",
                                        "32",
                                        "--num-attention-heads",
                                        "4",
                                        "--seq-length",
                                        "32",
                                        "--max-position-embeddings",
                                        "32",
                                        "--epochs",
                                        "1",
                                        "--micro-batch-size",
                                        "1",
                                        "--log-interval",
                                        "1",
                                        "--eval-iters",
                                        "0",
                                        "--device",
                                        "cpu",
                                        "--num-threads",
                                        "1"},
                                       environment);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, testing::AllOf(HasSubstr("iteration        1/       1"),
                                            HasSubstr(" >> |epoch: 0| overall: ")));
    EXPECT_TRUE(std::filesystem::exists(path(name) / "latest_checkpointed_iteration.txt"));
  }
};

TEST_F(TaskScriptTest, Mnli) {
  const std::filesystem::path file = path("MNLI.tsv");
  std::ofstream(file) << "i\tp\tq\tg\tb\tb\ts\ts\tsentence1\tsentence2\tgold_label\n"
                      << "0\t.\t.\t.\t.\t.\t.\t.\tthe mill\tthe library\tneutral\n"
                      << "1\t.\t.\t.\t.\t.\t.\t.\tthe mill\tthe mill\tentailment\n";
  expect_to_train("finetune_mnli_distributed",
                  {{"TRAIN_DATA", file.string()}, {"VALID_DATA", file.string()}});
}

TEST_F(TaskScriptTest, Race) {
  const std::filesystem::path folder = path("RACE");
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "1.txt")
      << R"({"article": "the mill was painted .", "questions": ["what was _ ?", "who knows"],)"
      << R"( "options": [["painted","moved","said","wrote"],["nobody","mill","a","b"]],)"
      << R"( "answers": ["A","A"]})"
      << "\n";
  expect_to_train("finetune_race_distributed",
                  {{"TRAIN_DATA", folder.string()}, {"VALID_DATA", folder.string()}});
}

TEST(LargeModelScriptTest, IsPlanned) {
  const Outcome outcome = run_script("pretrain_gpt3_175B", {},
                                     {{"SRUN", ""},
                                      {"COMMAND", "plan --world-size 1024"},
                                      {"VOCAB_FILE", golden(kGptWords).string()}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("1024 ranks: tensor 8 with sequence, pipeline 16"));
}

}  // namespace
}  // namespace megatron::program
