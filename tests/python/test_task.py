import numpy as np
import pytest
from conftest import losses_of, losses_on_ranks

import megatron_cpp as mg


class Counting(mg.Task):
    def samples(self, split, num_samples, num_tokens):
        return (np.arange(50)[:, None] + np.arange(num_tokens)) % 60


class CountingLists(mg.Task):
    def samples(self, split, num_samples, num_tokens):
        return [[(first + i) % 60 for i in range(num_tokens)] for first in range(50)]


def test_samples_of_arrays_and_lists(tiny):
    tiny.update(train_iters=60, micro_batch_size=8, global_batch_size=16)
    losses = losses_of(tiny, task=Counting())
    assert losses[-1] < 0.6 * losses[0]
    assert losses_of(tiny, task=CountingLists()) == losses
    assert losses_of(dict(tiny, num_workers=2), task=CountingLists()) == losses


def test_wrong_samples_raise(tiny):
    class Short(mg.Task):
        def samples(self, split, num_samples, num_tokens):
            return [[1, 2, 3]] * 10

    class Failing(mg.Task):
        def samples(self, split, num_samples, num_tokens):
            class Rows:
                def __len__(self):
                    return 10

                def __getitem__(self, index):
                    raise KeyError("broken")

            return Rows()

    with pytest.raises(mg.ShapeError):
        losses_of(tiny, task=Short())
    for workers in (0, 2):
        with pytest.raises(KeyError):
            losses_of(dict(tiny, num_workers=workers), task=Failing())


def test_batches_are_adjusted(tiny):
    class Half(mg.Task):
        loss_name = "half loss"

        def adjust_batch(self, batch, split):
            assert split == "train" and batch.tokens.shape == (2, 16)
            batch.loss_mask[:, ::2] = 0

    class Same(mg.Task):
        def adjust_batch(self, batch, split):
            batch.loss_mask = batch.loss_mask * 1.0

    class Wrong(mg.Task):
        def adjust_batch(self, batch, split):
            batch.labels = batch.labels[:1]

    plain = losses_of(tiny)
    assert losses_of(tiny, task=Same()) == plain
    with mg.Trainer(tiny, task=Half()) as trainer:
        step = trainer.train_step()
    assert list(step.losses) == ["half loss"] and step.loss != plain[0]
    with pytest.raises(mg.ShapeError):
        losses_of(tiny, task=Wrong())


def test_parameters_are_adjusted(tiny):
    seen = {}

    class Frozen(mg.Task):
        def adjust_parameter(self, name, shape, options):
            seen[name] = shape
            if name.startswith("embedding"):
                options.lr_mult = 0.0

    with mg.Trainer(tiny, task=Frozen()) as trainer:
        name = "embedding.word_embeddings.weight"
        before = trainer.state_dict()[name].numpy().copy()
        trainer.train()
        assert np.array_equal(before, trainer.state_dict()[name].numpy())
        assert seen[name] == before.shape


class NumpyLoss(mg.Task):
    """The built-in loss, by hand."""

    loss_inputs = "token_losses"

    def loss(self, values, batch):
        mask = batch.loss_mask.numpy().T
        return (values.numpy() * mask).sum() / mask.sum(), mask / mask.sum()


def test_a_loss_in_numpy(tiny):
    expected = losses_of(tiny)
    assert losses_of(tiny, task=NumpyLoss()) == pytest.approx(expected, rel=1e-6)
    layout = dict(tiny, tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    assert losses_on_ranks(4, layout, task=NumpyLoss()) == pytest.approx(losses_on_ranks(4, layout), rel=1e-6)


@pytest.mark.parametrize("result, error", [
    ((0.0, np.zeros((3, 3), np.float32)), mg.ShapeError),
    ((0.0, np.zeros((16, 2), np.complex64)), mg.DtypeError),
    ((0.0, np.zeros((16, 2), np.float64)), mg.DtypeError),
    (("text", np.zeros((16, 2), np.float32)), (TypeError, ValueError)),
])
def test_wrong_gradients_raise(tiny, result, error):
    class Wrong(mg.Task):
        loss_inputs = "token_losses"

        def loss(self, values, batch):
            return result

    with mg.Trainer(tiny, task=Wrong()) as trainer:
        with pytest.raises(error):
            trainer.train_step()


def test_a_loss_may_not_call_its_trainer(tiny):
    class Calling(NumpyLoss):
        def loss(self, values, batch):
            self.trainer.train_step()

    task = Calling()
    with mg.Trainer(tiny, task=task) as trainer:
        task.trainer = trainer
        with pytest.raises(mg.MegatronError):
            trainer.train_step()


def test_sequences_are_whole(tiny):
    class Loss(NumpyLoss):
        pass

    def rank(world):
        mg.Trainer(tiny, task=Loss(), world=world, context_parallel_size=2)

    with pytest.raises(mg.ConfigError, match="context-parallel-size"):
        mg.run_ranks(2, rank)
