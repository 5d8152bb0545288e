"""A training run."""

import contextlib
import os

import numpy as np

from . import _core
from .settings import settings_from
from .state import StateDict


class Trainer:
    """A training run, as a whole or step by step.

        trainer = Trainer(num_layers=2, hidden_size=64, ..., train_iters=100)
        for step in trainer:            # logs, evaluates and saves as the settings say
            print(step.iteration, step.loss)

    settings: a mapping, an argparse namespace or a YAML file; further keywords replace them. The
    names are those of the flags of `megatron pretrain-gpt` (`-bert`, `-t5` for model="bert", "t5").
    model_config: a config.json of Hugging Face or its folder, for the architecture. arguments:
    settings by their names in Megatron-LM's arguments ({"add_bias_linear": False}), after the flags.
    task: a Task that changes data or loss of a GPT; a T5 takes its loss, too, and a BERT its
    adjust_parameter(). With mock_data the batches of a BERT or T5 are the caller's. world: the ranks of run_ranks() or
    process_world(). callbacks: functions (trainer, step), called after each iteration.

    Raises ConfigError with all problems of the settings.
    """

    def __init__(self, settings=None, *, model_config="", arguments=None, task=None, world=None,
                 model="gpt", callbacks=(), **flags):
        self._core = None
        self.task = task
        self.callbacks = list(callbacks)
        self._core = _core.Trainer(settings_from(settings, **flags), dict(arguments or {}),
                                   os.fspath(model_config), task, world, model)

    def __iter__(self):
        return self

    def __next__(self):
        step = self._core.next()
        if step is None:
            raise StopIteration
        for callback in self.callbacks:
            callback(self, step)
        return step

    def train(self):
        """Trains to the last iteration or to an exit condition. Returns the last StepResult."""
        last = None
        for last in self:
            pass
        return last

    def train_step(self, tokens=None, loss_mask=None, labels=None, **more):
        """Runs one iteration and waits for it: no log lines, evaluation or saving.

        tokens: int64 [rows, seq_length + 1] in place of the data of the settings, `rows` of them:
        micro_batch_size for each microbatch of this replica. loss_mask [rows, seq_length]
        multiplies the weights of the tokens in the loss; labels [rows, seq_length] replace the next
        tokens, a negative one is none. Raises ShapeError for other shapes.

        A BERT has tokens and labels [rows, seq_length], a T5 tokens [rows, seq_length] with labels
        and decoder_tokens [rows, decoder_seq_length]; `more` are these: attention_mask (0 hides a
        token) of the shape of tokens; of a BERT token_types of that shape, and sentence_order
        [rows] for the binary head. With a classification head labels are [rows] classes or [rows,
        n] zeros and ones, or, with one output, values [rows] take their place.
        """
        if tokens is None:
            return self._core.train_step()
        return self._core.train_step(_arrays(tokens=tokens, loss_mask=loss_mask, labels=labels, **more))

    def evaluate(self, split="valid"):
        """Mean losses over eval_iters global batches, a dict; empty on ranks without the last
        pipeline stage."""
        return self._core.evaluate(split)

    def evaluate_step(self, tokens=None, loss_mask=None, labels=None, *, split="valid", **more):
        """The same over one global batch: of the split, or of the caller, of which these are the
        replica's rows."""
        if tokens is None:
            return self._core.evaluate_step(split)
        return self._core.evaluate_step(_arrays(tokens=tokens, loss_mask=loss_mask, labels=labels, **more))

    def generate(self, prompts, *, max_new_tokens=64, temperature=1.0, top_k=0, top_p=0.0, seed=1234,
                 stop_tokens=()):
        """Continues lists of ids with the weights as they are: lists with the new ids behind them.
        Every rank calls it alike."""
        return self._core.generate([[int(one) for one in prompt] for prompt in prompts],
                                   max_new_tokens, temperature, top_k, top_p, seed,
                                   [int(one) for one in stop_tokens])

    def save(self, directory=None):
        """Saves a checkpoint now, in --save or in another directory."""
        self._core.save() if directory is None else self._core.save(str(directory))

    def load(self, directory):
        """Continues from another checkpoint; for runs with batches of the caller."""
        self._core.load(str(directory))

    def state_dict(self):
        """This rank's parameters by name, without copies. See StateDict."""
        return StateDict(self._core.parameters())

    def load_state_dict(self, state, strict=True):
        """Copies arrays into the parameters. Raises ShapeError before anything is changed.

        The optimizer's fp32 copies of 16-bit parameters are not changed: use it with fp32.
        """
        self.state_dict().load(state, strict)

    @property
    def iteration(self):
        """Updates of the weights so far."""
        return self._core.iteration

    @property
    def rows(self):
        """The rows of train_step(tokens)."""
        return self._core.rows

    @property
    def seq_length(self):
        return self._core.seq_length

    @property
    def layout(self):
        """Where this rank is in the layout of the run: a Layout."""
        return self._core.layout

    @property
    def settings(self):
        """All settings, resolved, by their names in Megatron-LM."""
        return self._core.settings

    def data_parallel_mean(self, values):
        """The means of numbers over the data-parallel ranks."""
        return self._core.data_parallel_mean([float(value) for value in values])

    def data_parallel_gather(self, values):
        """The numbers of all data-parallel ranks, in rank order."""
        return self._core.data_parallel_gather([float(value) for value in values])

    def close(self):
        """Frees the model and ends the threads that read data."""
        if self._core is not None:
            self._core.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(_core.ClosedError):
            self.close()


_FLOATS = ("loss_mask", "values")
_INTEGERS = ("tokens", "labels", "token_types", "attention_mask", "decoder_tokens", "sentence_order")


def _arrays(**given):
    """The arrays of a batch in the engine's types."""
    made = {}
    for name, values in given.items():
        if name not in _FLOATS + _INTEGERS:
            raise TypeError(f"a batch has no {name}; it may have {', '.join(_INTEGERS + _FLOATS)}")
        if values is None:
            continue
        array = np.asarray(values)
        if name in _FLOATS:
            made[name] = np.ascontiguousarray(array, np.float32)
        elif array.dtype.kind in "iub":
            made[name] = np.ascontiguousarray(array, np.int64)
        else:
            raise _core.DtypeError(f"{name} are {array.dtype}: they are integers")
    return made
