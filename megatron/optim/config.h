#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/core/dtype.h"

namespace megatron {

enum class OptimizerKind { kAdam, kSgd, kMuon, kLion };
enum class MuonScaleMode { kSpectral, kUnitRmsNorm, kShapeScaling };
enum class MuonPrecision { kLow, kMedium, kHigh };
enum class MuonTpMode { kBlockwise, kDuplicated, kDistributed };
enum class LrDecayStyle { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd };
enum class WsdDecayStyle { kExponential, kLinear, kCosine, kMinusSqrt };
enum class WeightDecayIncrStyle { kConstant, kLinear, kCosine };

// Update rule, schedules, clipping and loss scaling. Names are Megatron's flag names.
struct OptimizerConfig {
  OptimizerKind optimizer = OptimizerKind::kAdam;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  double lion_beta1 = 0.9;
  double lion_beta2 = 0.99;
  // Muon (optim/muon.h) of the matrices of layers; all other parameters have Adam.
  double muon_momentum = 0.95;
  bool muon_split_qkv = true;  // orthogonalize queries, keys and values separately
  bool muon_use_nesterov = false;
  MuonScaleMode muon_scale_mode = MuonScaleMode::kSpectral;
  MuonPrecision muon_fp32_matmul_prec = MuonPrecision::kMedium;  // fp32 if high, else bf16
  int64_t muon_num_ns_steps = 5;
  MuonTpMode muon_tp_mode = MuonTpMode::kBlockwise;
  double muon_extra_scale_factor = 1.0;
  double clip_grad = 1.0;  // limit of the global L2 norm; 0: no clipping, no norm
  // Parameters with OptimizedParameter::is_clipped_apart exist: their norm is another.
  bool clips_apart = false;

  // Learning rate. Lengths are in iterations or samples, like the training length.
  double lr = 0.0;  // required for training; the peak
  double min_lr = 0.0;
  std::optional<double> decoupled_lr;      // peak for embedding and output layer; none: lr
  std::optional<double> decoupled_min_lr;  // floor for them; none: min_lr
  LrDecayStyle lr_decay_style = LrDecayStyle::kLinear;
  int64_t lr_decay_iters = 0;    // 0: train_iters
  int64_t lr_decay_samples = 0;  // 0: train_samples
  // --lr-decay-tokens: where lengths change, the rate falls with the tokens of the samples; no
  // flag.
  bool lr_decays_by_tokens = false;
  std::optional<double> lr_warmup_fraction;  // of the decay length, [0, 1]; replaces the next two
  int64_t lr_warmup_iters = 0;
  int64_t lr_warmup_samples = 0;
  double lr_warmup_init = 0.0;  // learning rate at step 0
  WsdDecayStyle lr_wsd_decay_style = WsdDecayStyle::kExponential;
  int64_t lr_wsd_decay_iters = 0;  // length of the final decay of kWsd
  int64_t lr_wsd_decay_samples = 0;
  bool override_opt_param_scheduler = false;        // use the command line's values
  bool use_checkpoint_opt_param_scheduler = false;  // use the checkpoint's values

  // Weight decay.
  double weight_decay = 0.01;
  std::optional<double> start_weight_decay;  // resolved: set; weight_decay if constant
  std::optional<double> end_weight_decay;    // resolved: set; weight_decay if constant
  WeightDecayIncrStyle weight_decay_incr_style = WeightDecayIncrStyle::kConstant;

  // Precision and loss scaling.
  DType params_dtype = DType::kFloat32;
  bool fp16 = false;
  bool bf16 = false;
  double loss_scale = 0.0;  // static scale; 0: dynamic for fp16, none otherwise
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1.0;
  double loss_scale_window = 1000.0;  // clean steps before the scale doubles
  int64_t hysteresis = 2;             // overflows tolerated before the scale halves

  bool optimizer_cpu_offload = false;  // the optimizer's state is in host memory

  // The types of the optimizer's tensors; without it all are fp32. Arithmetic is in fp32.
  bool use_precision_aware_optimizer = false;
  DType main_grads_dtype = DType::kFloat32;   // or bf16: gradients are summed in it
  DType main_params_dtype = DType::kFloat32;  // or bf16: the model's own, rounded at random
  int64_t rounding_seed = 1234;               // of main parameters in bf16: --seed; no flag
  DType exp_avg_dtype = DType::kFloat32;      // or bf16, fp16, fp8
  DType exp_avg_sq_dtype = DType::kFloat32;   // or bf16, fp16, fp8

  bool log_num_zeros_in_grad = false;
  bool check_for_nan_in_loss_and_grad = true;
};

// Sets params_dtype from fp16 and bf16, and the weight decay bounds of a constant schedule. Pure.
OptimizerConfig resolved(OptimizerConfig config);

// True if main parameters of this dtype's parameters are stored as the 16 bits that bf16 lacks
// (kernels/main_param.h): for bf16, unless they are in host memory, which has no parameters to add
// them to.
bool keeps_remainders(const OptimizerConfig& config, DType params_dtype);

// The type of the main parameters of this dtype's parameters.
DType main_dtype(const OptimizerConfig& config, DType params_dtype);

// Everything wrong with a resolved config, one sentence each; empty if it is valid.
std::vector<std::string> problems(const OptimizerConfig& config);

}  // namespace megatron
