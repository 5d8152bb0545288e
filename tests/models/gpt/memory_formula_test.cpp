// Bytes that training takes, by the allocator's own count, against the formulas that people plan
// with: bytes per parameter (Rajbhandari et al. 2020, arXiv:1910.02054, sec. 3, as Megatron-LM
// counts them) and bytes per layer (Korthikanti et al. 2022, arXiv:2205.05198, table 2).
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "megatron/device/allocator.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/plan/training_plan.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/gradient_reduction.h"
#include "megatron/optim/optimizer.h"
#include "tests/parallel/layouts.h"

namespace megatron {
namespace {

// s = 64, b = 2, h = 256, a = 16: 5as/h = 20, of 54, where probabilities are kept.
constexpr int64_t kMemoryFormulaMicroBatch = 2;

TransformerConfig memory_formula_config_of(DType dtype, int64_t num_layers) {
  TransformerConfig c;
  c.num_layers = num_layers;
  c.hidden_size = 256;
  c.num_attention_heads = 16;
  c.seq_length = c.max_position_embeddings = 64;
  // With two layers 2^21 parameters but for 2048: large blocks are rounded up to 2 MiB.
  c.padded_vocab_size = 1948;
  c.params_dtype = dtype;
  return resolved(c);
}

// The CPU as the device of one rank: with a pool of its own.
Stream stream_of(const comm::Group& world) {
  return Stream{Device{DeviceType::kCpu, world.rank() + 1}};
}

int64_t memory_formula_at(const std::array<int64_t, kNumMemoryCategories>& bytes,
                          MemoryCategory category) {
  return bytes[static_cast<size_t>(category)];
}

struct State {
  const char* name;
  DType dtype;
  bool has_fp32_grads;
  // Bytes per parameter: `all` + `shared` / d, as Megatron-LM's and as ours.
  double theirs_all;
  double theirs_shared;
  double ours_all;
  double ours_shared;
  bool is_precision_aware = false;  // with moments of this type:
  DType moments = DType::kFloat32;
};
// 2 or 4 bytes of a parameter and 2 or 4 of its gradient on every rank; shared are the fp32 copy
// (of 16-bit parameters, 4; of bf16 ones, ours 2) and Adam's two moments (8). Of 16-bit gradients
// Megatron-LM makes an fp32 copy (4 more, shared), where ours are read by the update as they are.
// With --use-precision-aware-optimizer a moment of bf16 takes 2; "theirs" are then the bytes of
// TransformerEngine's FusedAdam with the same types.
constexpr State kStates[] = {
    {"fp16", DType::kFloat16, false, 4, 16, 4, 12},
    {"fp16_fp32_grads", DType::kFloat16, true, 6, 12, 6, 12},
    {"bf16", DType::kBFloat16, true, 6, 12, 6, 10},
    {"fp32", DType::kFloat32, true, 8, 8, 8, 8},
    {"bf16_moments", DType::kBFloat16, true, 6, 6, 6, 6, true, DType::kBFloat16},
    {"fp8_moments", DType::kBFloat16, true, 6, 2 + 2 * 65.0 / 64, 6, 4, true, DType::kFloat8E4M3},
    {"bf16_all", DType::kBFloat16, false, 4, 6, 4, 6, true, DType::kBFloat16}};
void PrintTo(const State& state, std::ostream* out) { *out << state.name; }

OptimizerConfig adam_of(const State& state) {
  OptimizerConfig adam;
  adam.lr = 1e-3;
  adam.params_dtype = state.dtype;
  adam.fp16 = state.dtype == DType::kFloat16;
  adam.bf16 = state.dtype == DType::kBFloat16;
  adam.use_precision_aware_optimizer = state.is_precision_aware;
  adam.exp_avg_dtype = adam.exp_avg_sq_dtype = state.moments;
  return resolved(adam);
}

// One rank of a run, and the bytes of its parameters, gradients and optimizer.
class TrainingRank {
 public:
  TrainingRank(const comm::Group& world, const TransformerConfig& config,
               const OptimizerConfig& adam, FlatParametersOptions options, int64_t instances = 1)
      : stream_(stream_of(world)),
        allocator_(emptied(allocator_of(stream_.device))),
        before_(in_use(allocator_.stats().by_category)),
        model_(config, stream_),
        flat_(initialized(model_), divided(options), data_parallel(world, instances)),
        gradients_(flat_, {}, {}),
        optimizer_(flat_, adam, [world](TensorView numbers, Stream on) {
          comm::all_reduce(numbers, comm::Reduce::kSum, world, on);
        }) {}

