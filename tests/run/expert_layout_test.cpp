// Experts in miniature: a layer whose parameters are divided along the axes of experts. It trains
// on every layout of ranks as on one, and checkpoints go from one layout to another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/run/run_checkpoint.h"
#include "megatron/training/replica_check.h"
#include "megatron/training/training_state.h"
#include "tests/parallel/shards.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 6;
constexpr int64_t kInner = 4;  // of an expert
constexpr int64_t kExperts = 4;
constexpr int64_t kTokens = 8;     // of a sequence
constexpr int64_t kSequences = 8;  // of an iteration, one for each microbatch

// A matrix of experts, [experts, rows, columns], for reading and adding.
struct Matrices {
  std::span<float> elements;
  int64_t rows;
  int64_t columns;

  float& at(int64_t expert, int64_t row, int64_t column) const {
    return elements[static_cast<size_t>((expert * rows + row) * columns + column)];
  }
};
Matrices matrices_of(Tensor x) { return {x.span<float>(), x.size(-2), x.size(-1)}; }

// y = W2 (gate x * up x) + bias of the token's expert if this rank has it, else 0.
//   x [n, h]   ids [n]   w1 [experts, 2 f, h]: gate, up   w2 [experts, h, f]   bias [experts, h]
Variable expert_products(const Variable& x, const std::vector<int64_t>& ids, const Variable& w1,
                         const Variable& w2, const Variable& bias, int64_t first_expert,
                         bool adds_bias) {
  struct Token {
    int64_t row, expert;
    std::vector<float> gate, up;
  };
  const auto tokens_of = [=](const Tensor& input, const Tensor& weight) {
    const Matrices rows = matrices_of(input);
    const Matrices fc1 = matrices_of(weight);
    std::vector<Token> tokens;
    for (int64_t t = 0; t < rows.rows; ++t) {
      const int64_t expert = ids[static_cast<size_t>(t)] - first_expert;
      if (expert < 0 || expert >= weight.size(0)) continue;
      Token& token = tokens.emplace_back(Token{t, expert, {}, {}});
      for (int64_t i = 0; i < fc1.rows; ++i) {
        float sum = 0;
        for (int64_t k = 0; k < kHidden; ++k) sum += fc1.at(expert, i, k) * rows.at(0, t, k);
        (i < fc1.rows / 2 ? token.gate : token.up).push_back(sum);
      }
    }
    return tokens;
  };
  const Tensor y = zeros(x.data().shape(), DType::kFloat32, Stream{});
  const Matrices out = matrices_of(y);
  const Matrices down = matrices_of(w2.data());
  for (const Token& token : tokens_of(x.data(), w1.data())) {
    for (int64_t k = 0; k < kHidden; ++k) {
      float sum = adds_bias ? matrices_of(bias.data()).at(0, token.expert, k) : 0;
      for (size_t i = 0; i < token.gate.size(); ++i) {
        sum += down.at(token.expert, k, static_cast<int64_t>(i)) * token.gate[i] * token.up[i];
      }
      out.at(0, token.row, k) = sum;
    }
  }
  return record("expert_products", y, {x, w1, w2, bias},
                [tokens_of, x = x.data(), w1 = w1.data(), w2 = w2.data(), bias = bias.data()](
                    const Tensor& dy, const Wants&) -> Grads {
                  const auto like = [](const Tensor& one) {
                    return zeros(one.shape(), DType::kFloat32, Stream{});
                  };
                  const Grads grads = {like(x), like(w1), like(w2), like(bias)};
                  const Matrices dx = matrices_of(grads[0]);
                  const Matrices dw1 = matrices_of(grads[1]);
                  const Matrices dw2 = matrices_of(grads[2]);
                  const Matrices dbias = matrices_of(grads[3]);
                  const Matrices in = matrices_of(x);
                  const Matrices dout = matrices_of(dy);
                  const Matrices fc1 = matrices_of(w1);
                  const Matrices fc2 = matrices_of(w2);
                  for (const Token& token : tokens_of(x, w1)) {
                    const auto& [t, e, gate, up] = token;
                    const auto f = static_cast<int64_t>(gate.size());
                    for (int64_t k = 0; k < kHidden; ++k) dbias.at(0, e, k) += dout.at(0, t, k);
                    for (int64_t i = 0; i < f; ++i) {
                      const float g = gate[static_cast<size_t>(i)];
                      const float u = up[static_cast<size_t>(i)];
                      float d = 0;
                      for (int64_t k = 0; k < kHidden; ++k) {
                        d += fc2.at(e, k, i) * dout.at(0, t, k);
                        dw2.at(e, k, i) += dout.at(0, t, k) * g * u;
                      }
                      for (int64_t k = 0; k < kHidden; ++k) {
                        dw1.at(e, i, k) += d * u * in.at(0, t, k);
                        dw1.at(e, f + i, k) += d * g * in.at(0, t, k);
                        dx.at(0, t, k) += d * (u * fc1.at(e, i, k) + g * fc1.at(e, f + i, k));
                      }
                    }
                  }
                  return grads;
                });
}

