#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "megatron/core/file.h"
#include "tests/program/program_test.h"

// `megatron evaluate --task MNLI|QQP|RACE`, which trains a BERT.
namespace megatron::program {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class ClassifyTest : public ProgramTest {
 protected:
  // Questions are duplicates if both speak of a library: a model that reads them can tell.
  std::string written_qqp(const std::string& name, int lines, int first) const {
    const std::filesystem::path file = path("QQP") / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream out(file);
    out << "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n";
    const char* const others[] = {"mill", "market", "garden", "harbour", "theatre"};
    for (int i = first; i < first + lines; ++i) {
      const bool is_same = i % 2 == 0;
      const std::string other = others[(i / 2) % 5];
      const std::string word = is_same ? "library" : other;
      out << i << "\t1\t2\tthe " << word << " was painted\tnobody knows the " << word << "\t"
          << (is_same ? 1 : 0) << "\n";
    }
    return file.string();
  }
  Flags qqp() const {
    return Flags()
        .with("--task", "QQP")
        .with("--num-layers", "2")
        .with("--hidden-size", "32")
        .with("--num-attention-heads", "4")
        .with("--seq-length", "24")
        .with("--max-position-embeddings", "32")
        .with("--padded-vocab-size", "512")
        .with("--micro-batch-size", "8")
        .with("--lr", "2e-3")
        .with("--lr-warmup-fraction", "0.065")
        .with("--lr-decay-style", "linear")
        .with("--init-method-std", "0.2")
        .with("--weight-decay", "0.01")
        .with("--tokenizer-type", "BertWordPieceLowerCase")
        .with("--vocab-file", golden("megatron/data/bert-vocab.txt").string())
        .with("--log-interval", "1")
        .with("--eval-interval", "10")
        .with("--eval-iters", "2")
        .with("--epochs", "3")
        .with("--train-data", written_qqp("train.tsv", 100, 0))
        .with("--valid-data", written_qqp("dev.tsv", 30, 1000), written_qqp("dev_other.tsv", 9, 7))
        .with("--device", "cpu")
        .with("--num-threads", "1");
  }
  static Outcome classified(const Flags& flags, int ranks = 1, const Words& layout = {}) {
    Words words = flags.words();
    words.insert(words.end(), layout.begin(), layout.end());
    if (ranks > 1) {
      words.insert(words.begin(), {"--nproc-per-node", std::to_string(ranks), "evaluate"});
    }
    Outcome outcome = run(ranks > 1 ? "launch" : "evaluate", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    return outcome;
  }
  // The numbers before " %" of the lines with `mark`.
  static std::vector<double> percentages(const std::string& output, const std::string& mark) {
    std::vector<double> found;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
      if (line.find(mark) == std::string::npos) continue;
      found.push_back(std::stod(line.substr(line.rfind(" = ") + 3)));
    }
    return found;
  }
  static std::vector<std::string> losses_of(const std::string& output) {
    std::vector<std::string> losses;
    for (const IterationText& line : iterations_of(output)) losses.push_back(line.text("lm loss"));
    return losses;
  }
};

TEST_F(ClassifyTest, LearnsAndPrintsTheAccuracyOfEachSet) {
  const Outcome outcome = classified(qqp());
  EXPECT_EQ(iterations_of(outcome.out).size(), 36u) << "12 batches of 8 samples in an epoch";
  const std::vector<double> overall = percentages(outcome.out, " >> |epoch: ");
  ASSERT_EQ(overall.size(), 3u);
  EXPECT_GT(overall.back(), 95.0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr(" > |epoch: 2| metrics for dev: correct / total = "),
                                 HasSubstr(" > |epoch: 2| metrics for dev-other: correct / total"),
                                 HasSubstr(" / 39 = "), HasSubstr("lm loss value")));
}

