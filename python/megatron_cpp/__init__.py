"""Train and run language models with the engine of megatron.cpp.

    import megatron_cpp as mg

    trainer = mg.Trainer(num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=128,
                         max_position_embeddings=128, micro_batch_size=4, train_iters=100, lr=1e-3,
                         data_path="corpus_text_document", tokenizer_type="GPT2BPETokenizer",
                         vocab_file="vocab.json", merge_file="merges.txt")
    for step in trainer:
        print(step.iteration, step.loss)

Settings have the names of the flags of the program `megatron`, which the package installs, too.
docs/python.md describes all of it.
"""

from . import _core
from ._core import (
    ClosedError,
    CommError,
    ConfigError,
    DeviceError,
    DtypeError,
    FormatError,
    InternalError,
    IoError,
    Layout,
    MegatronError,
    ParameterOptions,
    ShapeError,
    StepResult,
    Tensor,
    Unsupported,
    World,
)
from .data import DatasetWriter, IndexedDataset, Tokenizer
from .libraries import find_cuda_libraries
from .model import AsyncEngine, Engine, Generation, Model, Server
from .program import bench, convert, plan, program_path, run
from .ranks import process_world, run_ranks
from .settings import settings_from
from .task import Task, TorchTask
from .trainer import Trainer

__version__ = "0.2.0"

if _core.built_with_cuda:
    find_cuda_libraries()

__all__ = [
    "AsyncEngine", "ClosedError", "CommError", "ConfigError", "DatasetWriter", "DeviceError",
    "DtypeError", "Engine", "FormatError", "Generation", "IndexedDataset", "InternalError",
    "IoError", "Layout", "MegatronError", "Model", "ParameterOptions", "Server", "ShapeError",
    "StepResult", "Task", "Tensor", "Tokenizer", "TorchTask", "Trainer", "Unsupported", "World",
    "bench", "convert", "plan", "process_world", "program_path", "run", "run_ranks",
    "settings_from",
]
