#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "megatron/core/file.h"
#include "megatron/formats/json_file.h"
#include "megatron/formats/safetensors.h"
#include "tests/program/finetuning.h"

// `megatron finetune` of a BERT and of a T5. The references are PyTorch loops of transformers
// (tests/golden/finetune/make_labels.py).
namespace megatron::program {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FinetuneLabelsTest : public FinetuningTest {
 protected:
  static std::string file(const std::string& name) { return golden("finetune/" + name).string(); }
  static nlohmann::json reference(const std::string& name) {
    return read_json(golden("finetune/labels.json"))[name];
  }

  Flags with_texts(const Flags& flags, const std::string& train, const std::string& valid) const {
    return flags.with("--train_file", file(train)).with("--validation_file", file(valid));
  }
  Flags bert(const std::string& output) const {
    return finetuning(output)
        .with("--block_size", "16")
        .with("--tokenizer_name", golden("finetune").string());
  }
  // A folder of tests/golden/finetune with the weights of the golden BERT.
  std::string model_with_head(const std::string& name) const {
    const SafetensorsFile bert(golden("hf/megatron-bert/model.safetensors"));
    const SafetensorsFile head(golden("finetune/" + name + "/head.safetensors"));
    std::vector<SafetensorsFile::Entry> tensors;
    for (const SafetensorsFile* const file : {&bert, &head}) {
      for (const SafetensorsFile::Entry& tensor : file->tensors()) {
        if (!tensor.spec.name.starts_with("cls.")) tensors.push_back(tensor);
      }
    }
    std::vector<TensorSpec> specs;
    for (const SafetensorsFile::Entry& tensor : tensors) specs.push_back(tensor.spec);
    std::filesystem::create_directory(path(name));
    SafetensorsWriter writer(path(name) / "model.safetensors", specs);
    for (const SafetensorsFile::Entry& tensor : tensors) writer.write(tensor.view);
    writer.commit();
    std::filesystem::copy_file(golden("finetune/" + name + "/config.json"),
                               path(name) / "config.json");
    return path(name).string();
  }
  Flags classes(const std::string& output) const {
    return with_texts(bert(output), "classes_train.csv", "classes_valid.csv");
  }
  Flags pairs(const std::string& output, const std::string& model) const {
    return with_texts(finetuning(output), "pairs_train.jsonl", "pairs_valid.jsonl")
        .with("--model_name_or_path", golden("hf/" + model).string())
        .with("--tokenizer-type", "NullTokenizer")
        .with("--vocab-size", "130")
        .with("--max_source_length", "12")
        .with("--max_target_length", "8");
  }

  static std::string error_of(const Flags& flags) {
    const Outcome outcome = run("finetune", flags.words());
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    return outcome.err;
  }

