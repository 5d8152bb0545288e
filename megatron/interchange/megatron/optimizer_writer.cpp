#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/optimizer.h"
#include "megatron/interchange/megatron/rank_file.h"

namespace megatron {
namespace {

class OptimizerWriter {
 public:
  OptimizerWriter(RankFile& file, const RankShard& shard)
      : file_(file), shard_(shard), contents_(shard.contents()), pickle_(file.pickle()) {}

  void write() {
    const bool has_copies =
        shard_.weights_dtype() != DType::kFloat32 && contents_.sections.contains(kMainParamSection);
    if (!has_copies && !shard_.is_distributed()) return write_adam();
    pickle_.begin_dict();
    file_.key("optimizer"), write_adam();
    write_scaler();
    if (!shard_.is_distributed()) write_main_params();
    pickle_.end_dict();
  }

  // Optimizers in fp32 look for their numbers outside, others inside.
  void write_common() {
    pickle_.begin_dict();
    file_.key("optimizer"), pickle_.begin_dict();
    write_common_numbers();
    pickle_.end_dict();
    write_common_numbers();
    write_scaler();
    file_.key("param_state_sharding_type"), pickle_.text("fully_reshardable");
    pickle_.end_dict();
  }

 private:
  int64_t optimizer_step() const {
    const auto map = contents_.scalars.find("optimizer");
    if (map == contents_.scalars.end()) return contents_.iteration;
    const auto steps = value_or<std::vector<int64_t>>(map->second, "group_steps", {});
    return value_or(map->second, "step", steps.empty() ? contents_.iteration : steps[0]);
  }

  void write_scaler() {
    const auto scaler = contents_.scalars.find("grad_scaler");
    if (scaler == contents_.scalars.end()) return;
    file_.key("grad_scaler"), pickle_.begin_dict();
    file_.key("scale"),
        file_.constant(full({1}, static_cast<float>(shard_.scalar("grad_scaler", "scale")),
                            DType::kFloat32, Stream{}));
    for (const char* name : {"growth_tracker", "hysteresis_tracker"}) {
      file_.key(name), pickle_.integer(value_or<int64_t>(scaler->second, name, 0));
    }
    pickle_.end_dict();
  }

  void write_main_params() {
    file_.key("fp32_from_fp16_params"), pickle_.begin_list();
    for (const auto& group : shard_.groups()) {
      if (group.empty()) continue;
      pickle_.begin_list();
      for (const RankParameter* parameter : group) {
        file_.tensor(kMainParamSection, *parameter, DType::kFloat32);
      }
      pickle_.end_list();
    }
    pickle_.end_list();
  }

  void write_adam() {
    const int64_t step = optimizer_step();
    pickle_.begin_dict();
    if (!shard_.is_distributed()) file_.key("state"), write_adam_state(step);
    file_.key("param_groups"), pickle_.begin_list();
    int64_t id = 0;
    for (size_t g = 0; g < 2; ++g) {
      const size_t members = shard_.groups()[g].size();
      if (members == 0) continue;
      std::vector<int64_t> ids(shard_.is_distributed() ? 0 : members);
      std::iota(ids.begin(), ids.end(), id);
      write_param_group(g == 0, step, ids);
      id += static_cast<int64_t>(members);
    }
    pickle_.end_list();
    pickle_.end_dict();
  }

  void write_common_numbers() {
    const int64_t step = optimizer_step();
    file_.key("state"), pickle_.begin_dict();
    file_.key("common_step"),
        file_.constant(full({}, static_cast<float>(step), DType::kFloat32, Stream{}));
    pickle_.end_dict();
    file_.key("param_groups"), pickle_.begin_list();
    for (const bool is_with_decay : {true, false}) write_param_group(is_with_decay, step, {});
    pickle_.end_list();
  }

  void write_adam_state(int64_t step) {
    pickle_.begin_dict();
    int64_t id = 0;
    for (const auto& group : shard_.groups()) {
      for (const RankParameter* parameter : group) {
        pickle_.integer(id++), pickle_.begin_dict();
        // PyTorch's AdamW counts here, apex's FusedAdam in the group.
        file_.key("step"),
            file_.constant(full({}, static_cast<float>(step), DType::kFloat32, Stream{}));
        for (const char* kind : {"exp_avg", "exp_avg_sq"}) {
          file_.key(kind), file_.tensor(kind, *parameter, DType::kFloat32);
        }
        pickle_.end_dict();
      }
    }
    pickle_.end_dict();
  }

  // Without parameter ids: the state is in a separate file.
  void write_param_group(bool is_with_decay, int64_t step, const std::vector<int64_t>& ids) {
    const ArgMap& args = contents_.args;
    pickle_.begin_dict();
    file_.key("wd_mult"), pickle_.number(is_with_decay ? 1.0 : 0.0);
    file_.key("lr_mult"), pickle_.number(1.0);
    file_.key("is_expert_parallel"), pickle_.boolean(false);
    file_.key("is_decoupled_lr"), pickle_.boolean(false);
    file_.key("lr"), pickle_.number(value_or(args, "lr", 0.0));
    file_.key("bias_correction"), pickle_.boolean(true);
    file_.key("betas"), pickle_.begin_tuple();
    pickle_.number(value_or(args, "adam_beta1", 0.9));
    pickle_.number(value_or(args, "adam_beta2", 0.999));
    pickle_.end_tuple();
    file_.key("eps"), pickle_.number(value_or(args, "adam_eps", 1e-8));
    file_.key("weight_decay"),
        pickle_.number(is_with_decay ? value_or(args, "weight_decay", 0.0) : 0.0);
    file_.key("step"), pickle_.integer(step);
    if (!ids.empty()) {
      file_.key("params"), pickle_.begin_list();
      for (const int64_t id : ids) pickle_.integer(id);
      pickle_.end_list();
    }
    pickle_.end_dict();
  }

  RankFile& file_;
  const RankShard& shard_;
  const CheckpointContents& contents_;
  PickleWriter& pickle_;
};

}  // namespace

void write_optimizer(RankFile& file, const RankShard& shard) {
  OptimizerWriter(file, shard).write();
}

void write_common_optimizer(RankFile& file, const RankShard& shard) {
  OptimizerWriter(file, shard).write_common();
}

}  // namespace megatron
