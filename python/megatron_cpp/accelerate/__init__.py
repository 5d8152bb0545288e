"""Accelerate's interface to Megatron-LM, on the engine of megatron.cpp.

A script changes its import lines and nothing else:

    from megatron_cpp.accelerate import Accelerator
    from megatron_cpp.accelerate.utils import MegatronLMDummyScheduler, MegatronLMPlugin

`accelerate launch`, `megatron launch`, torchrun, mpirun and srun start its ranks, which are
processes; alone it is one rank. docs/python.md says what differs.
"""

from .accelerator import Accelerator
from .data import skip_first_batches
from .plugin import MegatronLMPlugin
from .steps import AbstractTrainStep, BertTrainStep, GPTTrainStep, T5TrainStep
from .utils import (
    DistributedType,
    DummyOptim,
    DummyScheduler,
    MegatronLMDummyDataLoader,
    MegatronLMDummyScheduler,
    avg_losses_across_data_parallel_group,
    gather_across_data_parallel_groups,
    set_seed,
)

__all__ = [
    "AbstractTrainStep", "Accelerator", "BertTrainStep", "DistributedType", "DummyOptim",
    "DummyScheduler", "GPTTrainStep", "MegatronLMDummyDataLoader", "MegatronLMDummyScheduler",
    "MegatronLMPlugin", "T5TrainStep", "avg_losses_across_data_parallel_group",
    "gather_across_data_parallel_groups", "set_seed", "skip_first_batches",
]
