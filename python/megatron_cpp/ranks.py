"""Ranks as threads of this process, or as processes of a launcher."""

import atexit
import sys

from . import _core

_of_process = None


def run_ranks(count, f):
    """Calls f(world) on `count` ranks, each a thread of this process.

    The tensor-, pipeline- and data-parallel sizes in the settings divide these ranks. If a rank
    raises, the others are released and the exception is raised here. Trainers and models of a world
    are closed when its function returns.
    """
    _core.run_ranks(count, f)


def process_world():
    """The world of this process's rank, as its launcher says (`megatron launch`, `accelerate
    launch`, torchrun, mpirun, srun); one rank alone without a launcher.

    It ends with the process, which waits for the other ranks there.
    """
    global _of_process
    if _of_process is None:
        _of_process = _core.ProcessWorld()
        atexit.register(_close)
        _note_failures()
    return _of_process.world


_failure = ""


def _note_failures():
    previous = sys.excepthook

    def hook(kind, value, trace):
        global _failure
        _failure = f"{kind.__name__}: {value}"
        previous(kind, value, trace)

    sys.excepthook = hook


def _close():
    global _of_process
    world, _of_process = _of_process, None
    if world is not None:
        world.close(_failure)
