#include "megatron/interchange/megatron/common_state.h"

#include <fmt/format.h>

#include "megatron/checkpoint/directory.h"
#include "megatron/core/error.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/python_args.h"

namespace megatron {

bool is_release(const std::filesystem::path& directory) {
  const auto name = directory.has_filename() ? directory : directory.parent_path();
  return name.filename() == kReleaseName;
}

int64_t iteration_in(PyValue root) {
  const PyValue* iteration = root.find("iteration");
  if (iteration == nullptr) iteration = root.find("total_iters");
  return iteration != nullptr ? iteration->integer().value_or(0) : 0;
}

void read_common_state(PyValue root, CheckpointContents& contents) {
  contents.consumed_train_samples = value_or<int64_t>(contents.args, "consumed_train_samples", 0);
  contents.consumed_valid_samples = value_or<int64_t>(contents.args, "consumed_valid_samples", 0);
  const PyValue* flops = root.find("num_floating_point_operations_so_far");
  contents.scalars["progress"] = {
      {"floating_point_operations", flops != nullptr ? flops->number().value_or(0.0) : 0.0}};
  contents.iteration = contents.is_release ? 0 : iteration_in(root);
  if (contents.is_release) return;
  if (root.find("rng_state") != nullptr || root.find("cuda_rng_state") != nullptr) {
    // States of other generators mean nothing here; the seed that they grew from does.
    contents.scalars["rng"] = {{"seed", value_or<int64_t>(contents.args, "seed", 1234)}};
  }
  const PyValue* scheduler = root.find("opt_param_scheduler");
  if (scheduler == nullptr) scheduler = root.find("lr_scheduler");
  if (scheduler == nullptr) return;
  contents.scalars["opt_param_scheduler"] = scheduler_args(*scheduler, contents.args);
}

}  // namespace megatron
