"""The names of accelerate.utils that scripts for Megatron-LM use."""

import enum
import random

import numpy as np

from .._core import ConfigError
from .plugin import MegatronLMPlugin  # noqa: F401
from .steps import (  # noqa: F401
    AbstractTrainStep,
    BertTrainStep,
    GPTTrainStep,
    T5TrainStep,
)
from . import current


class DistributedType(str, enum.Enum):
    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    MEGATRON_LM = "MEGATRON_LM"


class MegatronLMDummyScheduler:
    """The length of a schedule, which the engine computes: total_num_steps, warmup_num_steps."""

    def __init__(self, optimizer, total_num_steps=None, warmup_num_steps=0, **kwargs):
        self.optimizer = optimizer
        self.total_num_steps = total_num_steps
        self.warmup_num_steps = warmup_num_steps
        self.kwargs = kwargs


DummyScheduler = MegatronLMDummyScheduler


class DummyOptim:
    """An optimizer by its settings."""

    def __init__(self, params, lr=0.001, weight_decay=0, **kwargs):
        self.defaults = {"lr": lr, "weight_decay": weight_decay, **kwargs}
        self.param_groups = [{"lr": lr, "weight_decay": weight_decay}]


class MegatronLMDummyDataLoader:
    """Data in Megatron-LM's indexed files, by the names of its arguments: data_path, seq_length,
    micro_batch_size, split (or splits_string)."""

    def __init__(self, **dataset_kwargs):
        self.dataset_args = dict(dataset_kwargs)
        if "splits_string" in self.dataset_args:
            self.dataset_args.setdefault("split", self.dataset_args.pop("splits_string"))
        if "micro_batch_size" not in self.dataset_args:
            raise ConfigError("MegatronLMDummyDataLoader: micro_batch_size is missing")


def avg_losses_across_data_parallel_group(losses):
    """The mean of each loss over the data-parallel ranks, a tensor [number of losses]. In a loss
    function the engine does so itself, and the losses come back as they are."""
    import torch

    own = torch.cat([loss.detach().float().reshape(1).cpu() for loss in losses])
    trainer = current.trainer()
    return own if trainer is None else torch.tensor(trainer.data_parallel_mean(own.tolist()))


def gather_across_data_parallel_groups(values):
    """The tensors of all data-parallel ranks, joined on the first axis; in lists, tuples and dicts,
    too."""
    import torch

    if isinstance(values, dict):
        return {name: gather_across_data_parallel_groups(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)(gather_across_data_parallel_groups(value) for value in values)
    if not isinstance(values, torch.Tensor):
        return values
    own = values.detach().cpu()
    own = own.reshape(1) if own.dim() == 0 else own
    trainer = current.trainer()
    if trainer is None:
        return own
    # Numbers travel as fp32; wide integers in pieces that it holds exactly.
    if own.dtype.is_floating_point:
        parts = [own.float()]
    else:
        wide = own.to(torch.int64)
        parts = [((wide >> shift) & 0xFFFFF).float() for shift in (0, 20, 40)] + [(wide < 0).float()]
    gathered = [torch.tensor(trainer.data_parallel_gather(part.reshape(-1).tolist())) for part in parts]
    if own.dtype.is_floating_point:
        whole = gathered[0]
    else:
        low, middle, high, negative = (part.to(torch.int64) for part in gathered)
        whole = low + (middle << 20) + (high << 40) - (negative << 60)
    return whole.reshape(-1, *own.shape[1:]).to(own.dtype)


def set_seed(seed, device_specific=False, deterministic=False):
    """Seeds Python, numpy and torch; prepare() passes it on to the engine."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        import torch
    except ImportError:
        return
    torch.manual_seed(seed)
