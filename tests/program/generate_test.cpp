#include <algorithm>
#include <cmath>

#include "megatron/core/file.h"
#include "megatron/run/loaded_model.h"
#include "tests/program/inference_test.h"
#include "tests/support/tensors.h"

namespace megatron::program {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Ids ids_of(const json& row) { return row.at("ids").get<Ids>(); }

LoadedModel opened(const std::filesystem::path& model) {
  ModelChoice flags;
  flags.load = model.string();
  flags.device = DeviceChoice::kCpu;
  return load_model(flags);
}

// The most probable continuation by full forward passes without a cache.
Ids greedy_by_steps(const LoadedModel& gpt, Ids ids, int count) {
  const NoGrad no_grad;
  RandomState random(0);
  random.set_training(false);
  for (int step = 0; step < count; ++step) {
    const std::vector<int64_t> tokens(ids.begin(), ids.end());
    const auto length = static_cast<int64_t>(tokens.size());
    const Variable hidden =
        gpt.model->hidden_states({.tokens = tensor_of(tokens, {1, length})}, random);
    const Tensor logits = gpt.model->logits(Variable(hidden.data().slice(length - 1, 1))).data();
    int32_t best = 0;
    for (int32_t id = 1; id < gpt.vocab_size; ++id) {
      if (element(logits, id) > element(logits, best)) best = id;
    }
    ids.push_back(best);
  }
  return ids;
}

const std::vector<Ids> kGeneratedPrompts = {
    {5, 17, 99}, {1}, {64, 3, 3, 120, 7, 88, 21, 30, 2, 11}, {9, 8}};

// Parameter: a model of tests/golden/hf.
class GenerateModelTest : public InferenceTest, public testing::WithParamInterface<const char*> {
 protected:
  std::filesystem::path model() const { return golden("hf") / GetParam(); }
};

TEST_P(GenerateModelTest, CacheGivesWhatFullPassesGive) {
  const LoadedModel gpt = opened(model());
  const std::vector<json> rows =
      generate(model(), kGeneratedPrompts, Flags().with("--greedy").with("--max-new-tokens", "12"));
  ASSERT_EQ(rows.size(), kGeneratedPrompts.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(ids_of(rows[i]), greedy_by_steps(gpt, kGeneratedPrompts[i], 12)) << "prompt " << i;
    EXPECT_EQ(rows[i].at("prompt_tokens"), kGeneratedPrompts[i].size());
    EXPECT_EQ(rows[i].at("finish_reason"), "length");
  }
}

TEST_P(GenerateModelTest, APromptDoesNotFeelItsBatch) {
  const Flags flags = Flags().with("--greedy").with("--max-new-tokens", "8").with("--logprobs");
  const std::vector<json> together = generate(model(), kGeneratedPrompts, flags);
  for (size_t i = 0; i < kGeneratedPrompts.size(); ++i) {
    const json alone = generate(model(), {kGeneratedPrompts[i]}, flags).front();
    EXPECT_EQ(ids_of(alone), ids_of(together[i]));
    const auto want = alone.at("logprobs").get<std::vector<double>>();
    const auto got = together[i].at("logprobs").get<std::vector<double>>();
    ASSERT_EQ(got.size(), want.size());
    for (size_t k = 0; k < want.size(); ++k) EXPECT_NEAR(got[k], want[k], 1e-5);
  }
}

// Log-probabilities while generating are those of scoring the result.
TEST_P(GenerateModelTest, LogProbabilitiesAreThoseOfTheScore) {
  const std::vector<json> rows =
      generate(model(), kGeneratedPrompts,
               Flags().with("--seed", "3").with("--max-new-tokens", "9").with("--logprobs"));
  for (const json& row : rows) {
    const json scored = score(model(), {ids_of(row)}).front();
    const auto want = scored.at("logprobs").get<std::vector<double>>();
    const auto got = row.at("logprobs").get<std::vector<double>>();
    ASSERT_EQ(got.size(), ids_of(row).size() - 1);
    ASSERT_EQ(want.size(), got.size());
    for (size_t k = 0; k < want.size(); ++k) EXPECT_NEAR(got[k], want[k], 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GenerateModelTest,
                         testing::Values("gpt2", "llama-gqa", "bloom", "gpt-neox"),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class GenerateTest : public InferenceTest {};

TEST_F(GenerateTest, NativeCheckpointContinuesText) {
  const std::filesystem::path model = trained();
  const Words words = {"--load", model.string(),     "--prompt", "The river", "and the", "--seed",
                       "7",      "--max-new-tokens", "16",       "--device",  "cpu"};
  const Outcome first = run("generate", words);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, testing::StartsWith("The river"));
  EXPECT_THAT(first.out, HasSubstr("\nand the"));
  EXPECT_EQ(run("generate", words).out, first.out);

  Words other = words;
  other[6] = "8";
  EXPECT_NE(run("generate", other).out, first.out);
}

TEST_F(GenerateTest, CountsDrafts) {
  const Words words = {
      "--load",   golden("hf/bloom").string(), "--device", "cpu", "--prompt-file", "-", "--json",
      "--greedy", "--max-new-tokens",          "40"};
  const RunOptions input = {.input = json_lines({{5, 17, 99, 5, 17, 99, 5}})};
  const auto with = [&](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run("generate", all, input);
  };
  const Outcome without = with({});
  EXPECT_EQ(without.err, "");
  const Outcome outcome = with({"--num-speculative-tokens", "3"});
  EXPECT_EQ(outcome.out, without.out);
  EXPECT_THAT(outcome.err, testing::ContainsRegex("^draft tokens: [1-9][0-9]* verified, "
                                                  "[1-9][0-9]* accepted \\([0-9.]+%\\)\n$"));
  const Words of_model = {"--num-speculative-tokens", "3", "--speculative-method", "draft_model",
                          "--speculative-model"};
  Words itself = of_model;
  itself.push_back(golden("hf/bloom").string());
  const Outcome by_model = with(itself);
  EXPECT_EQ(by_model.out, without.out);
  EXPECT_THAT(by_model.err,
              testing::ContainsRegex("[1-9][0-9]* verified, [1-9][0-9]* accepted \\(100.0%\\)\n$"));
  Words other = of_model;
  other.push_back(golden("quantized/fp8-blocks").string());
  EXPECT_THAT(with(other).err, HasSubstr("--speculative-model has a vocabulary of "));
  EXPECT_THAT(with({"--num-speculative-tokens", "3", "--speculative-method", "draft_model"}).err,
              HasSubstr("--speculative-method draft_model needs --speculative-model"));
  EXPECT_THAT(with({"--speculative-model", "x"}).err,
              HasSubstr("--speculative-model has no effect without --num-speculative-tokens"));
  EXPECT_THAT(with({"--speculative-method", "mtp"}).err,
              HasSubstr("--speculative-method mtp has no effect without --num-speculative-tokens"));
  EXPECT_THAT(with({"--num-beams", "2", "--num-speculative-tokens", "65"}).err,
              testing::AllOf(HasSubstr("--num-beams 2 takes no drafts; remove "
                                       "--num-speculative-tokens 65"),
                             HasSubstr("--num-speculative-tokens 65 must be 64 or less")));
}

TEST_F(GenerateTest, TextsEndWhereThePositionsDo) {
  const std::vector<json> rows =
      generate(golden("hf/gpt2"), {{5, 17, 99}}, Flags().with("--greedy"));
  EXPECT_EQ(ids_of(rows.at(0)).size(), 64u);  // the positions of the model
  const std::vector<json> asked =
      generate(golden("hf/bloom"), {{5, 17, 99}}, Flags().with("--greedy"));
  EXPECT_EQ(ids_of(asked.at(0)).size(), 67u);  // ALiBi has no limit
}

TEST_F(GenerateTest, ACheckpointBringsItsTokenizerAlong) {
  const std::filesystem::path words = path("words");
  std::filesystem::create_directory(words);
  for (const char* name : {"vocab.json", "merges.txt"}) {
    std::filesystem::copy(golden("megatron") / "data" / name, words / name);
  }
  train(golden_flags()
            .with("--vocab-file", (words / "vocab.json").string())
            .with("--merge-file", (words / "merges.txt").string())
            .with("--eval-iters", "0")
            .with("--save", path("save").string())
            .with("--save-interval", "20"));
  std::filesystem::remove_all(words);
  std::filesystem::rename(path("save"), path("moved"));
  const Outcome outcome =
      run("generate", {"--load", path("moved").string(), "--prompt", "The river",
                       "--max-new-tokens", "4", "--device", "cpu"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::StartsWith("The river"));
}

TEST_F(GenerateTest, NativeCacheGivesWhatFullPassesGive) {
  const std::filesystem::path model = trained();
  const LoadedModel gpt = opened(model);
  const std::vector<json> rows =
      generate(model, kGeneratedPrompts,
               Flags().with("--greedy").with("--max-new-tokens", "12").with("--ignore-eod"));
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(ids_of(rows[i]), greedy_by_steps(gpt, kGeneratedPrompts[i], 12)) << "prompt " << i;
  }
}

TEST_F(GenerateTest, StopsAtTheEndOfADocument) {
  constexpr int32_t kEod = 501;
  const std::filesystem::path model = trained();
  const std::vector<Ids> prompts(300, Ids{5, 6});
  // A temperature at which all tokens are about equally probable.
  const Flags flags = Flags().with("--temperature", "1000").with("--max-new-tokens", "24");
  const std::vector<json> stopping = generate(model, prompts, flags);
  const std::vector<json> going_on = generate(model, prompts, flags.with("--ignore-eod"));
  int stopped = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Ids got = ids_of(stopping[i]);
    Ids want = ids_of(going_on[i]);
    EXPECT_EQ(want.size(), 26u);
    for (const int32_t id : want) EXPECT_LT(id, 502);  // the padding is never drawn
    const auto end = std::find(want.begin(), want.end(), kEod);
    const bool has_end = end != want.end();
    if (has_end) want.erase(end + 1, want.end());
    EXPECT_EQ(got, want);
    EXPECT_EQ(stopping[i].at("finish_reason"), has_end ? "stop" : "length");
    stopped += has_end ? 1 : 0;
  }
  EXPECT_GT(stopped, 0);
}

// The ids of config.json or of generation_config.json, also where the model has another format.
TEST_F(GenerateTest, EveryEndTokenOfAModelEndsAText) {
  const std::filesystem::path model = path("model");
  std::filesystem::copy(golden("hf/llama-gqa"), model);
  const auto write = [](const std::filesystem::path& file, const json& fields) {
    json config = json::object();
    if (std::filesystem::exists(file)) config = json::parse(read_text(file));
    config.update(fields);
    write_text_atomically(file, config.dump());
  };
  const Flags flags = Flags().with("--greedy").with("--max-new-tokens", "12");
  const Ids all = ids_of(generate(model, {{5, 17, 99}}, flags.with("--ignore-eod")).front());
  ASSERT_EQ(all.size(), 15u);
  const auto expect_end = [&](const std::filesystem::path& of, const Ids& ends) {
    const auto end = std::find_first_of(all.begin() + 3, all.end(), ends.begin(), ends.end());
    ASSERT_LT(end, all.end() - 1);
    const json row = generate(of, {{5, 17, 99}}, flags).front();
    EXPECT_EQ(ids_of(row), Ids(all.begin(), end + 1));
    EXPECT_EQ(row.at("finish_reason"), "stop");
  };
  write(model / "config.json", {{"eos_token_id", all[9]}});
  expect_end(model, {all[9]});
  write(model / "config.json", {{"eos_token_id", {all[9], all[6]}}});
  expect_end(model, {all[9], all[6]});
  std::filesystem::path before = model;
  for (const char* saver : {"native", "megatron", "hf"}) {
    const Outcome outcome = run("convert-checkpoint", {"--load-dir", before.string(), "--save-dir",
                                                       path(saver).string(), "--saver", saver});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    before = path(saver);
    expect_end(before, {all[9], all[6]});
  }
  EXPECT_EQ(json::parse(read_text(path("hf/config.json"))).at("eos_token_id"),
            json({all[9], all[6]}));
  write(model / "generation_config.json", {{"eos_token_id", {all[9], all[5]}}});
  expect_end(model, {all[9], all[5]});
}

TEST_F(GenerateTest, FlagsThatBelongElsewhereNameTheRemedy) {
  const Words model = {"--load", golden("hf/gpt2").string()};
  const auto refused = [&](Words words) {
    words.insert(words.begin(), model.begin(), model.end());
    const Outcome outcome = run("generate", words);
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(refused({"--prompt", "a", "--return_logits"}),
              HasSubstr("generate prints no logits; use megatron score --logits"));
  const std::string both = refused({"--sample-input-file", "in.txt", "--genfile", "out.txt"});
  EXPECT_THAT(both, HasSubstr("leave out --genfile: the continuations go to in.txt.out"));
  EXPECT_THAT(refused({"--sample-input-file", "in.txt", "--stop", "x"}),
              HasSubstr("--stop has no effect on samples; remove it"));
  EXPECT_THAT(refused({"--prompt-file", "-", "--stop", "x"}), HasSubstr("text needs a tokenizer"));
}

TEST_F(GenerateTest, SamplingNarrowsToGreedy) {
  const std::filesystem::path model = golden("hf/gpt2");
  const Flags flags = Flags().with("--max-new-tokens", "10");
  const Ids greedy = ids_of(generate(model, {{4, 5}}, flags.with("--greedy")).front());
  EXPECT_EQ(ids_of(generate(model, {{4, 5}}, flags.with("--top-k", "1")).front()), greedy);
  EXPECT_EQ(ids_of(generate(model, {{4, 5}}, flags.with("--top-p", "1e-6")).front()), greedy);
  EXPECT_EQ(ids_of(generate(model, {{4, 5}}, flags.with("--temperature", "1e-4")).front()), greedy);
  EXPECT_NE(ids_of(generate(model, {{4, 5}}, flags).front()), greedy);

  // Each token drawn is among the two most probable.
  const LoadedModel gpt = opened(model);
  const Ids ids = ids_of(generate(model, {{4, 5}}, flags.with("--top-k", "2")).front());
  const NoGrad no_grad;
  RandomState random(0);
  random.set_training(false);
  const std::vector<int64_t> tokens(ids.begin(), ids.end());
  const auto length = static_cast<int64_t>(tokens.size());
  const Tensor logits =
      gpt.model
          ->logits(gpt.model->hidden_states({.tokens = tensor_of(tokens, {1, length})}, random))
          .data();
  for (int64_t position = 1; position + 1 < length; ++position) {
    const int64_t row = position * logits.size(-1);
    int better = 0;
    for (int64_t id = 0; id < gpt.vocab_size; ++id) {
      const double drawn = element(logits, row + tokens[static_cast<size_t>(position) + 1]);
      if (element(logits, row + id) > drawn) ++better;
    }
    EXPECT_LE(better, 1) << "position " << position;
  }
}

}  // namespace
}  // namespace megatron::program
