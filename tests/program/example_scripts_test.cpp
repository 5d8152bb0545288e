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

// Runs examples/<name>.sh with this program.
Outcome run_script(const std::string& name, const Words& words,
                   std::map<std::string, std::string> environment) {
  environment["MERGE_FILE"] = golden("megatron/data/merges.txt").string();
  // The words of the program, its command and the flags become those of the script.
  const char* const kShell = "export MEGATRON=\"$1\"; shift 2; exec \"$0\" \"$@\"";
  return run("", words,
             {.environment = std::move(environment),
              .launcher = {"sh", "-c", kShell, source_path("examples/" + name + ".sh")}});
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
