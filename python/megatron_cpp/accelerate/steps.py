"""What a training step reads and minimizes, in the form of Accelerate's classes."""

import inspect
from functools import partial
from types import SimpleNamespace

from .._core import Unsupported
from ..task import TorchTask


class AbstractTrainStep:
    """A batch, a forward pass and a loss: get_batch_func(), get_forward_step_func(),
    get_loss_func(). Made as cls(megatron_args, **custom_train_step_kwargs)."""

    def __init__(self, name, *arguments):
        self.name = name
        self.args = arguments[-1] if arguments else SimpleNamespace()

    def get_batch_func(self, accelerator=None, megatron_dataset_flag=False):
        raise NotImplementedError

    def get_forward_step_func(self):
        raise NotImplementedError

    def get_loss_func(self, accelerator=None):
        raise NotImplementedError


class GPTTrainStep(AbstractTrainStep):
    """The next token of texts. A derived class may change get_loss_func() and
    get_forward_step_func(): the model that it calls returns the losses of the tokens, [b, s]."""

    def __init__(self, *arguments):
        super().__init__("GPTTrainStep", *arguments)

    def bind(self, accelerator, megatron_dataset_flag):
        """Makes the functions, whatever arguments the class takes."""
        self.get_batch = _called(self.get_batch_func, accelerator, megatron_dataset_flag)
        self.loss_func = _called(self.get_loss_func, accelerator)
        self.forward_step = self.get_forward_step_func()
        own = type(self)
        self.has_own_loss = (own.get_loss_func is not GPTTrainStep.get_loss_func or
                             own.get_forward_step_func is not GPTTrainStep.get_forward_step_func)
        self.has_own_batch = own.get_batch_func is not GPTTrainStep.get_batch_func

    def get_batch_func(self, accelerator=None, megatron_dataset_flag=False):
        def get_batch(data_iterator):
            """tokens, labels, loss_mask, attention_mask and position_ids of the next batch."""
            batch = next(data_iterator)
            return (batch.tokens, batch.labels, batch.loss_mask, None, None)

        return get_batch

    def get_loss_func(self, accelerator=None):
        def loss_func(loss_mask, output_tensor):
            mask = loss_mask.reshape(-1).float()
            loss = (output_tensor.reshape(-1).float() * mask).sum() / mask.sum()
            return loss, {"lm loss": loss.detach()}

        return loss_func

    def get_forward_step_func(self):
        def forward_step(data_iterator, model):
            tokens, labels, loss_mask, attention_mask, position_ids = self.get_batch(data_iterator)
            output = model(tokens, position_ids, attention_mask, labels=labels)
            return output, partial(self.loss_func, loss_mask)

        return forward_step


class BertTrainStep(AbstractTrainStep):
    def __init__(self, *arguments):
        super().__init__("BertTrainStep", *arguments)
        _refuse("BertTrainStep", "pretrain-bert, or finetune for labels")


class T5TrainStep(AbstractTrainStep):
    def __init__(self, *arguments):
        super().__init__("T5TrainStep", *arguments)
        _refuse("T5TrainStep", "pretrain-t5, or finetune for pairs of texts")


def _refuse(name, command):
    raise Unsupported(f"{name}: batches of the script are for a GPT; train such a model with megatron {command}, "
                      'or with megatron_cpp.Trainer(model="bert" or "t5")')


def _called(function, *arguments):
    """function(*arguments), or with the last ones only: older classes lack the accelerator."""
    count = len([p for p in inspect.signature(function).parameters.values()
                 if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)])
    return function(*arguments[max(len(arguments) - count, 0):]) if count else function()


class StepTask(TorchTask):
    """The loss of a train step as the engine's: autograd differentiates it by the token losses."""

    def __init__(self, plugin):
        self.plugin = plugin
        self.step = None  # the trainer comes first
        self.logits = None  # of the last batches, for return_logits
        self.loss_inputs = "logits" if plugin.return_logits else "token_losses"

    def loss(self, values, batch):
        import torch

        losses = values
        if self.loss_inputs == "logits":
            self.logits.append(values.detach().transpose(0, 1).float())
            s, b, v = values.shape
            losses = torch.nn.functional.cross_entropy(
                values.float().reshape(s * b, v), batch.labels.T.reshape(-1).clamp(min=0),
                reduction="none").reshape(s, b)
        tokens_first = losses.transpose(0, 1)

        def model(*_, **__):
            return tokens_first

        if self.plugin.custom_loss_function is not None:
            loss, logged = self.plugin.custom_loss_function(batch.loss_mask, tokens_first)
        else:
            reading = self.step.get_batch
            self.step.get_batch = lambda _: (batch.tokens, batch.labels, batch.loss_mask, None, None)
            try:
                output, loss_func = self.step.forward_step(iter([batch]), model)
            finally:
                self.step.get_batch = reading
            loss, logged = loss_func(output)
        named = {name: float(value) for name, value in logged.items() if name != self.loss_name}
        return loss, named

    def adjust_parameter(self, name, shape, options):
        parameter = SimpleNamespace(shape=shape)
        if self.plugin.no_wd_decay_cond is not None:
            options.has_weight_decay = not self.plugin.no_wd_decay_cond(name, parameter)
        if self.plugin.scale_lr_cond is not None and self.plugin.scale_lr_cond(name, parameter):
            options.lr_mult = self.plugin.lr_mult