  static double last_of(const std::string& output, const std::string& mark) {
    const std::vector<double> values = epochs_of(output, mark);
    EXPECT_FALSE(values.empty()) << output;
    return values.empty() ? std::nan("") : values.back();
  }
  void expect_reference(const std::string& output, const std::string& name,
                        const std::string& loss) const {
    const nlohmann::json want = reference(name);
    expect_near(column(output, loss), want["losses"].get<std::vector<double>>(), 2e-5);
    expect_near(column(output, "grad_norm"), want["grad_norms"].get<std::vector<double>>(), 5e-4);
  }
  // Evaluations of a classifier: [loss, accuracy] after each epoch.
  static void expect_evaluations(const Outcome& outcome, const std::string& name,
                                 bool has_classes) {
    std::vector<double> losses;
    std::vector<double> accuracies;
    const nlohmann::json want = reference(name);
    for (const nlohmann::json& each : want["eval"]) {
      losses.push_back(each[0]);
      accuracies.push_back(each[1]);
    }
    expect_near(epochs_of(outcome.out, "eval_loss: "), losses, 5e-5);
    if (has_classes) expect_near(epochs_of(outcome.out, "accuracy: "), accuracies, 1e-9);
  }
};

TEST_F(FinetuneLabelsTest, ClassesEqualTransformers) {
  const Flags flags = classes("out").with("--model_name_or_path", model_with_head("classifier"));
  const Outcome outcome = finetune(flags);
  expect_reference("out", "classes", "loss");
  expect_evaluations(outcome, "classes", true);
  EXPECT_THAT(outcome.out, HasSubstr("  Num examples = 24\n"));
  const nlohmann::json results = read_json(path("out") / "all_results.json");
  EXPECT_EQ(results["eval_accuracy"], reference("classes")["eval"][1][1]);
  EXPECT_EQ(read_json(path("out") / "config.json")["problem_type"], "single_label_classification");
  EXPECT_NEAR(results["eval_loss"].get<double>(), reference("classes")["eval"][1][0].get<double>(),
              5e-5);
}

TEST_F(FinetuneLabelsTest, ClassesInEveryLayout) {
  const Flags flags = classes("two").with("--model_name_or_path", model_with_head("classifier"));
  const Outcome tensor = finetune(flags.with("--tensor-model-parallel-size", "2"), 2);
  expect_reference("two", "classes", "loss");
  expect_evaluations(tensor, "classes", true);
  const Outcome data = finetune(flags.with("--metrics-jsonl", path("data.jsonl").string())
                                    .with("--output_dir", path("data").string())
                                    .with("--gradient_accumulation_steps", "1"),
                                2);
  expect_reference("data", "classes", "loss");
  expect_evaluations(data, "classes", true);
}

TEST_F(FinetuneLabelsTest, NumbersEqualTransformers) {
  const Outcome outcome =
      finetune(with_texts(bert("out"), "values_train.jsonl", "values_valid.jsonl")
                   .with("--model_name_or_path", model_with_head("regressor")));
  expect_reference("out", "values", "loss");
  expect_evaluations(outcome, "values", false);
  EXPECT_EQ(read_json(path("out") / "config.json")["problem_type"], "regression");
}

TEST_F(FinetuneLabelsTest, ListsOfMarksEqualTransformers) {
  const Outcome outcome =
      finetune(with_texts(bert("out"), "marks_train.jsonl", "marks_valid.jsonl")
                   .with("--model_name_or_path", model_with_head("classifier")));
  expect_reference("out", "marks", "loss");
  expect_evaluations(outcome, "marks", false);
  EXPECT_EQ(read_json(path("out") / "config.json")["problem_type"], "multi_label_classification");
  // Each of its classes is right or wrong by itself.
  const Words text = {"--load", path("out").string(), "--device", "cpu", "--prompt", "w100 w126"};
  Words marks = text;
  marks.emplace_back("--marks");
  const std::string said = run("classify", text).out;
  EXPECT_FALSE(said.empty());
  EXPECT_EQ(said, run("classify", marks).out);
}

// What `classify` says of the texts gives the loss and the accuracy of the evaluation.
TEST_F(FinetuneLabelsTest, ClassifiesAsItEvaluated) {
  const Outcome outcome =
      finetune(classes("out")
                   .with("--block_size", "64")
                   .with("--model_name_or_path", model_with_head("classifier")));
  std::ifstream file(golden("finetune/classes_valid.csv"));
  std::string texts;
  std::vector<std::string> labels;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream columns(line);
    std::string id, first, second, label;
    for (std::string* const column : {&id, &first, &second, &label}) {
      std::getline(columns, *column, ',');
    }
    texts += nlohmann::json{{"id", labels.size()}, {"text", first}, {"text_pair", second}}.dump();
    texts += '\n';
    labels.push_back("LABEL_" + label);
  }
  const Words words = {"--load", path("out").string(), "--prompt-file", "-", "--device", "cpu"};
  const Outcome classified = run("classify", words, {.input = texts});
  ASSERT_EQ(classified.exit_code, 0) << classified.err;
  double loss = 0;
  double correct = 0;
  std::istringstream answers(classified.out);
  for (size_t i = 0; i < labels.size(); ++i) {
    std::getline(answers, line);
    const nlohmann::json answer = nlohmann::json::parse(line);
    EXPECT_EQ(answer.at("id"), i);
    EXPECT_EQ(answer.at("score").size(), 3u);
    loss -= std::log(answer.at("score").at(labels[i]).get<double>());
    correct += answer.at("label") == labels[i] ? 1 : 0;
  }
  const auto count = static_cast<double>(labels.size());
  EXPECT_NEAR(loss / count, last_of(outcome.out, "eval_loss: "), 1e-5);
  EXPECT_NEAR(correct / count, last_of(outcome.out, "accuracy: "), 1e-9);