// Experts on the ranks of the mesh: the ranks that share them gather their tokens, and each gets
// back the sums of its own.
class ExpertLayer final : public Module {
 public:
  explicit ExpertLayer(const ParallelContext& parallel)
      : experts_{.group = parallel.group(MeshAxis::kExpert), .sequence_parallel = true},
        shares_{.group = parallel.group(MeshAxis::kExpertTensor), .sequence_parallel = true} {
    const int64_t local = kExperts / experts_.size();
    const int64_t inner = kInner / shares_.size();
    const AxisSharding experts{
        .axis = 0, .index = experts_.rank(), .count = experts_.size(), .along = MeshAxis::kExpert};
    const auto share = [&](int axis, int64_t parts) {
      return AxisSharding{.axis = axis,
                          .index = shares_.rank(),
                          .count = shares_.size(),
                          .parts = parts,
                          .along = MeshAxis::kExpertTensor};
    };
    ParameterInfo info{.role = ParameterRole::kMatrix,
                       .init = Init::normal(0.5),
                       .gradient_axes = kExpertDataAxes};
    info.sharding = {experts, share(1, 2)};
    fc1_ = add_parameter("linear_fc1.weight", {local, 2 * inner, kHidden}, info, {});
    info.sharding = {experts, share(2, 1)};
    fc2_ = add_parameter("linear_fc2.weight", {local, kHidden, inner}, info, {});
    info.role = ParameterRole::kBias;
    info.sharding = {experts};
    bias_ = add_parameter("linear_fc2.bias", {local, kHidden}, info, {});
  }

  // x [s, 1, h]: this rank's tokens   first: the first one's position in its sequence
  Variable forward(const Variable& x, int64_t first) const {
    Tensor ids({x.size(0), 1, 1}, DType::kFloat32, Stream{});
    for (int64_t t = 0; t < x.size(0); ++t) {
      ids.span<float>()[static_cast<size_t>(t)] = static_cast<float>((first + t) % kExperts);
    }
    const Tensor all_ids = gathered_sequence(gathered_sequence(ids, experts_.group), shares_.group);
    std::vector<int64_t> expert_of;
    for (const float id : all_ids.span<float>()) expert_of.push_back(static_cast<int64_t>(id));
    const Variable all =
        gather_from_sequence_region(gather_from_sequence_region(x, experts_), shares_);
    const Variable sums =
        reshape(expert_products(reshape(all, {all.size(0), kHidden}), expert_of, fc1_, fc2_, bias_,
                                experts_.rank() * fc1_.size(0), shares_.rank() == 0),
                {all.size(0), 1, kHidden});
    return reduce_scatter_to_sequence_region(reduce_scatter_to_sequence_region(sums, shares_),
                                             experts_);
  }

