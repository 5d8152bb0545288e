#include <algorithm>

#include "tests/program/parallel_inference.h"

// Tensor and pipeline parallel generation and scoring give what one rank gives.
namespace megatron::program {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// Parameter: a model of tests/golden/hf. They have 3 layers, and 131 rows in their vocabulary,
// which divide among no ranks.
class ParallelInferenceModelTest : public ParallelInferenceTest,
                                   public testing::WithParamInterface<const char*> {};

TEST_P(ParallelInferenceModelTest, GivesWhatOneRankGives) {
  expect_as_one_rank(golden("hf") / GetParam(), {{.tp = 2},
                                                 {.pp = 3},
                                                 {.pp = 2, .first_stage_layers = 1},
                                                 {.tp = 2, .pp = 2, .first_stage_layers = 2}});
}

INSTANTIATE_TEST_SUITE_P(Models, ParallelInferenceModelTest,
                         testing::Values("gpt2", "llama-gqa", "bloom", "gpt-neox"),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A head's scale is its own on any rank. Sums in other orders may round a number to its neighbour.
TEST_P(ParallelInferenceModelTest, KeepsKeysAndValuesInFp8) {
  const Flags greedy = Flags().with("--greedy").with("--max-new-tokens", "8");
  const Flags in_fp8 = greedy.with("--kv-cache-dtype", "fp8");
  const std::filesystem::path model = golden("hf") / GetParam();
  const std::vector<json> exact = generated(model, kOne, greedy, kPrompts);
  const std::vector<json> rounded = generated(model, kOne, in_fp8, kPrompts);
  const std::vector<json> divided = generated(model, {.tp = 2, .pp = 3}, in_fp8, kPrompts);
  bool is_same = true;
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    EXPECT_EQ(divided[i].at("ids"), rounded[i].at("ids")) << i;
    const auto log_probabilities = [&](const std::vector<json>& texts) {
      return texts[i].at("logprobs").get<std::vector<double>>();
    };
    const auto want = log_probabilities(exact);
    const auto got = log_probabilities(rounded);
    const auto of_ranks = log_probabilities(divided);
    for (size_t k = 0; k < got.size(); ++k)
      EXPECT_NEAR(of_ranks[k], got[k], 1e-3) << i << ", " << k;
    // Of the prompt and the first new token: the next ones may be others.
    for (size_t k = 0; k + 7 < got.size(); ++k)
      EXPECT_NEAR(got[k], want[k], 0.02) << i << ", " << k;
    is_same = is_same && got == want;
  }
  EXPECT_FALSE(is_same);
}

TEST_F(ParallelInferenceTest, TheLayoutOfTrainingDoesNotMatter) {
  const std::filesystem::path saved = path("save");
  Words words = {"--nproc-per-node", "4", "pretrain-gpt"};
  const Flags training = golden_flags()
                             .with("--eval-iters", "0")
                             .with("--train-iters", "6")
                             .with("--tensor-model-parallel-size", "2")
                             .with("--pipeline-model-parallel-size", "2")
                             .with("--sequence-parallel")
                             .with("--save", saved.string())
                             .with("--save-interval", "20");
  for (const std::string& word : training.words()) words.push_back(word);
  const Outcome outcome = run("launch", words);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_as_one_rank(saved, {{.tp = 4}, {.pp = 4}, {.tp = 2, .pp = 2}});
}

// Ranks have copies of the one group of keys and values in their caches.
TEST_F(ParallelInferenceTest, RanksShareAGroup) {
  const std::filesystem::path saved = path("save");
  train(llama_style(golden_flags())
            .with("--num-query-groups", "1")
            .with("--qk-layernorm")
            .with("--eval-iters", "0")
            .with("--train-iters", "6")
            .with("--save", saved.string())
            .with("--save-interval", "20"));
  expect_as_one_rank(saved, {{.tp = 2}, {.tp = 4}});
}

TEST_F(ParallelInferenceTest, LayersHaveOptions) {
  const std::filesystem::path saved = path("save");
  train(llama_style(golden_flags())
            .with("--norm-placement", "both")
            .with("--qk-layernorm")
            .with("--qk-layernorm-of-projection")
            .with("--residual-multiplier", "0.5")
            .with("--embedding-multiplier", "4")
            .with("--logits-multiplier", "0.5")
            .with("--final-logit-softcapping", "4")
            .with("--no-rope-freq", "([0]+[1])*2")
            .with("--add-output-bias")
            .with("--eval-iters", "0")
            .with("--train-iters", "6")
            .with("--save", saved.string())
            .with("--save-interval", "20"));
  expect_as_one_rank(saved, {{.tp = 2}, {.pp = 2}});
}

TEST_F(ParallelInferenceTest, AttentionIsLatent) {
  const std::filesystem::path saved = path("save");
  train(llama_style(golden_flags())
            .with("--multi-latent-attention")
            .with("--q-lora-rank", "12")
            .with("--kv-lora-rank", "10")
            .with("--qk-head-dim", "12")
            .with("--qk-pos-emb-head-dim", "4")
            .with("--v-head-dim", "8")
            .with("--qk-layernorm")
            .with("--mtp-num-layers", "1")
            .with("--eval-iters", "0")
            .with("--train-iters", "6")
            .with("--save", saved.string())
            .with("--save-interval", "20"));
  expect_as_one_rank(saved, {{.tp = 2}, {.pp = 2}});
}

TEST_F(ParallelInferenceTest, DraftsLeaveTextsAsTheyAre) {
  const Flags saving = golden_flags().with("--eval-iters", "0").with("--save-interval", "20");
  const std::filesystem::path saved = path("save");
  train(llama_style(saving)
            .with("--mtp-num-layers", "2")
            .with("--train-iters", "6")
            .with("--save", saved.string()));
  const Flags greedy = Flags().with("--greedy").with("--max-new-tokens", "12");
  const Flags sampled =
      Flags().with("--seed", "3").with("--top-k", "5").with("--max-new-tokens", "12");
  for (const Flags& flags : {greedy, sampled.with("--repetition-penalty", "1.2")}) {
    const std::vector<nlohmann::json> want = generated(saved, kOne, flags, kPrompts);
    const Flags drafts = flags.with("--num-speculative-tokens", "2");
    expect_same(generated(saved, kOne, drafts, kPrompts), want);  // by n-grams
    for (const InferenceLayout& layout :
         {kOne, InferenceLayout{.tp = 2}, InferenceLayout{.tp = 2, .pp = 2}}) {
      SCOPED_TRACE("tp" + std::to_string(layout.tp) + "pp" + std::to_string(layout.pp));
      expect_same(generated(saved, layout, drafts.with("--speculative-method", "mtp"), kPrompts),
                  want);
      expect_same(generated(saved, layout,
                            drafts.with("--speculative-method", "draft_model")
                                .with("--speculative-model", saved.string()),
                            kPrompts),
                  want);
    }
  }

  // The last stage has no table of positions.
  const std::filesystem::path with_table = path("save2");
  train(saving.with("--mtp-num-layers", "1")
            .with("--train-iters", "2")
            .with("--save", with_table.string()));
  const Outcome refused =
      run("launch", {"--nproc-per-node", "2", "generate", "--load", with_table.string(), "--prompt",
                     "a", "--device", "cpu", "--pipeline-model-parallel-size", "2",
                     "--num-speculative-tokens", "1", "--speculative-method", "mtp"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(errors_of(refused).size(), 1U);
  EXPECT_THAT(refused.err, testing::HasSubstr("--embed-layernorm needs "
                                              "--pipeline-model-parallel-size 1; use ngram"));
}

// DeepSeek-V3's layer of further tokens, which has experts and latent attention.
TEST_F(ParallelInferenceTest, DraftsOfDeepSeekLeaveTextsAsTheyAre) {
  const std::filesystem::path model = golden("quantized/fp8-blocks");
  const std::vector<Ids> prompts = {{5, 17, 9}, {1}, {64, 3, 3, 12, 7, 8, 21, 30, 2, 11}};
  const Flags flags = Flags().with("--greedy").with("--max-new-tokens", "12");
  const Flags drafts =
      flags.with("--num-speculative-tokens", "1").with("--speculative-method", "mtp");
  const std::vector<nlohmann::json> want = generated(model, kOne, flags, prompts);
  for (const InferenceLayout& layout : {kOne, InferenceLayout{.tp = 2}, InferenceLayout{.pp = 2}}) {
    SCOPED_TRACE("tp" + std::to_string(layout.tp) + "pp" + std::to_string(layout.pp));
    expect_same(generated(model, layout, drafts, prompts), want);
  }
}

TEST_F(ParallelInferenceTest, ManyTextsComeAndGo) {
  expect_many_texts_as_one_rank(golden("hf/llama-gqa"), {.tp = 2});
}

TEST_F(ParallelInferenceTest, MegatronsFilesToo) {
  expect_as_one_rank(golden("megatron/gpt/ckpt/iter_0000010"), {{.tp = 2, .pp = 2}});
}

TEST_F(ParallelInferenceTest, TextIsPrintedOnce) {
  const Words words = {"--load",           golden("megatron/gpt/ckpt/iter_0000010").string(),
                       "--vocab-file",     golden("megatron/data/vocab.json").string(),
                       "--merge-file",     golden("megatron/data/merges.txt").string(),
                       "--prompt",         "The river",
                       "--max-new-tokens", "5",
                       "--device",         "cpu"};
  const Outcome alone = run("generate", words);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  Words all = {"--nproc-per-node", "2", "generate"};
  all.insert(all.end(), words.begin(), words.end());
  all.insert(all.end(), {"--tensor-model-parallel-size", "2", "--sequence-parallel"});
  const Outcome outcome = run("launch", all);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, alone.out);
  EXPECT_THAT(outcome.err, HasSubstr("--sequence-parallel has no effect in this command"));
  Words staged = words;
  staged.insert(staged.end(), {"--pipeline-model-parallel-split-rank", "1"});
  EXPECT_THAT(run("generate", staged).err,
              HasSubstr("--pipeline-model-parallel-split-rank has no effect with a GPT"));
}

TEST_F(ParallelInferenceTest, RefusesLayoutsThatDoNotFit) {
  const auto refused = [](int ranks, const Words& flags, const std::string& input) {
    Words words = {"--nproc-per-node",
                   std::to_string(ranks),
                   "score",
                   "--load",
                   golden("hf/llama-gqa").string(),
                   "--device",
                   "cpu"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Outcome outcome = run("launch", words, {.input = input});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    return errors_of(outcome);
  };
  EXPECT_THAT(refused(2, {}, ""),
              ElementsAre(HasSubstr("tensor 1 x pipeline 1 are 1 ranks, and there are 2")));
  EXPECT_THAT(refused(2, {"--context-parallel-size", "2"}, ""),
              ElementsAre(HasSubstr("--context-parallel-size 2 is for training: sequences are not "
                                    "divided here; remove it")));
  EXPECT_THAT(refused(3, {"--tensor-model-parallel-size", "3"}, ""),
              testing::Contains(HasSubstr("--num-query-groups 2")));
  EXPECT_THAT(refused(2, {"--pipeline-model-parallel-size", "2"}, ""),
              ElementsAre(HasSubstr("--decoder-first-pipeline-num-layers")));
  // The id would have a row in the divided vocabulary, but has none in the model.
  EXPECT_THAT(refused(2, {"--tensor-model-parallel-size", "2"}, "{\"ids\": [1, 131]}\n"),
              ElementsAre(HasSubstr(
                  "standard input:1: token id 131 is not in the model's vocabulary of 131")));
}

}  // namespace
}  // namespace megatron::program
