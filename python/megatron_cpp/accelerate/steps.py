"""What a training step reads and minimizes, in the form of Accelerate's classes."""

import inspect
from functools import partial
from types import SimpleNamespace

import numpy as np

from .._core import ConfigError
from ..task import TorchTask


class AbstractTrainStep:
    """A batch, a forward pass and a loss: get_batch_func(), get_forward_step_func(),
    get_loss_func(). Made as cls(megatron_args, **custom_train_step_kwargs)."""

    kind = None  # of the model: "gpt", "bert" or "t5"

    def __init__(self, name, *arguments):
        self.name = name
        self.args = arguments[-1] if arguments else SimpleNamespace()

    def get_batch_func(self, accelerator=None, megatron_dataset_flag=False):
        raise NotImplementedError

    def get_forward_step_func(self):
        raise NotImplementedError

    def get_loss_func(self, accelerator=None):
        raise NotImplementedError

    def bind(self, accelerator, megatron_dataset_flag, *of_loss):
        """Makes the functions, whatever arguments the class takes."""
        self.get_batch = _called(self.get_batch_func, accelerator, megatron_dataset_flag)
        self.loss_func = _called(self.get_loss_func, accelerator, *of_loss)
        self.forward_step = self.get_forward_step_func()
        own = type(self)
        ours = next(one for one in own.__mro__ if one in (GPTTrainStep, BertTrainStep, T5TrainStep))
        self.has_own_loss = (own.get_loss_func is not ours.get_loss_func or
                             own.get_forward_step_func is not ours.get_forward_step_func)
        self.has_own_batch = own.get_batch_func is not ours.get_batch_func


class GPTTrainStep(AbstractTrainStep):
    """The next token of texts. A derived class may change get_loss_func() and
    get_forward_step_func(): the model that it calls returns the losses of the tokens, [b, s]."""

    kind = "gpt"

    def __init__(self, *arguments):
        super().__init__("GPTTrainStep", *arguments)

    def get_batch_func(self, accelerator=None, megatron_dataset_flag=False):
        def get_batch(data_iterator):
            """tokens, labels, loss_mask, attention_mask and position_ids of the next batch."""
            batch = next(data_iterator)
            return (batch.tokens, batch.labels, batch.loss_mask, None, None)

        return get_batch

    def get_loss_func(self, accelerator=None):
        return _mean_of_tokens

    def get_forward_step_func(self):
        def forward_step(data_iterator, model):
            tokens, labels, loss_mask, attention_mask, position_ids = self.get_batch(data_iterator)
            output = model(tokens, position_ids, attention_mask, labels=labels)
            return output, partial(self.loss_func, loss_mask)

        return forward_step

    @staticmethod
    def running(batch):
        """The batch of a loss, as get_batch() gives it."""
        return (batch.tokens, batch.labels, batch.loss_mask, None, None)

    @staticmethod
    def arrays(parts):
        """The arguments of Trainer.train_step() from the results of get_batch()."""
        tokens, labels, mask = (_joined(part[i] for part in parts) for i in range(3))
        return {"tokens": np.concatenate([tokens, labels[:, -1:].clip(min=0)], axis=1), "loss_mask": mask,
                "labels": labels}


class BertTrainStep(AbstractTrainStep):
    """Masked tokens, and the order of sentences if the model is one ForPreTraining; or the labels of
    texts, if it is one ForSequenceClassification. A derived class may change get_batch_func()."""

    kind = "bert"

    def __init__(self, *arguments):
        super().__init__("BertTrainStep", *arguments)

    def bind(self, accelerator, megatron_dataset_flag, config, head):
        """head: "pretraining", "masked" or "classifier"."""
        self.head = head
        self.num_labels = config.num_labels
        self.lengths = None
        super().bind(accelerator, megatron_dataset_flag, head != "classifier", config.num_labels)

    def get_batch_func(self, accelerator=None, megatron_dataset_flag=False):
        def get_batch(data_iterator):
            """tokens, types, sentence_order, loss_mask, labels and padding_mask of the next batch."""
            batch = next(data_iterator)
            labels = batch["labels"]
            return (batch["input_ids"], batch.get("token_type_ids"), batch.get("next_sentence_label"), labels != -100,
                    labels, batch.get("attention_mask"))

        return get_batch

    def get_loss_func(self, accelerator=None, pretraining_flag=True, num_labels=None):
        """The engine's own loss."""

    def get_forward_step_func(self):
        """The engine's own."""

    def arrays(self, parts):
        tokens, types, order, mask, labels, padding = (_joined(part[i] for part in parts) for i in range(6))
        length = self.lengths[0]
        made = {"tokens": _padded(tokens, length, 0), "token_types": _padded(types, length, 0),
                "attention_mask": _attention(padding, tokens, length)}
        if self.head != "classifier":
            made.update(labels=_padded(labels, length, -100), loss_mask=_padded(mask, length, 0))
        elif self.num_labels == 1:
            made["values"] = labels
        else:
            made["labels"] = labels.astype(np.int64)
        if self.head == "pretraining":
            made["sentence_order"] = order
        return made