  void train_an_iteration() {
    allocator_.empty_cache();
    allocator_.reset_peaks();
    const int64_t length = model_.config().seq_length;
    const Tensor ids = tensor_of(std::vector<int64_t>(static_cast<size_t>(length), 3), {1, length});
    flat_.zero_grads();
    gradients_.begin(1);
    const Tensor seed = full({}, 1, DType::kFloat32, stream_);
    const Tensor mask = full(ids.shape(), 1, DType::kFloat32, {});
    const Variable hidden = model_.hidden_states({.tokens = ids}, random_);
    backward(token_loss(model_, hidden, {.labels = ids, .loss_mask = mask, .seed = seed}), seed);
    gradients_.finish();
    optimizer_.step({.lr = 1e-3, .weight_decay = 0.1});
    gradients_.gather_parameters();
  }

  double kept() const { return count(allocator_.stats().by_category); }
  double peak() const { return count(allocator_.stats().peak_by_category); }
  double num_parameters() const { return static_cast<double>(flat_.num_elements()); }

 private:
  using ByCategory = std::array<int64_t, kNumMemoryCategories>;

  // A cached block that is a little too large would be taken.
  static CachingAllocator& emptied(CachingAllocator& allocator) {
    allocator.empty_cache();
    return allocator;
  }
  static std::vector<OptimizedParameter> initialized(const GptModel& model) {
    initialize(model, 1);
    return optimized_parameters(model);
  }
  static FlatParametersOptions divided(FlatParametersOptions options) {
    options.divides_state = true;
    return options;
  }
  static int64_t in_use(const ByCategory& bytes) {
    return memory_formula_at(bytes, MemoryCategory::kParameters) +
           memory_formula_at(bytes, MemoryCategory::kGradients) +
           memory_formula_at(bytes, MemoryCategory::kOptimizer);
  }
  double count(const ByCategory& bytes) const {
    return static_cast<double>(in_use(bytes) - before_);
  }