 private:
  TensorParallel experts_;
  TensorParallel shares_;
  Variable fc1_;
  Variable fc2_;
  Variable bias_;
};

// A dense layer of two products, and experts, each beside a residual stream.
struct ExpertModel final : Module {
  explicit ExpertModel(const ParallelContext& parallel)
      : column(kHidden, 2 * kHidden, parallel.tensor, {.init = Init::normal(0.3)},
               placement(parallel)),
        row(2 * kHidden, kHidden, parallel.tensor, {.init = Init::normal(0.3)},
            placement(parallel)),
        experts(parallel) {
    add_child("column", column);
    add_child("row", row);
    add_child("experts", experts);
  }
  static Placement placement(const ParallelContext& parallel) {
    return {.stream = Stream{}, .has_partial_gradients = parallel.tensor.sequence_parallel};
  }

  Variable forward(const Variable& x, int64_t first) const {
    const Variable dense =
        bias_dropout_add(row.forward_without_bias(column.forward(x)), row.bias(), x, {});
    return add(dense, experts.forward(dense, first));
  }

  ColumnParallelLinear column;
  RowParallelLinear row;
  ExpertLayer experts;
};

struct ExpertTask final : TrainTask {
  std::string_view model_name() const override { return "experts"; }
  std::vector<const Module*> build_model(const ModelSite& site) override {
    model = std::make_unique<ExpertModel>(site.parallel);
    return {model.get()};
  }
  std::vector<ChunkBoundary> boundaries() const override { return {{}}; }
  void open_data(const Progress&) override {}
  bool has_split(Split) const override { return false; }
  Microbatch get_batch(Split, int64_t) override { return {}; }
  MicrobatchOutput forward_step(Split, int64_t, const Microbatch&,
                                std::span<const Variable>) override {
    return {};
  }
  int64_t tokens_per_sample() const override { return kTokens; }
  double flops(int64_t) const override { return 0; }

  std::unique_ptr<ExpertModel> model;
};

struct ExpertLayout {
  int ranks = 1;
  int tp = 1;
  int cp = 1;
  int ep = 1;
  int etp = 1;
  int zero_stage = 0;
  int instances = 1;
};
void PrintTo(const ExpertLayout& c, std::ostream* out) {
  *out << c.ranks << " ranks, tp " << c.tp << ", cp " << c.cp << ", ep " << c.ep << ", etp "
       << c.etp << ", ZeRO " << c.zero_stage << ", instances " << c.instances;
}

RunConfig config_of(const ExpertLayout& layout, const std::string& directory) {
  RunConfig config;
  ParallelConfig& parallel = config.parallel;
  parallel.world_size = layout.ranks;
  parallel.tensor_model_parallel_size = layout.tp;
  parallel.context_parallel_size = layout.cp;
  parallel.expert_model_parallel_size = layout.ep;
  parallel.expert_tensor_parallel_size = layout.etp;
  parallel.sequence_parallel = true;
  parallel.zero_stage = layout.zero_stage;
  parallel.num_distributed_optimizer_instances = layout.instances;
  parallel.ddp_bucket_size = 60;
  parallel = resolved(parallel);
  EXPECT_THAT(problems(parallel), testing::IsEmpty());
  config.training.train_iters = 10;
  config.training.micro_batch_size = 1;
  config.training.global_batch_size = kSequences;
  config.optimizer.lr = 0.02;
  config.optimizer.clip_grad = 0.5;
  config.optimizer = resolved(config.optimizer);
  config.checkpoint.save = config.checkpoint.load = directory;
  return config;
}

struct ExpertIteration {
  double loss = 0;
  double grad_norm = 0;
};

// A rank's part of a run.
class ExpertRun {
 public:
  ExpertRun(const ExpertLayout& layout, const comm::Group& world, const std::string& directory)
      : config_(config_of(layout, directory)), state_(config_, task_, world, Stream{}) {}