class T5TrainStep(AbstractTrainStep):
    """A text from a text. A derived class may change all three functions: the model that it calls
    returns the losses of the decoder's tokens, [b, s]."""

    kind = "t5"

    def __init__(self, *arguments):
        super().__init__("T5TrainStep", *arguments)
        self.lengths = None

    def get_batch_func(self, accelerator=None, megatron_dataset_flag=False):
        def get_batch(data_iterator):
            """tokens_enc, tokens_dec, loss_mask, labels and three masks of the next batch."""
            batch = next(data_iterator)
            labels = batch["labels"]
            decoder = batch.get("decoder_input_ids")
            if decoder is None:
                decoder = np.zeros_like(np.asarray(labels))
                decoder[..., 1:] = labels[..., :-1]
                decoder[decoder == -100] = 0
            return (batch["input_ids"], decoder, labels != -100, labels, batch.get("attention_mask"), None, None)

        return get_batch

    def get_loss_func(self, accelerator=None):
        return _mean_of_tokens

    def get_forward_step_func(self):
        def forward_step(data_iterator, model):
            tokens_enc, tokens_dec, loss_mask, labels, enc_mask, dec_mask, enc_dec_mask = self.get_batch(data_iterator)
            output = model(tokens_enc, tokens_dec, enc_mask, dec_mask, enc_dec_mask, tokentype_ids=None,
                           lm_labels=labels)
            return output, partial(self.loss_func, loss_mask)

        return forward_step

    @staticmethod
    def running(batch):
        return (None, None, batch.loss_mask, batch.labels, None, None, None)

    def arrays(self, parts):
        tokens, decoder, mask, labels, attention = (_joined(part[i] for part in parts) for i in range(5))
        of_encoder, of_decoder = self.lengths
        return {"tokens": _padded(tokens, of_encoder, 0), "attention_mask": _attention(attention, tokens, of_encoder),
                "decoder_tokens": _padded(decoder, of_decoder, 0), "labels": _padded(labels, of_decoder, -100),
                "loss_mask": _padded(mask, of_decoder, 0)}


STEPS = {one.kind: one for one in (GPTTrainStep, BertTrainStep, T5TrainStep)}


def _mean_of_tokens(loss_mask, output_tensor):
    mask = loss_mask.reshape(-1).float()
    loss = (output_tensor.reshape(-1).float() * mask).sum() / mask.sum()
    return loss, {"lm loss": loss.detach()}


def _joined(arrays):
    """The rows of several arrays; None if they are None."""
    arrays = [one if one is None else np.asarray(one) for one in arrays]
    return None if arrays[0] is None else np.concatenate(arrays)


def _padded(array, length, value):
    """Rows [b, n] of at most `length` columns, filled up."""
    if array is None or array.ndim != 2 or array.shape[1] >= length:
        return array
    return np.pad(array, ((0, 0), (0, length - array.shape[1])), constant_values=value)


def _attention(mask, tokens, length):
    """The attention mask [b, length]: without one every token of the batch is seen."""
    mask = np.ones_like(tokens) if mask is None else mask
    if mask.shape != tokens.shape:
        raise ConfigError(f"get_batch: the mask of the tokens {list(tokens.shape)} is {list(mask.shape)}; give 1 for a "
                          "token that is seen and 0 for one that is not, of the tokens' shape")
    return _padded(mask, length, 0)


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
            self.step.get_batch = lambda _: self.step.running(batch)
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
