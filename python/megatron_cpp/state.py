"""Parameters by name."""

import numpy as np

from . import _core


class StateDict(dict):
    """Tensors by name, which share the engine's memory: a change of an element changes the model.

    numpy() and torch() give the same dict with arrays of these packages.
    """

    def numpy(self):
        return {name: tensor.numpy() for name, tensor in self.items()}

    def torch(self):
        return {name: tensor.torch() for name, tensor in self.items()}

    def load(self, state, strict=True):
        """Copies the arrays of `state` into the tensors, converting dtypes.

        Raises ShapeError for a name that is missing or unknown (unless not strict) and for another
        shape, before anything is changed.
        """
        problems = []
        if strict:
            problems += [f"{name} is missing" for name in self if name not in state]
            problems += [f"{name} is not a parameter" for name in state if name not in self]
        common = [name for name in self if name in state]
        for name in common:
            shape = getattr(state[name], "shape", None)
            if shape is None or tuple(shape) != self[name].shape:
                problems.append(f"{name} has shape {shape}, and the model {self[name].shape}")
        if problems:
            raise _core.ShapeError("\n".join(problems))
        for name in common:
            _copy(self[name], state[name])


def _copy(into, values):
    if into.dtype == "bfloat16" or into.device != "cpu" or type(values).__module__.startswith("torch"):
        import torch

        target = into.torch()
        if hasattr(values, "__dlpack__") and not isinstance(values, torch.Tensor):
            values = torch.from_dlpack(values)
        with torch.no_grad():
            target.copy_(torch.as_tensor(values))
    else:
        np.copyto(into.numpy(), np.asarray(values), casting="same_kind")
