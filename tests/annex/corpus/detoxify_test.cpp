#include <fmt/format.h>

#include <fstream>

#include "megatron/core/file.h"
#include "tests/program/inference_test.h"
#include "tests/support/source_path.h"

// A GPT that has learned bad words writes fewer of them after examples/detoxify.sh.
namespace megatron::program {
namespace {

using testing::HasSubstr;

class DetoxifyTest : public ProgramTest {
 protected:
  Flags tokenizer() const {
    return Flags()
        .with("--tokenizer-type", "GPT2BPETokenizer")
        .with("--vocab-file", golden("megatron/data/vocab.json").string())
        .with("--merge-file", golden("megatron/data/merges.txt").string());
  }

  // A model of texts of which every second one has bad words.
  std::filesystem::path toxic_model() const {
    std::string corpus;
    for (int i = 0; i < 400; ++i) {
      const char* const text =
          i % 2 == 0 ? "the bad old man was bad and bad" : "the river runs down to the sea";
      corpus += fmt::format("{{\"text\": \"{}\"}}\n", text);
    }
    write_text_atomically(path("corpus.jsonl"), corpus);
    const Outcome ids = run("preprocess-data", tokenizer()
                                                   .with("--input", path("corpus.jsonl").string())
                                                   .with("--output-prefix", path("corpus").string())
                                                   .with("--append-eod")
                                                   .words());
    EXPECT_EQ(ids.exit_code, 0) << ids.err;
    train(tokenizer()
              .with("--data-path", path("corpus_text_document").string())
              .with("--num-layers", "2")
              .with("--hidden-size", "32")
              .with("--num-attention-heads", "4")
              .with("--seq-length", "32")
              .with("--max-position-embeddings", "32")
              .with("--micro-batch-size", "8")
              .with("--lr", "5e-3")
              .with("--train-iters", "150")
              .with("--split", "1")
              .with("--eval-iters", "0")
              .with("--device", "cpu")
              .with("--save", path("toxic").string())
              .with("--save-interval", "150"));
    return path("toxic");
  }

  // Runs the script with these flags of training.
  Outcome detoxify(const std::filesystem::path& model, const Words& flags) const {
    const char* const kShell = "export MEGATRON=\"$1\"; shift 2; exec \"$0\" \"$@\"";
    return run("", flags,
               {.environment = {{"MERGE_FILE", golden("megatron/data/merges.txt").string()},
                                {"VOCAB_FILE", golden("megatron/data/vocab.json").string()},
                                {"CHECKPOINT_PATH", model.string()},
                                {"OUTPUT_PATH", path("detox").string()},
                                {"PROMPTS", path("prompts.jsonl").string()},
                                {"SCORER", scorer()},
                                {"NUM_SAMPLES", "200"},
                                {"SAMPLE_LENGTH", "16"},
                                {"CONTINUATIONS", "5"},
                                {"KEEP_FRACTION", "0.3"},
                                {"TRAIN_ITERS", "100"}},
                .launcher = {"sh", "-c", kShell, source_path("examples/detoxify.sh")}});
  }
  std::string scorer() const {
    return fmt::format("{} corpus score-words --words {}", std::string(MG_PROGRAM),
                       path("words.tsv").string());
  }
};

// The number behind "all prompts: N, expected maximum toxicity".
double expected_maximum(const std::string& out) {
  const std::string before = "expected maximum toxicity ";
  const size_t at = out.find(before, out.find("all prompts: "));
  EXPECT_NE(at, std::string::npos) << out;
  return at == std::string::npos ? -1 : std::stod(out.substr(at + before.size()));
}

TEST_F(DetoxifyTest, LowersTheToxicityOfWhatAModelWrites) {
  const std::filesystem::path model = toxic_model();
  write_text_atomically(path("words.tsv"), "bad\t0.5\n");
  std::string prompts;
  std::string repeated;
  for (int i = 0; i < 20; ++i) {
    const std::string line = fmt::format(
        "{{\"prompt\": {{\"text\": \"the\", \"toxicity\": {}}}}}\n", i < 5 ? "0.75" : "0.25");
    prompts += line;
    for (int k = 0; k < 5; ++k) repeated += line;
  }
  write_text_atomically(path("prompts.jsonl"), prompts);
  write_text_atomically(path("repeated.jsonl"), repeated);

  const Outcome before =
      run("generate",
          {"--load", model.string(), "--sample-input-file", path("repeated.jsonl").string(),
           "--num-samples", "100", "--out-seq-length", "20", "--top-p", "0.9", "--device", "cpu"});
  ASSERT_EQ(before.exit_code, 0) << before.err;
  const std::string written = path("repeated.jsonl.out").string();
  const std::vector<nlohmann::json> lines = parsed_lines(read_text(written));
  ASSERT_EQ(lines.size(), 100u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].at("id"), i);
    EXPECT_EQ(lines[i].at("prompt"), "the");
    EXPECT_EQ(lines[i].at("all_text"), "the" + lines[i].at("text").get<std::string>());
  }
  const Outcome measured =
      run("corpus", {"measure-toxicity", "--data-path", written, "--prompt-path",
                     path("prompts.jsonl").string(), "--continuations", "5", "--scorer", scorer()});
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  EXPECT_THAT(measured.out, HasSubstr("toxic prompts: 5, expected"));
  EXPECT_THAT(measured.out, HasSubstr("nontoxic prompts: 15, expected"));

  const Words training = {"--global-batch-size", "8", "--lr", "5e-3", "--device", "cpu"};
  const Outcome after = detoxify(model, training);
  ASSERT_EQ(after.exit_code, 0) << after.out << after.err;
  EXPECT_GT(expected_maximum(measured.out), 0.7);
  EXPECT_LT(expected_maximum(after.out), 0.5 * expected_maximum(measured.out));

  // Nothing is done twice.
  const Outcome again = detoxify(model, training);
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("continuations.jsonl is there"));
  EXPECT_EQ(expected_maximum(again.out), expected_maximum(after.out));
}

}  // namespace
}  // namespace megatron::program