  Stream stream_;
  CachingAllocator& allocator_;
  int64_t before_;
  GptModel model_;
  FlatParameters flat_;
  GradientReduction gradients_;
  Optimizer optimizer_;
  RandomState random_{1};
};

class StateBytesTest : public testing::TestWithParam<std::tuple<State, int>> {};

TEST_P(StateBytesTest, AreThoseOfTheFormula) {
  const auto& [state, ranks] = GetParam();
  comm::run_ranks(ranks, [&, state = state, ranks = ranks](const comm::Group& world) {
    TrainingRank rank(world, memory_formula_config_of(state.dtype, 2), adam_of(state),
                      {.accumulate_allreduce_grads_in_fp32 = state.has_fp32_grads});
    rank.train_an_iteration();
    const double took = rank.peak() / rank.num_parameters();
    const double ours = state.ours_all + state.ours_shared / ranks;
    EXPECT_NEAR(took, ours, 0.05 * ours);
    EXPECT_LE(took, 1.05 * (state.theirs_all + state.theirs_shared / ranks));
  });
}

INSTANTIATE_TEST_SUITE_P(DataParallelSizes, StateBytesTest,
                         testing::Combine(testing::ValuesIn(kStates), testing::Values(1, 2, 4)),
                         [](const auto& param) {
                           return std::string(std::get<0>(param.param).name) + "_of_" +
                                  std::to_string(std::get<1>(param.param));
                         });

// Muon keeps one number for an element of a layer's matrix, and Adam's two for all others.
TEST(MuonBytesTest, AreThoseOfTheFormulaAndOfThePlan) {
  const TransformerConfig config = memory_formula_config_of(DType::kBFloat16, 2);
  OptimizerConfig muon;
  muon.optimizer = OptimizerKind::kMuon;
  muon.bf16 = true;
  muon = resolved(muon);
  for (const int ranks : {1, 2, 4}) {
    ParallelConfig layout;
    layout.world_size = ranks;
    layout.use_distributed_optimizer = ranks > 1;
    layout.accumulate_allreduce_grads_in_fp32 = true;
    layout = resolved(layout);
    comm::run_ranks(ranks, [&](const comm::Group& world) {
      TrainingRank rank(world, config, muon,
                        {.accumulate_allreduce_grads_in_fp32 = true, .separates_matrices = true});
      rank.train_an_iteration();
      const auto h = static_cast<double>(config.hidden_size);
      const double in_matrices = 2 * 12 * h * h;  // h x 3h, h x h, h x 4h and 4h x h in each layer
      const double formula =
          2 + 4 + (4 + 8 - 4 * in_matrices / rank.num_parameters()) / ranks;  // of a parameter
      EXPECT_NEAR(rank.kept() / rank.num_parameters(), formula, 0.05 * formula);
      const DryIteration plan = dry_iteration(
          {.transformer = config, .parallel = layout, .optimizer = muon, .micro_batch_size = 1}, 0);
      const auto planned = static_cast<double>(
          memory_formula_at(plan.stats.peak_by_category, MemoryCategory::kParameters) +
          memory_formula_at(plan.stats.peak_by_category, MemoryCategory::kGradients) +
          memory_formula_at(plan.stats.peak_by_category, MemoryCategory::kOptimizer));
      EXPECT_NEAR(rank.kept(), planned, 0.05 * planned);
    });
  }
}

// ZeRO stages 2 and 3: what is divided, and the buckets that exist as a whole.
// Ranks, and instances of the optimizer that they make up.
using RanksAndInstances = std::pair<int, int>;
class DividedBytesTest : public testing::TestWithParam<std::tuple<State, RanksAndInstances, int>> {
};

TEST_P(DividedBytesTest, AreThoseOfTheFormulaAndOfThePlan) {
  const auto& [state, ranks_and_instances, stage] = GetParam();
  const auto& [ranks, instances] = ranks_and_instances;
  const int shares = ranks / instances;
  TransformerConfig small =
      memory_formula_config_of(state.dtype, 8);  // no block is rounded up to 2 MiB
  small.hidden_size = 64;
  small.ffn_hidden_size = small.kv_channels = 0;
  small.padded_vocab_size = 800;
  const TransformerConfig config = resolved(small);
  const OptimizerConfig adam = adam_of(state);
  ParallelConfig layout;
  layout.world_size = ranks;
  layout.zero_stage = stage;
  layout.num_distributed_optimizer_instances = instances;
  layout.ddp_bucket_size = 40'000;
  layout.accumulate_allreduce_grads_in_fp32 = state.has_fp32_grads;
  layout = resolved(layout);
  comm::run_ranks(ranks, [&, state = state, instances = instances,
                          stage = stage](const comm::Group& world) {
    TrainingRank rank(world, config, adam,
                      {.layout = {.bucket_size = bucket_size(layout)},
                       .accumulate_allreduce_grads_in_fp32 = state.has_fp32_grads,
                       .divides_gradients = true,
                       .divides_parameters = stage == 3},
                      instances);
    for (int iteration = 0; iteration < 2; ++iteration) rank.train_an_iteration();
    const double parameter = static_cast<double>(size_of(state.dtype));
    const double gradient = state.has_fp32_grads ? 4 : parameter;
    // Rajbhandari et al. 2020, figure 1.
    const double divided = (stage == 3 ? parameter : 0) + gradient + state.ours_shared;
    const double whole = stage == 3 ? 0 : parameter;
    const double formula = whole + divided / shares;
    EXPECT_NEAR(rank.kept() / rank.num_parameters(), formula, 0.05 * formula);
    const DryIteration plan = dry_iteration(
        {.transformer = config, .parallel = layout, .optimizer = adam, .micro_batch_size = 1}, 0);
    const auto planned = static_cast<double>(
        memory_formula_at(plan.stats.peak_by_category, MemoryCategory::kParameters) +
        memory_formula_at(plan.stats.peak_by_category, MemoryCategory::kGradients) +
        memory_formula_at(plan.stats.peak_by_category, MemoryCategory::kOptimizer));
    EXPECT_NEAR(rank.peak(), planned, 0.05 * planned);
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, DividedBytesTest,
                         testing::Combine(testing::ValuesIn(kStates),
                                          testing::Values(RanksAndInstances{2, 1},
                                                          RanksAndInstances{4, 1},
                                                          RanksAndInstances{4, 2}),
                                          testing::Values(2, 3)),
                         [](const auto& param) {
                           const RanksAndInstances& ranks = std::get<1>(param.param);
                           return std::string(std::get<0>(param.param).name) + "_of_" +
                                  std::to_string(ranks.first) + "_in_" +
                                  std::to_string(ranks.second) + "_stage" +
                                  std::to_string(std::get<2>(param.param));
                         });

enum class Recompute { kNone, kSelective, kFull, kFullDistributed, kOffloaded };

struct Kept {
  int tp;
  bool sequence_parallel;
  Recompute recompute;
  bool tp_comm_overlap = false;
};
std::string name_of(const Kept& kept) {
  constexpr const char* kNames[] = {"none", "selective", "full", "full_distributed", "offloaded"};
  return "tp" + std::to_string(kept.tp) + (kept.sequence_parallel ? "_sp_" : "_") +
         kNames[static_cast<size_t>(kept.recompute)] + (kept.tp_comm_overlap ? "_overlap" : "");
}
void PrintTo(const Kept& kept, std::ostream* out) { *out << name_of(kept); }

// What a layer keeps, in units of s b h bytes.
struct LayerBytes {
  double theirs;
  double ours;
};

LayerBytes layer_bytes(const TransformerConfig& c, const Kept& kept) {
  const double t = kept.tp;
  const double sp = kept.sequence_parallel ? t : 1;  // what only sequence parallelism divides
  const auto h = static_cast<double>(c.hidden_size);
  const auto heads = static_cast<double>(c.num_attention_heads);
  const double probabilities = 5 * heads * static_cast<double>(c.seq_length) / (h * t);
  switch (kept.recompute) {
    case Recompute::kFull:
      return {2 / sp, 2 / sp};
    case Recompute::kFullDistributed:
      return {2 / t, 2 / t};
    case Recompute::kOffloaded:
      return {0, 0};
    default:
      break;
  }
  LayerBytes bytes{};
  bytes.theirs = 10 / sp + 24 / t;
  if (kept.recompute == Recompute::kNone) bytes.theirs += probabilities;
  // Ours: the probabilities (softmax, its dropout mask and output: 5as/h) are computed again by the
  // backward pass of attention from one fp32 number a row, 4a/(ht); the two masks of hidden dropout
  // (1 each, of the 10) are functions of their place. Norms keep two fp32 numbers a row, which the
  // paper leaves out: 2 norms x 8/h.
  bytes.ours = (8 + 16 / h) / sp + (24 + 4 * heads / h) / t;
  return bytes;
}

class LayerBytesTest : public testing::TestWithParam<Kept> {};

TEST_P(LayerBytesTest, AreThoseOfTheFormula) {
  const Kept kept = GetParam();
  const auto config_with = [&](int64_t num_layers) {
    TransformerConfig c = memory_formula_config_of(DType::kBFloat16, num_layers);
    if (kept.recompute == Recompute::kSelective) {
      c.recompute_granularity = RecomputeGranularity::kSelective;
    } else if (kept.recompute == Recompute::kOffloaded) {
      c.cpu_offloading_num_layers = num_layers;
      c.min_offloaded_tensor_size = 0;
    } else if (kept.recompute != Recompute::kNone) {
      c.recompute_granularity = RecomputeGranularity::kFull;
      c.recompute_method = RecomputeMethod::kUniform;
      c.recompute_num_layers = 1;
      c.distribute_saved_activations = kept.recompute == Recompute::kFullDistributed;
    }
    return c;
  };
  comm::run_ranks(kept.tp, [&](const comm::Group& world) {
    const Stream stream = stream_of(world);
    const TensorParallel tp{.group = world,
                            .sequence_parallel = kept.sequence_parallel,
                            .overlaps_products = kept.tp_comm_overlap};
    // Held between the forward and the backward pass of so many layers.
    const auto held = [&](int64_t num_layers) {
      const TransformerConfig c = config_with(num_layers);
      const ModelChunk middle{.num_layers = num_layers, .has_embedding = false, .has_head = false};
      allocator_of(stream.device).empty_cache();
      const GptModel model(c, middle, tp, stream);
      initialize(model, 1);
      RandomState random(1);
      const int64_t rows = c.seq_length / (kept.sequence_parallel ? kept.tp : 1);
      const Variable x = Variable::leaf(
          full({rows, kMemoryFormulaMicroBatch, c.hidden_size}, 1.0f, c.params_dtype, stream));
      const auto activations = [&] {
        return memory_formula_at(allocator_of(stream.device).stats().by_category,
                                 MemoryCategory::kActivations);
      };
      const int64_t before = activations();
      const Activations y = model.forward({}, {&x, 1}, random);  // and its graph
      return static_cast<double>(activations() - before);
    };
    const TransformerConfig c = config_with(1);
    const auto unit = static_cast<double>(c.seq_length * kMemoryFormulaMicroBatch * c.hidden_size);
    // An offloaded last layer stays, with its input, which the first one does not own.
    const double took = (held(4) - held(2)) / 2 / unit;
    const LayerBytes want = layer_bytes(c, kept);
    EXPECT_NEAR(took, want.ours, 0.05 * want.ours);
    EXPECT_LE(took, 1.05 * want.theirs);
  });
}

std::vector<Kept> all_kept() {
  std::vector<Kept> all;
  for (const int tp : {1, 2, 4}) {
    for (const bool sp : {false, true}) {
      if (sp && tp == 1) continue;
      for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull,
                                        Recompute::kFullDistributed, Recompute::kOffloaded}) {
        if (recompute == Recompute::kFullDistributed && (sp || tp == 1)) continue;
        all.push_back({tp, sp, recompute});
        if (tp > 1) all.push_back({tp, sp, recompute, true});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayerBytesTest, testing::ValuesIn(all_kept()),
                         [](const auto& param) { return name_of(param.param); });

}  // namespace
}  // namespace megatron
