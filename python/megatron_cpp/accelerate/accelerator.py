"""Accelerator: the object of Accelerate's scripts."""

import contextlib
import glob
import json
import os
import pickle
import random
import re
import shutil
import tempfile
import warnings
from types import SimpleNamespace

import numpy as np
import torch

from .. import ranks
from .._core import ConfigError
from ..trainer import Trainer
from . import current, tracking
from .data import IndexedLoader, ShardedLoader, skip_first_batches
from .plugin import MegatronLMPlugin
from .steps import STEPS, StepTask
from .utils import (
    DistributedType,
    DummyOptim,
    MegatronLMDummyDataLoader,
    MegatronLMDummyScheduler,
    gather_across_data_parallel_groups,
)


class Accelerator:
    """Prepares a model, an optimizer, a scheduler and loaders of a script for the engine. A call of
    the prepared model in training mode is a whole iteration: the passes of all microbatches, the
    reduction and the update; backward() and the optimizer's step() do nothing more.

    The arguments are those of Accelerate; megatron_lm_plugin is taken from the launcher's variables
    if it is not given.
    """

    def __init__(self, device_placement=True, split_batches=False, mixed_precision=None,
                 gradient_accumulation_steps=1, cpu=False, deepspeed_plugin=None, fsdp_plugin=None,
                 megatron_lm_plugin=None, rng_types=None, log_with=None, project_dir=None,
                 project_config=None, gradient_accumulation_plugin=None, kwargs_handlers=None,
                 dynamo_backend=None, logging_dir=None, **_):
        if deepspeed_plugin is not None or fsdp_plugin is not None:
            raise ConfigError("deepspeed_plugin and fsdp_plugin are of other engines; use megatron_lm_plugin")
        self.plugin = megatron_lm_plugin or MegatronLMPlugin()
        self.mixed_precision = str(mixed_precision or os.environ.get("ACCELERATE_MIXED_PRECISION", "no"))
        if self.mixed_precision not in ("no", "fp16", "bf16"):
            raise ConfigError(f"mixed_precision {self.mixed_precision} must be no, fp16 or bf16")
        if int(gradient_accumulation_steps) != 1:
            raise ConfigError(f"gradient_accumulation_steps {gradient_accumulation_steps} must be 1: "
                              "num_micro_batches of the plugin plays that role")
        self.gradient_accumulation_steps = 1
        self.project_configuration = project_config or SimpleNamespace(
            project_dir=project_dir, logging_dir=logging_dir or project_dir,
            automatic_checkpoint_naming=False, total_limit=None, iteration=0, save_on_each_node=False)
        self.log_with = tracking.names_of(log_with, self.logging_dir)
        self.trackers = []
        self._world = ranks.process_world()
        self._trainer = None
        self._loaders = []
        self._custom_objects = []
        self.sync_gradients = True
        self.device = torch.device("cpu")
        self.step = 0

    # Ranks

    @property
    def distributed_type(self):
        return DistributedType.MEGATRON_LM

    @property
    def num_processes(self):
        return self._world.size

    @property
    def process_index(self):
        return self._world.rank

    @property
    def local_process_index(self):
        return int(os.environ.get("LOCAL_RANK", self._world.rank))

    @property
    def is_main_process(self):
        """The last rank, which knows the losses."""
        return self._world.rank == self._world.size - 1

    is_local_main_process = is_main_process
    is_last_process = is_main_process

    @property
    def state(self):
        return SimpleNamespace(
            distributed_type=self.distributed_type, num_processes=self.num_processes,
            process_index=self.process_index, device=self.device,
            megatron_lm_plugin=self.plugin, mixed_precision=self.mixed_precision)

    @property
    def project_dir(self):
        return self.project_configuration.project_dir

    @property
    def logging_dir(self):
        return self.project_configuration.logging_dir

    @property
    def use_distributed(self):
        return self.num_processes > 1

    @property
    def optimizer_step_was_skipped(self):
        return self._engine.optimizer.step_was_skipped

    def wait_for_everyone(self):
        self._world.barrier()

    @contextlib.contextmanager
    def main_process_first(self):
        """The main process runs the block first, the others when it is done."""
        if not self.is_main_process:
            self.wait_for_everyone()
        try:
            yield
        finally:
            if self.is_main_process:
                self.wait_for_everyone()

    local_main_process_first = main_process_first

    def on_main_process(self, function=None):
        def on_main(*args, **kwargs):
            return function(*args, **kwargs) if self.is_main_process else None

        return on_main

    on_local_main_process = on_last_process = on_main_process

    def print(self, *args, **kwargs):
        if self.is_main_process:
            print(*args, **kwargs)

    # Preparation

    def prepare(self, *objects, device_placement=None):
        """The objects for training, in the same order: one model with its optimizer, a
        MegatronLMDummyScheduler, and loaders."""
        parts = _Parts(objects)
        if self._trainer is not None:
            if parts.model is None and parts.optimizer is None:
                made = [self._sharded(one) if _is_loader(one) else one for one in objects]
                return made[0] if len(made) == 1 else tuple(made)
            raise ConfigError("prepare: an accelerator has one model; make another process for another one")
        parts.check()
        if self.is_main_process:
            print("Initializing Megatron-LM", flush=True)
        self._build(parts)
        made = []
        for one in objects:
            if one is parts.model:
                made.append(self._engine)
            elif one is parts.optimizer:
                made.append(self._engine.optimizer)
            elif one is parts.scheduler:
                made.append(self._engine.scheduler)
            elif isinstance(one, MegatronLMDummyDataLoader):
                made.append(IndexedLoader(("train", "valid", "test")[min(parts.indexed_place(made), 2)]))
            elif _is_loader(one):
                made.append(self._sharded(one))
            else:
                made.append(one)
        return made[0] if len(made) == 1 else tuple(made)

    def _build(self, parts):
        plugin = self.plugin
        model_parallel = plugin.tp_degree * plugin.pp_degree
        if self.num_processes % model_parallel != 0:
            raise ConfigError(f"tp_degree {plugin.tp_degree} x pp_degree {plugin.pp_degree} must divide the "
                              f"{self.num_processes} processes")
        data = self.num_processes // model_parallel
        sizes = [one.batch_size for one in parts.loaders]
        indexed = parts.indexed[0].dataset_args if parts.indexed else {}
        if indexed:
            plugin.megatron_dataset_flag = True
            micro = indexed["micro_batch_size"]
        else:
            if not sizes or None in sizes:
                raise ConfigError("prepare: the size of a batch is not known; prepare the loaders, with their "
                                  "batch_size, together with the model")
            micro = (min if plugin.is_train_batch_min in (True, "True", "true", 1) else max)(sizes)

        settings = plugin.flags()
        arguments = plugin.arguments()
        settings.update(micro_batch_size=micro, num_workers=0 if not indexed else 2,
                        global_batch_size=data * micro * plugin.num_micro_batches,
                        seed=torch.initial_seed() % 2**31, lr=1e-3, hidden_dropout=None)
        if self.mixed_precision != "no":
            settings[self.mixed_precision] = True
        settings.update(_optimizer_flags(parts.optimizer))
        if parts.scheduler is not None and parts.scheduler.total_num_steps is not None:
            if plugin.train_samples is not None:
                warnings.warn("train_samples is ignored: the scheduler says how many steps there are")
                settings["train_samples"] = None
            settings["train_iters"] = max(int(parts.scheduler.total_num_steps) // data, 1)
            if plugin.lr_warmup_iters is None:
                settings["lr_warmup_iters"] = int(parts.scheduler.warmup_num_steps or 0) // data
                settings["lr_warmup_samples"] = None
        if settings.get("train_iters") is None and settings.get("train_samples") is None:
            raise ConfigError("prepare: the number of steps is not known; prepare a MegatronLMDummyScheduler with "
                              "total_num_steps, or give train_iters to the plugin")
        if settings.get("lr_warmup_fraction") is not None:
            settings["lr_warmup_iters"] = None

        config = parts.model.config
        kind = _kind_of(config)
        first = next(iter(parts.loaders[0])) if parts.loaders else {}
        own_length = plugin.decoder_seq_length if kind == "gpt" else plugin.encoder_seq_length
        length = own_length or plugin.seq_length or _width(first, "input_ids") or _positions(config)
        settings["seq_length"] = indexed.get("seq_length") or length
        if kind == "t5":
            settings["seq_length"] = indexed.get("encoder_seq_length") or settings["seq_length"]
            settings["decoder_seq_length"] = (indexed.get("decoder_seq_length") or plugin.decoder_seq_length or
                                              _width(first, "labels") or _positions(config))
            if plugin.pp_degree > 1 and plugin.pipeline_model_parallel_split_rank is None:
                settings["pipeline_model_parallel_split_rank"] = plugin.pp_degree // 2
        if indexed:
            for name in ("data_path", "split", "train_data_path", "valid_data_path", "test_data_path",
                         "vocab_file", "merge_file", "tokenizer_type", "tokenizer_model", "vocab_extra_ids", "mask_prob",
                         "short_seq_prob"):
                if indexed.get(name) is not None:
                    value = indexed[name]
                    settings[name] = value.split() if isinstance(value, str) and name.endswith("path") else value
        else:
            settings["mock_data"] = True  # batches are the script's
            settings["eod_mask_loss"] = kind == "gpt"
        vocabulary = int(config.vocab_size)
        unit = int(arguments.get("make_vocab_size_divisible_by", 128)) * plugin.tp_degree
        padded = -(-vocabulary // unit) * unit
        has_tokenizer = any(name in settings or name in arguments for name in ("vocab_file", "tokenizer_model"))
        if not has_tokenizer:
            # Compat: Accelerate ends a text with the last padding row if it has no vocabulary.
            settings.update(tokenizer_type="NullTokenizer", vocab_size=padded - 1)
        for name in ("vocab_file", "merge_file", "tokenizer_type", "tokenizer_model", "vocab_size"):
            if name in arguments:
                settings[name] = arguments.pop(name)
        if self.is_main_process and not has_tokenizer:
            print(f" > padded vocab (size: {vocabulary}) with {padded - vocabulary} dummy tokens "
                  f"(new size: {padded})", flush=True)

        step_class = plugin.custom_train_step_class or STEPS[kind]
        task = StepTask(plugin)
        step = step_class(_namespace(settings, arguments), **(plugin.custom_train_step_kwargs or {}))
        if not isinstance(step, STEPS[kind]):
            raise ConfigError(f"custom_train_step_class {step_class.__name__} must derive from "
                              f"{STEPS[kind].__name__}, for a {config.model_type}")
        head = _head_of(parts.model) if kind == "bert" else None
        step.bind(self, plugin.megatron_dataset_flag, *((config, head) if kind == "bert" else ()))
        step.lengths = (settings["seq_length"], settings.get("decoder_seq_length"))
        task.step = step
        has_own_loss = step.has_own_loss or plugin.custom_loss_function is not None or plugin.return_logits
        if kind == "bert" and has_own_loss:
            raise ConfigError("a loss of one's own and return_logits are for a GPT or a T5, and the model is a BERT: "
                              "remove custom_loss_function, return_logits, and the step's get_loss_func and "
                              "get_forward_step_func")
        if not has_own_loss:
            task.loss_inputs = None
        if head == "classifier":
            task.loss_name = "loss"
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(_config_dict(parts.model), file)
            if self.is_main_process:
                mode = "fine-tuning" if head == "classifier" else "pre-training"
                print(f"Building {kind} model in the {mode} mode.\n"
                      "The Megatron-LM model weights are initialized at random in `accelerator.prepare`. "
                      "Please use `accelerator.load_state` to load a pre-trained checkpoint.\n"
                      "Preparing model optimizer scheduler", flush=True)
            self._trainer = Trainer(settings, model_config=folder, arguments=arguments, task=task,
                                    world=self._world, model=kind)
        step.args.__dict__.update(self._trainer.settings)
        current.set_trainer(self._trainer)
        self._step = step
        self._task = task
        self.eod = None if indexed or kind != "gpt" else padded - 1
        if self.eod is not None and has_tokenizer:
            self.eod = parts.model.config.eos_token_id if getattr(config, "eos_token_id", None) is not None else padded - 1
        self._engine = Engine(self, config, plugin, kind)

    def _sharded(self, loader):
        if self.is_main_process:
            print("Preparing dataloader", flush=True)
        layout = self._trainer.layout
        made = ShardedLoader(loader, self._trainer.rows, layout.data_rank, layout.data_size)
        self._loaders.append(made)
        return made

    def prepare_data_loader(self, loader, **_):
        return self._sharded(loader)

    def skip_first_batches(self, loader, num_batches=0):
        return skip_first_batches(loader, num_batches)

    def unwrap_model(self, model, keep_fp32_wrapper=True):
        return model

    # Steps

    def backward(self, loss, **kwargs):
        """The call of the model was the whole iteration."""

    @contextlib.contextmanager
    def accumulate(self, *models):
        yield

    @contextlib.contextmanager
    def no_sync(self, model):
        yield

    @contextlib.contextmanager
    def autocast(self, *args, **kwargs):
        yield

    def clip_grad_norm_(self, parameters, max_norm, norm_type=2):
        """gradient_clipping of the plugin clips. Returns the norm of the last iteration."""
        step = self._engine.last
        return None if step is None or step.grad_norm is None else torch.tensor(step.grad_norm)

    def clip_grad_value_(self, parameters, clip_value):
        raise ConfigError("clip_grad_value_: the engine clips the norm; use gradient_clipping of the plugin")

    def gather(self, values):
        return gather_across_data_parallel_groups(values)

    def gather_for_metrics(self, values, use_gather_object=False):
        """gather() without the samples that complete the last batch."""
        gathered = self.gather(values)
        ending = next((one for one in self._loaders if one.end_of_dataloader), None)
        if ending is not None and ending.remainder > 0 and isinstance(gathered, torch.Tensor):
            per_round = ending.batch_size * ending.size
            if gathered.dim() > 0 and gathered.shape[0] == per_round:
                gathered = gathered[:ending.remainder]
        return gathered

    def reduce(self, tensor, reduction="sum", scale=1.0):
        gathered = self.gather(tensor.reshape(1, *tensor.shape))
        total = gathered.sum(0) if reduction == "sum" else gathered.float().mean(0)
        return total * scale

    def pad_across_processes(self, tensor, dim=0, pad_index=0, pad_first=False):
        return tensor

    @contextlib.contextmanager
    def split_between_processes(self, inputs, apply_padding=False):
        size, rank = self.num_processes, self.process_index
        count = len(inputs)
        base, extra = divmod(count, size)
        begin = rank * base + min(rank, extra)
        yield inputs[begin:begin + base + (1 if rank < extra else 0)]

    # Checkpoints

    def register_for_checkpointing(self, *objects):
        for one in objects:
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                raise ConfigError("register_for_checkpointing: an object needs state_dict and load_state_dict")
        self._custom_objects.extend(objects)

    def save_state(self, output_dir=None, **_):
        """Saves the run, the states of the random generators, and registered objects."""
        folder = self._automatic_folder() if output_dir is None else output_dir
        os.makedirs(folder, exist_ok=True)
        self._trainer.save(folder)
        states = {"random": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(),
                  "epochs": [one.epoch for one in self._loaders]}
        with open(os.path.join(folder, f"random_states_{self.process_index}.pkl"), "wb") as file:
            pickle.dump(states, file)
        if self.is_main_process:
            for index, one in enumerate(self._custom_objects):
                torch.save(one.state_dict(), os.path.join(folder, f"custom_checkpoint_{index}.pkl"))
        return folder

    def load_state(self, input_dir=None, **_):
        """Continues from the folder of save_state(). Every layout of ranks reads it."""
        folder = self._latest_folder() if input_dir is None else input_dir
        if not os.path.isdir(folder):
            raise ConfigError(f"load_state: {folder} is not a folder")
        custom = glob.glob(os.path.join(folder, "custom_checkpoint_*.pkl"))
        if len(custom) != len(self._custom_objects):
            raise ConfigError(f"load_state: {folder} has {len(custom)} registered objects, and this script "
                              f"{len(self._custom_objects)}")
        self._trainer.load(folder)
        for index, one in enumerate(self._custom_objects):
            one.load_state_dict(torch.load(os.path.join(folder, f"custom_checkpoint_{index}.pkl"),
                                           weights_only=False))
        path = os.path.join(folder, f"random_states_{self.process_index}.pkl")
        if not os.path.exists(path):
            print(f"load_state: {path} is missing: random generators go on as they are", flush=True)
            return
        with open(path, "rb") as file:
            states = pickle.load(file)
        random.setstate(states["random"])
        np.random.set_state(states["numpy"])
        torch.set_rng_state(states["torch"])

    def _automatic_folder(self):
        config = self.project_configuration
        if not getattr(config, "automatic_checkpoint_naming", False) or config.project_dir is None:
            raise ConfigError("save_state: output_dir is missing")
        root = os.path.join(config.project_dir, "checkpoints")
        folder = os.path.join(root, f"checkpoint_{config.iteration}")
        if os.path.exists(folder):
            raise ConfigError(f"save_state: {folder} exists; set iteration of the project's configuration")
        config.iteration += 1
        if self.is_main_process and config.total_limit is not None:
            for old in _numbered(root)[:max(len(_numbered(root)) + 1 - config.total_limit, 0)]:
                shutil.rmtree(old)
        return folder

    def _latest_folder(self):
        folders = _numbered(os.path.join(self.project_dir or ".", "checkpoints"))
        if not folders:
            raise ConfigError("load_state: input_dir is missing, and there is no automatic checkpoint")
        return folders[-1]

    def save(self, obj, f, **_):
        if self.is_main_process:
            torch.save(obj, f)

    def get_state_dict(self, model, unwrap=True):
        return model.state_dict()

    # Trackers

    def init_trackers(self, project_name, config=None, init_kwargs=None):
        if not self.is_main_process:
            return
        self.trackers = tracking.opened(self.log_with, project_name, self.logging_dir, init_kwargs or {})
        for one in self.trackers:
            if config is not None:
                one.store_init_configuration(config)

    def log(self, values, step=None, log_kwargs=None):
        if self.is_main_process:
            for one in self.trackers:
                one.log(values, step=step, **(log_kwargs or {}).get(one.name, {}))

    def get_tracker(self, name, unwrap=False):
        for one in self.trackers:
            if one.name == name:
                return one.tracker if unwrap else one
        raise ConfigError(f"get_tracker: {name} was not initialized")

    def end_training(self):
        if self.is_main_process:
            for one in self.trackers:
                one.finish()
        self.trackers = []

    def free_memory(self, *objects):
        if self._trainer is not None:
            self._trainer.close()
            self._trainer = None
        return [None] * len(objects)

    clear = free_memory


class Engine:
    """The prepared model: a call trains an iteration, or evaluates a batch after eval()."""

    def __init__(self, accelerator, config, plugin, kind):
        self.accelerator = accelerator
        self.kind = kind
        self.config = config
        self.training = True
        self.last = None  # the StepResult of the last iteration
        self.optimizer = Optimizer(self)
        self.scheduler = Scheduler(self)
        self._plugin = plugin
        self._trainer = accelerator._trainer
        self._split = None

    def train(self, mode=True):
        self.training = mode
        return self

    def eval(self):
        return self.train(False)

    def __call__(self, **batch):
        """The loss on the last pipeline stage, 0 elsewhere, and the logits if return_logits."""
        task = self.accelerator._task
        task.logits = []
        with current.step():
            if self.training:
                self.last = self._train(batch)
                losses = self.last.losses if self.last.loss is not None else {}
            else:
                losses = self._evaluate(batch)
        loss = torch.tensor(float(losses.get(task.loss_name, 0.0) + losses.get("sop loss", 0.0)))
        logits = torch.cat(task.logits) if task.logits else None
        return Output(loss, logits, losses)

    forward = __call__

    def _train(self, batch):
        if not batch:
            return self._trainer.train_step()
        return self._trainer.train_step(**self._arrays(batch))

    def _evaluate(self, batch):
        if not batch:
            return self._trainer.evaluate_step()
        return self._trainer.evaluate_step(**self._arrays(batch))

    def _arrays(self, batch):
        """A batch of the script for the engine: the arguments of Trainer.train_step()."""
        step = self.accelerator._step
        get_batch = self._plugin.custom_get_batch_function
        if self.kind == "gpt" and get_batch is None and not step.has_own_batch:
            if "text" in batch:
                return {"tokens": np.asarray(batch["text"])}
            ids = np.asarray(batch["input_ids"].cpu() if hasattr(batch["input_ids"], "cpu") else batch["input_ids"])
            # Compat: Accelerate appends the end of a text, so the last label is that.
            ends = np.full((ids.shape[0], 1), self.accelerator.eod, ids.dtype)
            return {"tokens": np.concatenate([ids, ends], axis=1)}
        micro = self._trainer.settings["micro_batch_size"]
        count = len(next(iter(batch.values())))
        parts = [{name: value[i:i + micro] for name, value in batch.items()} for i in range(0, count, micro)]
        return step.arrays([(get_batch or step.get_batch)(iter([part])) for part in parts])

    def megatron_generate(self, inputs, attention_mask=None, max_length=None, max_new_tokens=None,
                          num_beams=None, temperature=None, top_k=None, top_p=None, length_penalty=None,
                          **kwargs):
        """Continues ids [b, s] (right-padded, as attention_mask says): ids [b, n], padded with the
        end of text. Every rank calls it alike. See docs/python.md for what is refused."""
        return generated(self, inputs, attention_mask, max_length, max_new_tokens, num_beams, temperature,
                         top_k, top_p, length_penalty, **kwargs)

    def parameters(self):
        return iter(self._trainer.state_dict().torch().values())

    def named_parameters(self):
        return iter(self._trainer.state_dict().torch().items())

    def state_dict(self):
        return self._trainer.state_dict().torch()

    def to(self, *args, **kwargs):
        return self


class Output(dict):
    """loss and logits, as attributes and items."""

    def __init__(self, loss, logits, losses):
        super().__init__(loss=loss)
        self.loss = loss
        self.logits = logits
        self.losses = losses
        if logits is not None:
            self["logits"] = logits


class Optimizer:
    """The engine's optimizer: step() was done by the call of the model."""

    def __init__(self, engine):
        self._engine = engine
        self.defaults = {}

    @property
    def param_groups(self):
        return [{"lr": self._engine.scheduler.get_last_lr()[0]}]

    @property
    def step_was_skipped(self):
        return self._engine.last is not None and self._engine.last.is_skipped

    def step(self, closure=None):
        """Done."""

    def zero_grad(self, set_to_none=True):
        """Done."""


class Scheduler:
    """The engine's schedule of the learning rate."""

    def __init__(self, engine):
        self._engine = engine

    def step(self, *args, **kwargs):
        """Done."""

    def get_last_lr(self):
        last = self._engine.last
        return [0.0 if last is None else last.learning_rate]

    get_lr = get_last_lr


def generated(engine, inputs, attention_mask=None, max_length=None, max_new_tokens=None, num_beams=None,
              temperature=None, top_k=None, top_p=None, length_penalty=None, add_BOS=False,
              stop_token=None, random_seed=0, **unknown):
    """megatron_generate(), with Accelerate's checks."""
    trainer = engine._trainer

    def refuse(holds, text):
        if holds:
            raise ConfigError(f"megatron_generate: {text}")

    refuse(engine.kind != "gpt", f"the model is a {engine.kind}, and texts are continued by a gpt")
    refuse(unknown, f"{', '.join(unknown)} is not available; leave it out")
    refuse(trainer.layout.data_size != 1, "data parallelism must be 1")
    refuse(engine._plugin.sequence_parallelism and engine._plugin.tp_degree > 1, "sequence parallelism must be off")
    refuse(num_beams not in (None, 1), f"num_beams {num_beams}: beams need a loaded Model; use megatron generate")
    refuse(max_length is None and max_new_tokens is None, "give max_length or max_new_tokens")
    temperature = 1.0 if temperature is None else float(temperature)
    top_k = int(top_k or 0)
    top_p = float(top_p or 0.0)
    refuse(not 0 < temperature <= 100, f"temperature {temperature} must be above 0 and at most 100")
    refuse(not 0 <= top_k <= 1000, f"top_k {top_k} must be from 0 to 1000")
    refuse(not 0 <= top_p <= 1, f"top_p {top_p} must be from 0 to 1")
    refuse(top_p > 0 and top_k > 0, "top_p and top_k exclude each other")
    ids = np.asarray(inputs)
    lengths = np.asarray(attention_mask).sum(axis=1) if attention_mask is not None else np.full(len(ids), ids.shape[1])
    new = max_length - ids.shape[1] if max_new_tokens is None else max_new_tokens
    refuse(new <= 0, f"max_length {max_length} must be above the {ids.shape[1]} ids of the input")
    end = int(stop_token if stop_token is not None else engine.accelerator.eod if engine.accelerator.eod is not None
              else engine.config.eos_token_id)
    prompts = [([end] if add_BOS else []) + row[:int(n)].tolist() for row, n in zip(ids, lengths)]
    total = max(len(one) for one in prompts) + new
    refuse(total > _positions(engine.config), f"{total} ids are more than the model's positions")
    rows = []
    for prompt in prompts:  # each to its own length
        rows += trainer.generate([prompt], max_new_tokens=total - len(prompt), temperature=temperature,
                                 top_k=top_k, top_p=top_p, seed=int(random_seed), stop_tokens=[end])
    width = max(len(row) for row in rows)
    return torch.tensor([row + [end] * (width - len(row)) for row in rows])


class _Parts:
    """The objects of prepare(), by what they are."""

    def __init__(self, objects):
        models = [one for one in objects if isinstance(one, torch.nn.Module)]
        if len(models) > 1:
            raise ConfigError("prepare: an accelerator has one model")
        self.model = models[0] if models else None
        self.optimizer = next((one for one in objects if isinstance(one, (torch.optim.Optimizer, DummyOptim))), None)
        self.scheduler = next((one for one in objects if isinstance(one, MegatronLMDummyScheduler)), None)
        self.indexed = [one for one in objects if isinstance(one, MegatronLMDummyDataLoader)]
        self.loaders = [one for one in objects if _is_loader(one)]
        self.others = [one for one in objects if hasattr(one, "get_last_lr")]

    def check(self):
        if self.model is None or self.optimizer is None:
            raise ConfigError("prepare: the model and its optimizer must be prepared together")
        if not hasattr(self.model, "config"):
            raise ConfigError("prepare: the model must be one of transformers, with a config")
        if self.others:
            raise ConfigError("prepare: the engine computes the schedule; prepare a MegatronLMDummyScheduler "
                              "in place of a scheduler of torch")

    @staticmethod
    def indexed_place(made):
        return sum(isinstance(one, IndexedLoader) for one in made)


def _is_loader(one):
    return isinstance(one, torch.utils.data.DataLoader)


def _positions(config):
    """Compat: 1024 for a T5 whose positions are relative."""
    return int(getattr(config, "n_positions", None) or getattr(config, "max_position_embeddings", None) or 1024)


def _kind_of(config):
    name = config.model_type
    return "bert" if name in ("bert", "megatron-bert") else "t5" if name in ("t5", "mt5", "umt5") else "gpt"


def _head_of(model):
    """The head of a BERT, by the name of its class."""
    name = type(model).__name__
    for ending, head in (("ForPreTraining", "pretraining"), ("ForMaskedLM", "masked"),
                         ("ForSequenceClassification", "classifier")):
        if name.endswith(ending):
            return head
    raise ConfigError(f"prepare: a {name} cannot be trained; use the class of its model that ends with ForPreTraining, "
                      "ForMaskedLM or ForSequenceClassification")


def _width(batch, name):
    """The columns of an array of a batch; None without it."""
    return int(batch[name].shape[1]) if name in batch and batch[name].ndim == 2 else None


def _config_dict(model):
    found = model.config.to_dict()
    if not found.get("architectures") or _kind_of(model.config) == "bert":  # whose heads these name
        found["architectures"] = [type(model).__name__]
    return found


def _optimizer_flags(optimizer):
    """Accelerate reads the defaults of the optimizer, not its groups."""
    name = type(optimizer).__name__.lower()
    defaults = optimizer.defaults
    flags = {"lr": defaults["lr"], "weight_decay": defaults.get("weight_decay", 0.0)}
    if "adam" in name or isinstance(optimizer, DummyOptim):
        flags["optimizer"] = "adam"
        if "betas" in defaults:
            flags["adam_beta1"], flags["adam_beta2"] = defaults["betas"]
        if "eps" in defaults:
            flags["adam_eps"] = defaults["eps"]
    elif "sgd" in name:
        flags["optimizer"] = "sgd"
        flags["sgd_momentum"] = defaults.get("momentum", 0.0)
    else:
        raise ConfigError(f"prepare: optimizer {type(optimizer).__name__} is not known; use Adam, AdamW or SGD")
    return flags


def _namespace(settings, arguments):
    return SimpleNamespace(**{name.replace("-", "_"): value for name, value in {**settings, **arguments}.items()})


def _numbered(root):
    found = [(int(match.group(1)), path) for path in glob.glob(os.path.join(root, "checkpoint_*"))
             if (match := re.search(r"checkpoint_(\d+)$", path))]
    return [path for _, path in sorted(found)]
