"""Changes of a GPT's training in Python."""

from collections.abc import Mapping

import numpy as np


class Task:
    """Changes a part of a GPT's training. Derive from it and override what differs.

    A function that is not overridden changes nothing and costs nothing.
    """

    #: The name of the loss in the log.
    loss_name = "lm loss"

    #: What loss() is computed from: None (the built-in loss), "token_losses" or "logits".
    loss_inputs = None

    def samples(self, split, num_samples, num_tokens):
        """The samples of a split: a sequence of rows of `num_tokens` ids (the inputs and one more,
        because labels are one step later), or an int64 array [n, num_tokens], which is read without
        the interpreter. None: the data of the settings.

        At least `num_samples` are needed; a shorter sequence is read again. Threads that read ahead
        call __getitem__. split is "train", "valid" or "test".
        """
        return None

    def adjust_batch(self, batch, split):
        """Changes batch.labels, batch.loss_mask ([b, s]) and batch.loss_divisor of a microbatch
        before it is used; batch.tokens is there to read. The built-in loss is
        sum(loss_mask * token losses) / loss_divisor; a divisor of 0 stands for the sum of the mask.
        """

    def adjust_parameter(self, name, shape, options):
        """Sets options.has_weight_decay and options.lr_mult of a parameter."""

    def loss(self, values, batch):
        """A loss of the task's own, from the Tensor `values`: the token losses [s, b] (fp32), or
        the logits [s, b, v], as loss_inputs says. `batch` has tokens, labels and loss_mask [b, s]
        and the split.

        Returns (loss, gradient, logged): a number, its gradient by the values as an array of their
        shape, and a dict of further numbers for the log; logged may be left out. The iteration
        minimizes the mean over its microbatches. Every tensor-parallel rank of the last pipeline
        stage calls it with the same values and must return the same.
        """
        raise NotImplementedError("a task with loss_inputs defines loss()")

    def _evaluate_loss(self, values, tokens, labels, loss_mask, split, wants_gradient):
        result = self.loss(values, Batch(tokens, labels, loss_mask, split))
        loss, gradient, logged = result if len(result) == 3 else (*result, {})
        if isinstance(gradient, np.ndarray):
            gradient = np.ascontiguousarray(gradient)
        elif wants_gradient and not hasattr(gradient, "__dlpack__"):
            gradient = np.ascontiguousarray(gradient, np.float32)
        return float(loss), gradient, dict(logged)


class Batch:
    """A microbatch at the head of the model. tokens is None where they are not known: on the last
    of several pipeline stages."""

    def __init__(self, tokens, labels, loss_mask, split):
        self.tokens = tokens
        self.labels = labels
        self.loss_mask = loss_mask
        self.split = split


class TorchTask(Task):
    """A loss in torch: loss() gets tensors, and autograd gives its gradient, with which the engine
    continues the backward pass. It returns the loss, a scalar tensor, or (loss, logged).

        class Focal(TorchTask):
            def loss(self, losses, batch):            # [s, b]
                weights = (1 - (-losses).exp()) ** 2 * batch.loss_mask.T
                return (weights * losses).sum() / batch.loss_mask.sum()

    The tensors share the engine's memory: no element is copied.
    """

    loss_inputs = "token_losses"

    def _evaluate_loss(self, values, tokens, labels, loss_mask, split, wants_gradient):
        import torch

        def shared(tensor):
            return None if tensor is None else torch.from_dlpack(tensor)

        leaf = shared(values).detach().requires_grad_(wants_gradient)
        with torch.set_grad_enabled(wants_gradient):
            result = self.loss(leaf, Batch(shared(tokens), shared(labels), shared(loss_mask), split))
            loss, logged = result if isinstance(result, tuple) else (result, {})
            gradient = None
            if wants_gradient:
                (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True)
                gradient = torch.zeros_like(leaf) if gradient is None else gradient.contiguous()
                if gradient.is_cuda:
                    torch.cuda.current_stream(gradient.device).synchronize()
        if not isinstance(logged, Mapping):
            raise TypeError("loss() returns a scalar tensor, or it and a dict of numbers")
        return float(loss.detach()), gradient, {name: float(value) for name, value in logged.items()}
