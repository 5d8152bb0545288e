// Random GPT models with experts on random layouts of up to 16 ranks train as one rank does.
// MG_ALL_LAYOUTS=1 runs 400 of them; MG_LAYOUT_SEED is the first one's seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/run/expert_training.h"

namespace megatron::expert_training {
namespace {

constexpr int kSamples = 16;  // of an iteration

// Draws the flags of a model and of a layout.
class RandomFlags {
 public:
  explicit RandomFlags(uint32_t seed) : random_(seed) {
    draw_sizes();
    draw_model();
    draw_router();
    draw_layout();
  }

  const FlagWords& model() const { return model_; }
  const LayoutFlags& layout() const { return layout_; }

 private:
  int one_of(std::initializer_list<int> numbers) {
    return *(numbers.begin() + random_() % numbers.size());
  }
  // True once in so many times.
  bool once_in(uint32_t times) { return random_() % times == 0; }
  void add(const FlagWords& words) { model_ = model_ + words; }

  void draw_sizes() {
    do {
      tp_ = one_of({1, 1, 2, 4});
      pp_ = one_of({1, 1, 2, 4});
      cp_ = one_of({1, 1, 2});
      dp_ = one_of({1, 2, 4, 8});
      ep_ = one_of({1, 2, 2, 4, 8});
      etp_ = one_of({1, 1, 2, 4});
    } while (tp_ * pp_ * cp_ * dp_ == 1 || tp_ * pp_ * cp_ * dp_ > 16 ||
             tp_ * cp_ * dp_ % (ep_ * etp_) != 0);
  }

  void draw_model() {
    micro_batch_size_ = dp_ < 8 && pp_ < 4 ? one_of({1, 2}) : 1;
    model_ = {"--num-layers",
              "4",
              "--hidden-size",
              "16",
              "--seq-length",
              "16",
              "--train-iters",
              "5",
              "--lr",
              "0.005",
              "--clip-grad",
              "0.3",
              "--weight-decay",
              "0.1",
              "--init-method-std",
              "0.2",
              "--tokenizer-type",
              "NullTokenizer",
              "--vocab-size",
              "63",
              "--mock-data",
              "--make-vocab-size-divisible-by",
              "16",
              "--num-workers",
              "0",
              "--eval-iters",
              "0",
              "--device",
              "cpu",
              "--num-threads",
              "1",
              "--num-attention-heads",
              "8",
              "--ffn-hidden-size",
              "24",
              "--max-position-embeddings",
              "16"};
    add_flag(model_, "--micro-batch-size", micro_batch_size_);
    add_flag(model_, "--global-batch-size", kSamples);
    const int dropout = one_of({0, 0, 1});
    add({"--hidden-dropout", dropout == 0 ? "0" : "0.1"});
    add({"--attention-dropout", dropout == 0 ? "0" : "0.1"});
    is_latent_ = once_in(3);
    has_further_tokens_ = once_in(4);
    // Further tokens on several stages need positions without a table.
    const bool rotates = is_latent_ || has_further_tokens_ || once_in(2);
    if (rotates) add({"--position-embedding-type", "rope"});
    if (is_latent_) {
      add({"--multi-latent-attention", "--kv-lora-rank", "6", "--qk-head-dim", "4",
           "--qk-pos-emb-head-dim", "2", "--v-head-dim", "4", "--qk-layernorm"});
      if (once_in(2)) add({"--q-lora-rank", "8"});
    } else if (once_in(2)) {
      add({"--group-query-attention", "--num-query-groups", "4"});
    }
    if (has_further_tokens_) {
      further_tokens_ = one_of({1, 2});
      add_flag(model_, "--mtp-num-layers", further_tokens_);
      repeats_layer_ = once_in(3);
      if (repeats_layer_) add({"--mtp-use-repeated-layer"});
      if (once_in(3)) add({"--mtp-detach-heads"});
    }
    if (once_in(2)) add({"--swiglu"});
    if (once_in(2)) add({"--disable-bias-linear"});
    if (once_in(2)) add({"--normalization", "RMSNorm"});
    if (once_in(2)) add({"--untie-embeddings-and-output-weights"});
    if (once_in(5)) add({"--optimizer", one_of({0, 1}) == 0 ? "sgd" : "lion"});
    // Muon makes orthogonal what a tensor-parallel rank has.
    if (tp_ == 1 && etp_ == 1 && once_in(6)) {
      add({"--optimizer", "muon", "--muon-fp32-matmul-prec", "high"});
    } else if (!is_latent_ && dropout == 0 && once_in(5)) {
      add({"--lora-rank", "2", "--lora-target-modules", "all-linear"});
    }
  }

