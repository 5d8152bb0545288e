"""The trainer of the accelerator that the process has prepared."""

import weakref

_trainer = None
_in_step = False


def set_trainer(trainer):
    global _trainer
    _trainer = weakref.ref(trainer)


def trainer():
    """None before prepare(), and in a loss function, where the engine is busy."""
    return None if _trainer is None or _in_step else _trainer()


class step:
    """While it lives, the engine runs a step."""

    def __enter__(self):
        global _in_step
        _in_step = True

    def __exit__(self, *_):
        global _in_step
        _in_step = False