  ExpertIteration iterate() {
    const ParallelContext& parallel = state_.parallel;
    state_.parameters.zero_grads();
    const int64_t count = kSequences / parallel.data.size();
    const int64_t slice = kTokens / parallel.tensor.size();
    const int64_t first = parallel.tensor.rank() * slice;
    state_.gradients.begin(count);
    double loss = 0;
    for (int64_t m = 0; m < count; ++m) {
      const auto seed = static_cast<uint64_t>(100 * state_.progress.iteration +
                                              m * parallel.data.size() + parallel.data.rank());
      const auto own = [&](uint64_t of) {
        return copied(random_normal({kTokens, 1, kHidden}, {.seed = of}).slice(first, slice));
      };
      Tensor dy = own(seed + 1000);
      scale_inplace(dy, 1.0f / (kTokens * kSequences));
      const Variable y = task_.model->forward(Variable(own(seed)), first);
      for (int64_t i = 0; i < dy.numel(); ++i) loss += element(dy, i) * element(y.data(), i);
      backward(y, dy);
    }
    state_.gradients.finish();
    comm::all_reduce({&loss, {1}, DType::kFloat64}, comm::Reduce::kSum, parallel.world, Stream{});
    const StepResult step = state_.optimizer.step({.lr = 0.02, .weight_decay = 0.1});
    state_.gradients.gather_parameters();
    state_.progress.iteration += 1;
    return {loss, *step.grad_norm};
  }

  void save() { EXPECT_TRUE(make_run_saver(config_, state_, task_)->save()); }
  void load() {
    load_run(config_, state_, find_source(config_.checkpoint.load, 0, true));
    state_.gradients.gather_parameters();
  }
  TrainingState& state() { return state_; }

 private:
  const RunConfig config_;
  ExpertTask task_;
  TrainingState state_;
};

// What one rank does in so many iterations: the reference.
struct Reference {
  std::vector<ExpertIteration> iterations;
  std::map<std::string, Tensor> weights;
};
Reference reference_run(int iterations) {
  Reference reference;
  ExpertRun run({}, comm::Group(), "");
  for (int i = 0; i < iterations; ++i) reference.iterations.push_back(run.iterate());
  for (const Parameter& parameter : named_parameters(*run.state().chunks[0])) {
    reference.weights[parameter.name] = copied(parameter.variable.data());
  }
  return reference;
}

void expect_iteration(const ExpertIteration& got, const ExpertIteration& want) {
  EXPECT_NEAR(got.loss, want.loss, 1e-6 * std::max(1.0, std::abs(want.loss)));
  EXPECT_NEAR(got.grad_norm, want.grad_norm, 1e-5 * want.grad_norm);
}

// Every rank calls it.
void expect_weights(ExpertRun& run, const Reference& reference) {
  for (const Parameter& parameter : named_parameters(*run.state().chunks[0])) {
    const Tensor want = shard_of(reference.weights.at(parameter.name), parameter.info.sharding);
    expect_close(copied(parameter.variable.data()), want, {.relative = 1e-4, .absolute = 1e-5},
                 parameter.name);
  }
}

