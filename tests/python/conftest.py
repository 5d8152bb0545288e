"""Fixtures of the package's tests. They run on the module that MG_PYTHON builds:
PYTHONPATH=build/cpu/python python -m pytest tests/python."""

import os
import random

import numpy as np
import pytest

import megatron_cpp as mg

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# A GPT that trains in milliseconds.
TINY = dict(num_layers=2, hidden_size=32, num_attention_heads=4, seq_length=16,
            max_position_embeddings=32, micro_batch_size=2, global_batch_size=4, train_iters=4, lr=1e-2,
            eval_iters=0, mock_data=True, num_workers=0, tokenizer_type="NullTokenizer", vocab_size=60,
            device="cpu")


@pytest.fixture
def tiny():
    return dict(TINY)


@pytest.fixture
def quiet(capfd):
    """Drops the lines of the engine."""
    yield
    capfd.readouterr()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A trained tiny GPT: the directory of its checkpoint."""
    folder = str(tmp_path_factory.mktemp("checkpoint"))
    with mg.Trainer(TINY, save=folder, save_interval=100) as trainer:
        trainer.train()
    return folder


@pytest.fixture
def generator():
    return np.random.default_rng(7)


@pytest.fixture
def choices():
    return random.Random(7)


def losses_of(settings, **options):
    with mg.Trainer(settings, **options) as trainer:
        return [step.loss for step in trainer]


def losses_on_ranks(count, settings, **options):
    """The losses on the last rank."""
    found = []

    def rank(world):
        losses = losses_of(settings, world=world, **options)
        if world.rank == world.size - 1:
            found.append(losses)

    mg.run_ranks(count, rank)
    return found[0]
