"""The program `megatron`, whose commands these functions run."""

import json
import os
import shutil
import subprocess
import sysconfig

from . import _core
from .settings import settings_from, words_of


def program_path():
    """The program that belongs to this package: MEGATRON_PROGRAM, or beside the interpreter, or
    beside the package in a build folder, or on the path."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.environ.get("MEGATRON_PROGRAM"),
              os.path.join(sysconfig.get_path("scripts"), "megatron"),
              os.path.join(os.path.dirname(here), "..", "bin", "megatron"),
              shutil.which("megatron")]
    for place in places:
        if place and os.access(place, os.X_OK):
            return os.path.normpath(place)
    raise _core.IoError("the program megatron was not found: install the package, or set MEGATRON_PROGRAM")


def run(command, *words, settings=None, check=True, **flags):
    """Runs `megatron COMMAND WORDS --flags` and returns its output.

    Raises ConfigError with the program's message for exit code 2, MegatronError for others, unless
    check is False.
    """
    line = [program_path(), command.replace("_", "-"), *map(str, words),
            *words_of(settings_from(settings, **flags))]
    done = subprocess.run(line, capture_output=True, text=True)
    if check and done.returncode != 0:
        message = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise (_core.ConfigError if done.returncode == 2 else _core.MegatronError)(message)
    return done.stdout


def plan(settings=None, **flags):
    """The memory and time of a run: what `megatron plan --json` prints, as a dict."""
    return json.loads(run("plan", settings=settings, json=True, **flags).splitlines()[-1])


def bench(settings=None, **flags):
    """The time of iterations of a model, as `megatron bench` prints it."""
    return run("bench", settings=settings, **flags)


def convert(load_dir, save_dir, saver="native", **flags):
    """Converts a checkpoint: saver is native, hf, megatron, core or torch_dist."""
    return run("convert-checkpoint", load_dir=os.fspath(load_dir), save_dir=os.fspath(save_dir),
               saver=saver, **flags)