std::vector<ExpertLayout> expert_layouts() {
  const ExpertLayout kinds[] = {
      {.ranks = 2, .ep = 2},
      {.ranks = 4, .ep = 2},
      {.ranks = 2, .tp = 2, .etp = 2},
      {.ranks = 2, .tp = 2, .etp = 1},
      {.ranks = 2, .tp = 2, .ep = 2},
      {.ranks = 2, .etp = 2},
      {.ranks = 4, .tp = 2, .ep = 4},
      {.ranks = 4, .cp = 2, .ep = 2},
      {.ranks = 8, .tp = 2, .ep = 2, .etp = 2},
      {.ranks = 8, .tp = 2, .ep = 4},
      {.ranks = 8, .tp = 2, .cp = 2, .ep = 2, .etp = 1},
  };
  std::vector<ExpertLayout> all;
  for (ExpertLayout layout : kinds) {
    for (layout.zero_stage = 0; layout.zero_stage <= 3; ++layout.zero_stage) all.push_back(layout);
  }
  const ExpertLayout in_instances[] = {
      {.ranks = 4, .ep = 2, .instances = 2},
      {.ranks = 8, .ep = 2, .instances = 2},
      {.ranks = 8, .tp = 2, .ep = 2, .etp = 2, .instances = 2},
      {.ranks = 8, .tp = 2, .cp = 2, .ep = 2, .etp = 1, .instances = 2},
  };
  for (ExpertLayout layout : in_instances) {
    for (layout.zero_stage = 1; layout.zero_stage <= 3; ++layout.zero_stage) all.push_back(layout);
  }
  return all;
}

class ExpertLayoutTest : public testing::TestWithParam<ExpertLayout> {};

TEST_P(ExpertLayoutTest, TrainsAsOneRank) {
  const Reference want = reference_run(3);
  comm::run_ranks(GetParam().ranks, [&](const comm::Group& world) {
    ExpertRun run(GetParam(), world, "");
    for (const ExpertIteration& iteration : want.iterations) {
      expect_iteration(run.iterate(), iteration);
    }
    expect_equal_replicas(run.state());
    expect_weights(run, want);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, ExpertLayoutTest, testing::ValuesIn(expert_layouts()));

// Weights and moments go from each layout to the next one, and the last one's to one rank.
TEST(ExpertCheckpointTest, GoesFromOneLayoutToAnother) {
  const TemporaryDirectory directory;
  std::vector<ExpertLayout> layouts = {{.ranks = 1},
                                       {.ranks = 4, .tp = 2, .ep = 2},
                                       {.ranks = 4, .tp = 2, .ep = 2, .etp = 2, .zero_stage = 1},
                                       {.ranks = 4, .ep = 2, .zero_stage = 3},
                                       {.ranks = 8, .ep = 2, .zero_stage = 1, .instances = 2},
                                       {.ranks = 2, .ep = 2, .zero_stage = 2},
                                       {.ranks = 4, .ep = 2, .zero_stage = 3, .instances = 2},
                                       {.ranks = 8, .tp = 2, .ep = 2, .etp = 2, .zero_stage = 3},
                                       {.ranks = 2, .etp = 2},
                                       {.ranks = 1}};
  const Reference want = reference_run(static_cast<int>(layouts.size()));
  for (size_t i = 0; i < layouts.size(); ++i) {
    comm::run_ranks(layouts[i].ranks, [&](const comm::Group& world) {
      ExpertRun run(layouts[i], world, directory.path().string());
      if (i > 0) run.load();
      EXPECT_EQ(run.state().progress.iteration, static_cast<int64_t>(i));
      expect_iteration(run.iterate(), want.iterations[i]);
      run.save();
      if (i + 1 == layouts.size()) expect_weights(run, want);
    });
  }
}

// Copies of an expert are compared with each other, and not with other experts.
TEST(ExpertReplicaTest, ABitOfAnExpertIsReported) {
  constexpr ExpertLayout kLayout{.ranks = 4, .ep = 2};
  comm::run_ranks(kLayout.ranks, [&](const comm::Group& world) {
    ExpertRun run(kLayout, world, "");
    run.iterate();
    Tensor bias = named_parameters(*run.state().chunks[0]).back().variable.data();
    if (world.rank() == 3) bias.span<float>()[1] += 1;
    EXPECT_THAT(message_of<ReplicaError>([&] { expect_equal_replicas(run.state()); }),
                testing::ContainsRegex("experts.linear_fc2.bias: rank 1 .* and rank 3 .* differ"));
  });
}

}  // namespace
}  // namespace megatron