  // The first text on four ranks, by itself; every class by itself; a model for words is refused.
  const Words text = {"classify", "--load",   path("out").string(), "--device",
                      "cpu",      "--prompt", "w100 w126"};
  Words ranks = {"--nproc-per-node", "4"};
  ranks.insert(ranks.end(), text.begin(), text.end());
  ranks.insert(ranks.end(), {"--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size",
                             "2", "--decoder-last-pipeline-num-layers", "1"});
  const auto score_of = [](const Outcome& said) {
    EXPECT_EQ(said.exit_code, 0) << said.err;
    return nlohmann::json::parse(said.out).at("score").get<std::map<std::string, double>>();
  };
  const auto alone = score_of(run("classify", Words(text.begin() + 1, text.end())));
  for (const auto& [name, value] : score_of(run("launch", ranks))) {
    EXPECT_NEAR(value, alone.at(name), 1e-5);
  }
  Words marks(text.begin() + 1, text.end());
  marks.emplace_back("--marks");
  const auto marked = score_of(run("classify", marks));
  const auto logit = [](double p) { return std::log(p / (1 - p)); };
  EXPECT_NEAR(logit(marked.at("LABEL_0")) - logit(marked.at("LABEL_1")),
              std::log(alone.at("LABEL_0") / alone.at("LABEL_1")), 1e-4);
  const std::string words_alone = golden("hf/megatron-bert").string();
  EXPECT_THAT(run("classify", {"--load", words_alone, "--prompt", "w5"}).err,
              HasSubstr("the BERT has no classification head"));
  EXPECT_THAT(run("fill-mask", {"--load", path("out").string(), "--prompt", "w5 [MASK]"}).err,
              HasSubstr("has no head for words; use classify"));
}

// A pretrained BERT gets a new head; its result is a classifier, with the names of the classes.
TEST_F(FinetuneLabelsTest, NamedClassesOfAPretrainedModel) {
  std::ofstream(path("train.csv")) << "text,kind\nw5 w6,good\nw7 w8,bad\nw9 w5,good\nw8 w7,bad\n";
  const Flags flags = bert("first")
                          .with("--model_name_or_path", golden("hf/megatron-bert").string())
                          .with("--train_file", path("train.csv").string())
                          .with("--validation_file", path("train.csv").string())
                          .with("--label_column", "kind")
                          .with("--num_labels", "2")
                          .with("--num_train_epochs", "10");
  const Outcome first = finetune(flags);
  EXPECT_THAT(first.err, HasSubstr("the model has no classification_head"));
  EXPECT_EQ(last_of(first.out, "accuracy: "), 1.0);
  const nlohmann::json config = read_json(path("first") / "config.json");
  EXPECT_EQ(config["architectures"][0], "MegatronBertForSequenceClassification");
  EXPECT_EQ(config["id2label"]["0"], "bad");
  EXPECT_EQ(config["label2id"]["good"], 1);

  const Flags further = flags.with("--model_name_or_path", path("first").string())
                            .with("--output_dir", path("second").string())
                            .with("--learning_rate", "0")
                            .with("--num_train_epochs", "1")
                            .with("--num_warmup_steps", "0");
  const Outcome second = finetune(further.without("--num_labels"));
  EXPECT_EQ(last_of(second.out, "eval_loss: "), last_of(first.out, "eval_loss: "));
  const std::string error = error_of(further.with("--num_labels", "3"));
  EXPECT_THAT(error,
              HasSubstr("--num_labels 3: the model has a head for 2 classes; give that number"));
}