TEST_F(ClassifyTest, LayoutsAgree) {
  const Flags exact = qqp().with("--hidden-dropout", "0").with("--attention-dropout", "0");
  const Outcome one = classified(exact);
  const Outcome two = classified(exact, 2, {"--tensor-model-parallel-size", "2"});
  const Outcome data = classified(exact.with("--micro-batch-size", "4"), 2);
  for (const Outcome* const outcome : {&two, &data}) {
    EXPECT_EQ(percentages(outcome->out, " >> |epoch: "), percentages(one.out, " >> |epoch: "));
    const auto got = losses_of(outcome->out);
    const auto want = losses_of(one.out);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(std::stod(got[i]), std::stod(want[i]), 1e-3) << i;
    }
  }
}

TEST_F(ClassifyTest, ResumesInTheMiddleOfAnEpoch) {
  const std::vector<std::string> whole = losses_of(classified(qqp()).out);
  const Flags saved = qqp().with("--save", path("save").string()).with("--save-interval", "5");
  const Outcome first = classified(saved.with("--exit-interval", "20"));
  const Outcome second = classified(saved.with("--load", path("save").string()));
  const std::vector<std::string> rest = losses_of(second.out);
  EXPECT_EQ(rest, std::vector<std::string>(whole.begin() + 20, whole.end()));
  EXPECT_EQ(percentages(second.out, " >> |epoch: ").size(), 2u) << "epochs 1 and 2 were left";
}

TEST_F(ClassifyTest, KeepsTheLastBatch) {
  const Flags flags = qqp().with("--epochs", "1").with("--keep-last");
  std::ofstream(path("QQP") / "dev.tsv", std::ios::app) << "a line\tof two fields\n";
  const Outcome outcome = classified(flags);
  EXPECT_EQ(losses_of(outcome.out).size(), 13u);
  const std::string warning = "dev.tsv: 1 lines have another number of fields";
  const size_t said = outcome.err.find(warning);
  ASSERT_NE(said, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find(warning, said + 1), std::string::npos) << "said twice";
}

TEST_F(ClassifyTest, MeasuresATrainedModelAndWritesItsPredictions) {
  const std::string save = path("save").string();
  const Outcome trained = classified(qqp().with("--save", save));
  const Outcome outcome = classified(qqp().with("--epochs", "0").with("--load", save));
  EXPECT_TRUE(iterations_of(outcome.out).empty());
  EXPECT_THAT(percentages(outcome.out, " >> |epoch: -1|"),
              ElementsAre(percentages(trained.out, " >> |epoch: ").back()));
  std::istringstream lines(read_text(path("save") / "predictions_dev.jsonl"));
  int64_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const nlohmann::json prediction = nlohmann::json::parse(line);
    EXPECT_EQ(prediction["uid"], 1000 + count);
    EXPECT_EQ(prediction["probabilities"].size(), 2u);
    EXPECT_NEAR(
        prediction["probabilities"][0].get<double>() + prediction["probabilities"][1].get<double>(),
        1.0, 1e-5);
  }
  EXPECT_EQ(count, 30);
}

TEST_F(ClassifyTest, StartsFromAPretrainedBert) {
  const std::string pretrained = path("bert").string();
  const Outcome bert =
      run("pretrain-bert",
          golden_flags()
              .without("--merge-file")
              .with("--num-layers", "2")
              .with("--tokenizer-type", "BertWordPieceLowerCase")
              .with("--padded-vocab-size", "512")
              .with("--vocab-file", golden("megatron/data/bert-vocab.txt").string())
              .with("--data-path", golden("megatron/data/sentences_text_sentence").string())
              .with("--train-iters", "2")
              .with("--eval-iters", "0")
              .with("--save", pretrained)
              .with("--save-interval", "2")
              .words());
  ASSERT_EQ(bert.exit_code, 0) << bert.err;
  const Flags flags = qqp().with("--epochs", "1");
  const Outcome outcome = classified(flags.with("--pretrained-checkpoint", pretrained));
  EXPECT_THAT(outcome.err, HasSubstr("the checkpoint has no classification_head.weight"));
  EXPECT_NE(losses_of(outcome.out).front(), losses_of(classified(flags).out).front());
}

