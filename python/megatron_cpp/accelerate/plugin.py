"""The settings of a run, as Accelerate's scripts and launchers give them."""

import os
from dataclasses import dataclass
from typing import Any, Callable, Optional

from .._core import ConfigError

_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")

# Fields that have the name of a flag.
_FLAGS = ("num_layers_per_virtual_pipeline_stage", "pipeline_model_parallel_split_rank",
          "train_iters", "train_samples", "weight_decay_incr_style", "start_weight_decay",
          "end_weight_decay", "lr_decay_style", "lr_decay_iters", "lr_decay_samples",
          "lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction", "min_lr", "tensorboard_dir",
          "eval_iters", "eval_interval")

_LOGGING = ("log_params_norm", "log_num_zeros_in_grad", "log_throughput", "log_progress",
            "log_timers_to_tensorboard", "log_batch_size_to_tensorboard",
            "log_memory_to_tensorboard", "log_validation_ppl_to_tensorboard",
            "log_world_size_to_tensorboard")


def truth_of(text):
    word = str(text).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ConfigError(f"{text} is neither true nor false; use true or false")


@dataclass
class MegatronLMPlugin:
    """The fields of Accelerate's MegatronLMPlugin. A field that is None takes the variable
    MEGATRON_LM_<NAME> of the launcher, if there is one, then the default of Accelerate."""

    tp_degree: Optional[int] = None
    pp_degree: Optional[int] = None
    num_micro_batches: Optional[int] = None
    gradient_clipping: Optional[float] = None
    sequence_parallelism: Optional[bool] = None
    recompute_activations: Optional[bool] = None
    use_distributed_optimizer: Optional[bool] = None
    pipeline_model_parallel_split_rank: Optional[int] = None
    num_layers_per_virtual_pipeline_stage: Optional[int] = None
    is_train_batch_min: Any = True
    train_iters: Optional[int] = None
    train_samples: Optional[int] = None
    weight_decay_incr_style: str = "constant"
    start_weight_decay: Optional[float] = None
    end_weight_decay: Optional[float] = None
    lr_decay_style: str = "linear"
    lr_decay_iters: Optional[int] = None
    lr_decay_samples: Optional[int] = None
    lr_warmup_iters: Optional[int] = None
    lr_warmup_samples: Optional[int] = None
    lr_warmup_fraction: Optional[float] = None
    min_lr: float = 0
    consumed_samples: Optional[list] = None
    no_wd_decay_cond: Optional[Callable] = None
    scale_lr_cond: Optional[Callable] = None
    lr_mult: float = 1.0
    megatron_dataset_flag: bool = False
    seq_length: Optional[int] = None
    encoder_seq_length: Optional[int] = None
    decoder_seq_length: Optional[int] = None
    tensorboard_dir: Optional[str] = None
    set_all_logging_options: bool = False
    eval_iters: int = 100
    eval_interval: int = 1000
    return_logits: bool = False
    custom_train_step_class: Optional[Any] = None
    custom_train_step_kwargs: Optional[dict] = None
    custom_model_provider_function: Optional[Callable] = None
    custom_prepare_model_function: Optional[Callable] = None
    custom_megatron_datasets_provider_function: Optional[Callable] = None
    custom_get_batch_function: Optional[Callable] = None
    custom_loss_function: Optional[Callable] = None
    other_megatron_args: Optional[dict] = None

    def __post_init__(self):
        for name, default, read in (("tp_degree", 1, int), ("pp_degree", 1, int),
                                    ("num_micro_batches", 1, int),
                                    ("gradient_clipping", 1.0, float),
                                    ("sequence_parallelism", False, truth_of),
                                    ("recompute_activations", False, truth_of),
                                    ("use_distributed_optimizer", False, truth_of)):
            if getattr(self, name) is None:
                given = os.environ.get("MEGATRON_LM_" + name.upper())
                setattr(self, name, default if given is None else read(given))
        for name in ("custom_model_provider_function", "custom_prepare_model_function",
                     "custom_megatron_datasets_provider_function"):
            if getattr(self, name) is not None:
                raise ConfigError(f"{name} builds parts of Megatron-LM in Python, which the engine has of its own; "
                                  "describe the model by other_megatron_args, and data by a Task of megatron_cpp")

    def flags(self):
        """The fields as flags of the program."""
        flags = {name: getattr(self, name) for name in _FLAGS}
        flags.update(tensor_model_parallel_size=self.tp_degree,
                     pipeline_model_parallel_size=self.pp_degree,
                     clip_grad=self.gradient_clipping,
                     sequence_parallel=self.sequence_parallelism and self.tp_degree > 1,
                     use_distributed_optimizer=self.use_distributed_optimizer)
        if self.recompute_activations:
            flags["recompute_granularity"] = "selective"
        if self.tensorboard_dir is not None and self.set_all_logging_options:
            flags.update(dict.fromkeys(_LOGGING, True))
        return flags

    def arguments(self):
        """other_megatron_args, by the names of the engine."""
        found = dict(self.other_megatron_args or {})
        positions = {"absolute": "learned_absolute", "rotary": "rope"}
        if "position_embedding_type" in found:
            kind = found["position_embedding_type"]
            found["position_embedding_type"] = positions.get(kind, kind)
        heads = found.pop("attention_head_type", "multihead")
        if heads == "multiquery":
            found.update(group_query_attention=True, num_query_groups=1)
        elif heads != "multihead":
            raise ConfigError(f"attention_head_type {heads} must be multihead or multiquery")
        return found