// The files of bert-base-uncased are of a ForMaskedLM, with a pooler that a classifier needs.
TEST_F(FinetuneLabelsTest, ThePoolerOfAMaskedModelIsKept) {
  std::filesystem::copy(golden("hf/megatron-bert"), path("masked"));
  nlohmann::json config = read_json(path("masked") / "config.json");
  config["architectures"] = {"MegatronBertForMaskedLM"};
  std::filesystem::remove(path("masked") / "config.json");
  std::ofstream(path("masked") / "config.json") << config;
  const auto first_loss = [&](const std::string& output, const std::string& model) {
    const Outcome outcome = finetune(classes(output)
                                         .with("--num_labels", "3")
                                         .with("--model_name_or_path", model)
                                         .with("--max_train_steps", "1")
                                         .with("--num_warmup_steps", "0"));
    EXPECT_THAT(outcome.err, testing::Not(HasSubstr("the model has no pooler")));
    const std::vector<double> losses = column(output, "loss");
    EXPECT_EQ(losses.size(), 1u);
    return losses.empty() ? std::nan("") : losses.front();
  };
  EXPECT_EQ(first_loss("masked_out", path("masked").string()),
            first_loss("out", golden("hf/megatron-bert").string()));
}

TEST_F(FinetuneLabelsTest, AClassifierResumes) {
  const Flags flags = classes("out").with("--model_name_or_path", model_with_head("classifier"));
  const Outcome whole = finetune(flags);
  const Flags parts = flags.with("--output_dir", path("parts").string())
                          .with("--checkpointing_steps", "2")
                          .with("--metrics-jsonl", path("parts.jsonl").string());
  finetune(parts.with("--exit-interval", "4"));
  const Outcome rest = finetune(
      parts.with("--resume_from_checkpoint", path("parts").string()).with("--num_labels", "3"));
  EXPECT_THAT(epochs_of(rest.out, "eval_loss: "), ElementsAre(last_of(whole.out, "eval_loss: ")));
  EXPECT_EQ(read_text(path("parts") / "model.safetensors"),
            read_text(path("out") / "model.safetensors"));
}

TEST_F(FinetuneLabelsTest, MaskedWordsEqualTransformers) {
  const Flags flags = with_texts(bert("out"), "masked_train.txt", "masked_valid.txt")
                          .with("--no_keep_linebreaks")
                          .with("--model_name_or_path", golden("hf/megatron-bert").string());
  const Outcome outcome = finetune(flags);
  expect_reference("out", "masked", "lm loss");
  const auto losses = reference("masked")["eval"].get<std::vector<double>>();
  expect_near(epochs_of(outcome.out, "eval_loss: "), losses, 2e-5);
  EXPECT_EQ(read_json(path("out") / "config.json")["architectures"][0], "MegatronBertForMaskedLM");
  const Outcome four = finetune(flags.with("--output_dir", path("four").string())
                                    .with("--metrics-jsonl", path("four.jsonl").string())
                                    .with("--tensor-model-parallel-size", "2")
                                    .with("--pipeline-model-parallel-size", "1")
                                    .with("--gradient_accumulation_steps", "1"),
                                4);
  expect_reference("four", "masked", "lm loss");
  expect_near(epochs_of(four.out, "eval_loss: "), losses, 2e-5);
}

class FinetuneT5Test : public FinetuneLabelsTest,
                       public testing::WithParamInterface<const char*> {};