  // Losses of a rank's own tokens or microbatches depend on the layout: docs/experts.md.
  void draw_router() {
    const bool has_whole_sequences = tp_ == 1 && cp_ == 1;
    add({"--num-experts", "8", "--moe-ffn-hidden-size", "8"});
    int topk = one_of({1, 2, 2, 3, 4});
    enum { kSoftmax, kPreSoftmax, kSigmoid, kSqrtSoftplus, kSinkhorn, kQuantile };
    int kind = one_of({kSoftmax, kPreSoftmax, kSigmoid, kSqrtSoftplus, kSinkhorn, kQuantile});
    if (kind == kSinkhorn && !has_whole_sequences) kind = kSigmoid;
    if (kind == kSoftmax && topk == 1) topk = 2;
    const bool has_scores = kind == kSigmoid || kind == kSqrtSoftplus;
    if (kind == kPreSoftmax || (kind == kQuantile && topk == 1)) add({"--moe-router-pre-softmax"});
    if (has_scores) {
      add({"--moe-router-score-function", kind == kSigmoid ? "sigmoid" : "sqrtsoftplus"});
      if (once_in(2)) {
        add({"--moe-router-enable-expert-bias", "--moe-router-bias-update-rate", "0.02"});
      }
    }
    if (kind != kSinkhorn && kind != kQuantile && topk >= 2 && once_in(2)) {
      add({"--moe-router-num-groups", "4", "--moe-router-group-topk", "2"});
    }
    add_flag(model_, "--moe-router-topk", topk);
    if (kind == kSinkhorn || kind == kQuantile) {
      add({"--moe-router-load-balancing-type",
           kind == kSinkhorn ? "sinkhorn" : "quantile_balancing"});
    } else {
      FlagWords types, coefficients;
      const auto balance = [&](const char* type, const char* coefficient) {
        types.emplace_back(type);
        coefficients.emplace_back(coefficient);
      };
      if (once_in(2)) balance("aux_loss", "0.1");
      if (once_in(2)) balance("seq_aux_loss", "0.05");
      if (dp_ == 1 && !repeats_layer_ && once_in(2)) balance("global_aux_loss", "0.02");
      if (!types.empty()) {
        add(FlagWords{"--moe-router-load-balancing-type"} + types);
        add(FlagWords{"--moe-aux-loss-coeff"} + coefficients);
      }
    }
    if (once_in(3)) add({"--moe-z-loss-coeff", "0.01"});
    if (once_in(3)) add({"--moe-router-topk-scaling-factor", "1.5"});
    if (once_in(4)) add({"--moe-input-jitter-eps", "0.1"});
    if (topk == 1 && once_in(2)) add({"--moe-apply-probs-on-input"});
    if (has_whole_sequences && kind != kSinkhorn && once_in(3)) {
      // By position: by weights, two tokens whose weights differ less than layouts round would
      // contend for the last place of an expert (seeds 26 and 112).
      add({"--moe-expert-capacity-factor", "1.25", "--moe-token-drop-policy", "position"});
    }
    if (once_in(2)) {
      add({"--moe-shared-expert-intermediate-size", "16"});
      if (once_in(2)) add({"--moe-shared-expert-gate"});
    }
    const int layers = one_of({0, 0, 1, 2});
    if (layers == 1) add({"--moe-layer-freq", "2"});
    if (layers == 2) add({"--moe-layer-freq", "[0]*1+[1]*3"});
  }

