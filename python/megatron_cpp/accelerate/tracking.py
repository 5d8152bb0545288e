"""Trackers: where the numbers of log() go."""

import json
import os
import time
import warnings

from .._core import ConfigError

_OTHERS = ("comet_ml", "aim", "mlflow", "clearml", "dvclive", "swanlab", "trackio")
_NEED_DIRECTORY = ("tensorboard", "jsonl")


class JsonLines:
    """<logging_dir>/<project>/metrics.jsonl, a line for each call."""

    name = "jsonl"

    def __init__(self, project, directory, **_):
        folder = os.path.join(directory, project)
        os.makedirs(folder, exist_ok=True)
        self._file = open(os.path.join(folder, "metrics.jsonl"), "a", encoding="utf-8")

    @property
    def tracker(self):
        return self._file

    def store_init_configuration(self, values):
        self._write({"config": values})

    def log(self, values, step=None, **_):
        self._write({"time": time.time(), "step": step, **values})

    def _write(self, record):
        self._file.write(json.dumps(record, default=_plain) + "\n")
        self._file.flush()

    def finish(self):
        self._file.close()


class TensorBoard:
    name = "tensorboard"

    def __init__(self, project, directory, **options):
        from torch.utils.tensorboard import SummaryWriter

        self.tracker = SummaryWriter(os.path.join(directory, project), **options)

    def store_init_configuration(self, values):
        plain = {name: value for name, value in values.items() if isinstance(value, (int, float, str, bool))}
        self.tracker.add_hparams(plain, metric_dict={})
        self.tracker.flush()

    def log(self, values, step=None, **options):
        for name, value in values.items():
            if isinstance(value, str):
                self.tracker.add_text(name, value, global_step=step, **options)
            elif isinstance(value, dict):
                self.tracker.add_scalars(name, value, global_step=step, **options)
            else:
                self.tracker.add_scalar(name, _plain(value), global_step=step, **options)
        self.tracker.flush()

    def finish(self):
        self.tracker.close()


class WandB:
    name = "wandb"

    def __init__(self, project, directory, **options):
        import wandb

        self.tracker = wandb.init(project=project, **options)

    def store_init_configuration(self, values):
        self.tracker.config.update(values, allow_val_change=True)

    def log(self, values, step=None, **options):
        self.tracker.log(values, step=step, **options)

    def finish(self):
        self.tracker.finish()


_KINDS = {"jsonl": JsonLines, "tensorboard": TensorBoard, "wandb": WandB}


def names_of(log_with, directory):
    """The names and objects of `log_with`. Raises ConfigError for an unknown name, or one that needs
    a directory that is not given."""
    if log_with is None:
        return []
    wanted = list(log_with) if isinstance(log_with, (list, tuple)) else [log_with]
    if any(str(getattr(one, "value", one)) == "all" for one in wanted):
        wanted = [name for name in _KINDS if directory is not None or name not in _NEED_DIRECTORY]
    found = []
    for one in wanted:
        if hasattr(one, "log") and hasattr(one, "store_init_configuration"):
            found.append(one)
            continue
        name = str(getattr(one, "value", one)).lower()
        if name in _OTHERS:
            raise ConfigError(f"log_with {name} is not available; use tensorboard, wandb, jsonl or an object of your own")
        if name not in _KINDS:
            raise ConfigError(f"log_with {name} is not known; use tensorboard, wandb or jsonl")
        if name in _NEED_DIRECTORY and directory is None:
            raise ConfigError(f"log_with {name} needs a directory; give project_dir")
        found.append(name)
    return found


def opened(names, project, directory, init_kwargs):
    trackers = []
    for one in names:
        if not isinstance(one, str):
            trackers.append(one)
            continue
        try:
            trackers.append(_KINDS[one](project, directory, **init_kwargs.get(one, {})))
        except ImportError as error:
            warnings.warn(f"log_with {one} is left out: {error}")
    return trackers


def _plain(value):
    return value.item() if hasattr(value, "item") else value