TEST_P(FinetuneT5Test, SummariesEqualTransformers) {
  const std::string model = GetParam();
  const auto losses = reference(model)["eval"].get<std::vector<double>>();
  const Outcome one = finetune(pairs("one", model));
  expect_reference("one", model, "lm loss");
  expect_near(epochs_of(one.out, "eval_loss: "), losses, 2e-5);
  const Outcome two = finetune(pairs("two", model).with("--tensor-model-parallel-size", "2"), 2);
  expect_reference("two", model, "lm loss");
  expect_near(epochs_of(two.out, "eval_loss: "), losses, 2e-5);
  const Outcome staged = finetune(pairs("staged", model)
                                      .with("--pipeline-model-parallel-size", "2")
                                      .with("--pipeline-model-parallel-split-rank", "1"),
                                  2);
  expect_reference("staged", model, "lm loss");
  expect_near(epochs_of(staged.out, "eval_loss: "), losses, 2e-5);
  const nlohmann::json config = read_json(path("one") / "config.json");
  for (const char* id : {"pad_token_id", "eos_token_id", "decoder_start_token_id"}) {
    EXPECT_EQ(config[id], read_json(golden("hf/" + model + "/config.json"))[id]) << id;
  }
  // The result is a model that the next run loads.
  const Outcome further = finetune(pairs("further", model)
                                       .with("--model_name_or_path", path("one").string())
                                       .with("--learning_rate", "0")
                                       .with("--num_warmup_steps", "0")
                                       .with("--max_train_steps", "1"));
  expect_near(epochs_of(further.out, "eval_loss: "), {losses.back()}, 2e-5);
}
INSTANTIATE_TEST_SUITE_P(Models, FinetuneT5Test, testing::Values("t5-v1.0", "t5-v1.1"));

TEST_F(FinetuneLabelsTest, WhatDoesNotFitIsNamed) {
  const Flags gpt = finetuning("out")
                        .with("--model_name_or_path", golden("hf/gpt2").string())
                        .with("--train_file", file("train.txt"));
  EXPECT_THAT(error_of(gpt.with("--num_labels", "2")),
              HasSubstr("--num_labels is for a BERT, and the model is a GPT; remove it"));
  EXPECT_THAT(error_of(gpt.with("--source_prefix", "sum: ")),
              HasSubstr("--source_prefix is for a T5, and the model is a GPT; remove it"));
  EXPECT_THAT(error_of(gpt.with("--num_labels", "2").with("--model_name_or_path", "absent/bert")),
              HasSubstr("--model_name_or_path absent/bert: there is no such file or folder"));
  const Flags flags = classes("out")
                          .with("--model_name_or_path", golden("hf/megatron-bert").string())
                          .with("--num_labels", "2");
  EXPECT_THAT(error_of(flags), HasSubstr("must be an integer from 0 to 1; --num_labels is 2"));
  EXPECT_THAT(error_of(flags.with("--label_column", "kind")),
              HasSubstr("classes_train.csv: has no column kind; its columns are id, sentence1, "
                        "sentence2, label"));
  EXPECT_THAT(
      error_of(flags.with("--train_file", file("train.txt"))),
      HasSubstr("examples with several columns are read from .csv, .json and .jsonl files"));
  EXPECT_THAT(error_of(flags.with("--train_file", file("values_train.jsonl"))),
              HasSubstr("classes_valid.csv: has no column text; its columns are id, sentence1"));
  EXPECT_THAT(error_of(flags.with("--train_file", file("values_train.jsonl"))
                           .with("--validation_file", file("values_valid.jsonl"))),
              HasSubstr("--num_labels 2: the training texts have 19 labels, 0.109375, "));
  EXPECT_THAT(error_of(pairs("out", "t5-v1.1").with("--summary_column", "short")),
              HasSubstr("has no short; it has text, summary"));
}

}  // namespace
}  // namespace megatron::program