  void draw_layout() {
    layout_.ranks = tp_ * pp_ * cp_ * dp_;
    FlagWords& words = layout_.flags;
    add_flag(words, "--tensor-model-parallel-size", tp_);
    add_flag(words, "--pipeline-model-parallel-size", pp_);
    add_flag(words, "--context-parallel-size", cp_);
    add_flag(words, "--expert-model-parallel-size", ep_);
    add_flag(words, "--expert-tensor-parallel-size", etp_);
    if (tp_ > 1) words.emplace_back("--sequence-parallel");
    if (cp_ > 1) {
      words.emplace_back("--cp-comm-type");
      words.emplace_back(once_in(3) ? "all_gather" : "p2p");
    }
    const int microbatches = kSamples / micro_batch_size_ / dp_;
    const bool is_interleaved = pp_ == 2 && microbatches % pp_ == 0 && once_in(2);
    if (is_interleaved) {
      add_flag(words, "--num-layers-per-virtual-pipeline-stage", 1);
    }
    const int stage = pp_ > 1 ? one_of({0, 1}) : one_of({0, 1, 2, 3});
    if (stage > 0) add_flag(words, "--zero-stage", stage);
    const bool overlaps = once_in(2);
    if (overlaps) words.emplace_back("--overlap-grad-reduce");
    if (overlaps && stage > 0 && once_in(2)) words.emplace_back("--overlap-param-gather");
    if (once_in(2)) add_flag(words, "--ddp-bucket-size", 1000);
    const int recompute = one_of({0, 0, 1, 2, 3});
    if (recompute == 1) {
      words = words + FlagWords{"--recompute-granularity", "selective", "--recompute-modules"};
      words.emplace_back("core_attn");
      for (const char* module :
           {"layernorm", "activation", "moe_act", "mlp", "moe", "shared_experts"}) {
        if (once_in(2)) words.emplace_back(module);
      }
      if (is_latent_ && once_in(2)) words.emplace_back("mla_up_proj");
    }
    if (recompute >= 2) {
      words = words + FlagWords{"--recompute-granularity", "full", "--recompute-method",
                                recompute == 2 ? "uniform" : "block"};
      add_flag(words, "--recompute-num-layers", 1);
    }
    if (pp_ > 1 && !is_interleaved && once_in(2)) draw_stages(microbatches % pp_ == 0);
    if (pp_ > 1 && once_in(2)) {
      words.emplace_back("--enable-zero-bubble");
      if (once_in(2)) {
        add_flag(words, "--zero-bubble-max-pending-backward", pp_ + one_of({1, pp_ - 1, pp_ + 1}));
      }
    }
    if (pp_ == 1 && once_in(2)) words.emplace_back("--overlap-microbatches");
  }

  // Any layers on any stages, none on some, and some on two.
  void draw_stages(bool can_interleave) {
    const int stages = pp_ * (can_interleave ? one_of({1, 2}) : 1);
    std::vector<std::string> letters(static_cast<size_t>(stages));
    for (int layer = 0; layer < 4; ++layer) letters[random_() % letters.size()] += 't';
    std::string word = "E" + letters[0];
    for (size_t i = 1; i < letters.size(); ++i) {
      const bool divides = word.back() == 't' && once_in(3);
      if (divides) word.back() = 'a';
      word += (divides ? "|f" : "|") + letters[i];
    }
    word += "m*" + std::to_string(further_tokens_) + "L";
    layout_.flags.emplace_back("--pipeline-model-parallel-layout");
    layout_.flags.push_back(word);
  }

  std::mt19937 random_;
  int tp_ = 1, pp_ = 1, cp_ = 1, dp_ = 1, ep_ = 1, etp_ = 1;
  int micro_batch_size_ = 1;
  bool is_latent_ = false;
  bool has_further_tokens_ = false;
  int further_tokens_ = 0;
  // Recomputation then meets the tokens of a microbatch in another order, and global_aux_loss goes
  // by those that it met before.
  bool repeats_layer_ = false;
  FlagWords model_;
  LayoutFlags layout_;
};

TEST(RandomLayoutsTest, TrainAsOneRank) {
  const bool runs_all = std::getenv("MG_ALL_LAYOUTS") != nullptr;
  const char* const first = std::getenv("MG_LAYOUT_SEED");
  const uint32_t begin = first != nullptr ? static_cast<uint32_t>(std::atoi(first)) : 0;
  for (uint32_t seed = begin; seed < begin + (runs_all ? 400 : 12); ++seed) {
    const RandomFlags drawn(seed);
    const LayoutFlags one = {1, drawn.model()};
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + one.text() + "\non " +
                 drawn.layout().text());
    const std::vector<IterationResult> want = train(drawn.model(), {}, 5)[0];
    expect_equal_results(train(drawn.model(), drawn.layout(), 5), want);
  }
}

}  // namespace
}  // namespace megatron::expert_training