TEST_F(ClassifyTest, TrainsMnliAndRace) {
  const std::filesystem::path mnli = path("MNLI") / "train.tsv";
  std::filesystem::create_directories(mnli.parent_path());
  std::ofstream out(mnli);
  out << "index\tp\tq\tg\tb\tb\ts\ts\tsentence1\tsentence2\tgold_label\n";
  const char* const labels[] = {"contradiction", "entailment", "neutral"};
  for (int i = 0; i < 24; ++i) {
    out << i << "\t.\t.\t.\t.\t.\t.\t.\tthe mill moved\tnobody knows " << labels[i % 3][0] << "\t"
        << labels[i % 3] << "\n";
  }
  out.close();
  const Outcome outcome = classified(qqp()
                                         .with("--task", "MNLI")
                                         .with("--epochs", "1")
                                         .with("--train-data", mnli.string())
                                         .with("--valid-data", mnli.string()));
  EXPECT_EQ(losses_of(outcome.out).size(), 3u);
  EXPECT_THAT(outcome.out, HasSubstr("metrics for train: correct / total = "));

  const std::filesystem::path race = path("RACE") / "train" / "middle";
  std::filesystem::create_directories(race);
  std::ofstream(race / "1.txt")
      << R"({"article": "the mill was painted .", "questions": ["what was _ ?", "who knows"],)"
      << R"( "options": [["painted","moved","said","wrote"],["nobody","mill","a","b"]],)"
      << R"( "answers": ["A","A"]})"
      << "\n";
  const Outcome choice = classified(qqp()
                                        .with("--task", "RACE")
                                        .with("--init-method-std", "0.02")
                                        .with("--epochs", "2")
                                        .with("--micro-batch-size", "2")
                                        .with("--train-data", race.string())
                                        .with("--valid-data", race.string()));
  EXPECT_EQ(losses_of(choice.out).size(), 2u);
  EXPECT_NEAR(std::stod(losses_of(choice.out).front()), std::log(4.0), 0.1);
  EXPECT_THAT(choice.out, HasSubstr("metrics for train-middle: correct / total = "));
}

// Each of the four sequences of a question has dropout masks of its own, in every layout.
TEST_F(ClassifyTest, SequencesOfASampleHaveTheirOwnMasks) {
  const std::filesystem::path race = path("RACE") / "train" / "middle";
  std::filesystem::create_directories(race);
  std::ofstream out(race / "1.txt");
  for (const char* const article : {"the mill was painted .", "nobody knows the harbour ."}) {
    out << "{\"article\": \"" << article << "\", \"questions\": [\"what was _ ?\", \"who knows\"], "
        << R"("options": [["painted","moved","said","wrote"],["nobody","mill","a","b"]], )"
        << R"("answers": ["A","A"]})"
        << "\n";
  }
  out.close();
  const Flags flags = qqp()
                          .with("--task", "RACE")
                          .with("--hidden-dropout", "0.5")
                          .with("--epochs", "3")
                          .with("--train-data", race.string())
                          .with("--valid-data", race.string());
  const auto one = losses_of(classified(flags.with("--micro-batch-size", "4")).out);
  const auto two = losses_of(classified(flags.with("--micro-batch-size", "2"), 2).out);
  ASSERT_EQ(one.size(), 3u);
  ASSERT_EQ(two.size(), 3u);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(std::stod(two[i]), std::stod(one[i]), 1e-3) << i;
  }
}

TEST_F(ClassifyTest, NamesWhatIsMissing) {
  const Outcome outcome = run("evaluate", {"--task", "MNLI"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(errors_of(outcome),
              testing::IsSupersetOf({HasSubstr("--epochs is required"),
                                     HasSubstr("--seq-length is required"),
                                     HasSubstr("--micro-batch-size is required")}));
  const Outcome stages = run("launch", [&] {
    Words words = qqp().with("--pipeline-model-parallel-size", "2").words();
    words.insert(words.begin(), {"--nproc-per-node", "2", "evaluate"});
    return words;
  }());
  EXPECT_EQ(stages.exit_code, 2);
  EXPECT_THAT(stages.err, HasSubstr("--pipeline-model-parallel-size 2 is not available"));
}

}  // namespace
}  // namespace megatron::program
