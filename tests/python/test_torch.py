"""What needs torch."""

import numpy as np
import pytest
from conftest import losses_of, losses_on_ranks

import megatron_cpp as mg

torch = pytest.importorskip("torch")


class Mean(mg.TorchTask):
    def loss(self, losses, batch):
        mask = batch.loss_mask.T
        return (losses * mask).sum() / mask.sum(), {"largest": losses.max().detach()}


class OfLogits(mg.TorchTask):
    loss_inputs = "logits"

    def loss(self, logits, batch):
        s, b, v = logits.shape
        return torch.nn.functional.cross_entropy(logits.float().reshape(s * b, v),
                                                 batch.labels.T.reshape(-1))


LAYOUTS = [dict(), dict(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1),
           dict(tensor_model_parallel_size=2), dict(pipeline_model_parallel_size=2),
           dict(tensor_model_parallel_size=2, sequence_parallel=True, pipeline_model_parallel_size=2)]


@pytest.mark.parametrize("task", [Mean, OfLogits])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_loss_in_torch_is_the_built_in_one(tiny, task, layout):
    tiny.update(layout, vocab_size=127)  # no rows are padding
    ranks = layout.get("tensor_model_parallel_size", 1) * layout.get("pipeline_model_parallel_size", 1)
    built_in = losses_on_ranks(ranks, tiny)
    assert losses_on_ranks(ranks, tiny, task=task()) == pytest.approx(built_in, rel=1e-6)


def test_further_numbers_are_logged(tiny):
    with mg.Trainer(tiny, task=Mean()) as trainer:
        step = trainer.train_step()
    assert set(step.losses) == {"lm loss", "largest"}
    assert step.losses["largest"] > step.loss


def test_addresses_are_equal(tiny):
    seen = []

    class Looking(Mean):
        def _evaluate_loss(self, values, *rest):
            seen.append(values.data_ptr == torch.from_dlpack(values).data_ptr())
            return super()._evaluate_loss(values, *rest)

    with mg.Trainer(tiny, task=Looking()) as trainer:
        trainer.train_step()
        for tensor in trainer.state_dict().values():
            assert tensor.torch().data_ptr() == tensor.data_ptr
    assert seen == [True, True]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision(tiny, dtype):
    tiny.update({dtype: True, "initial_loss_scale": 1024} if dtype == "fp16" else {dtype: True})
    assert losses_of(tiny, task=Mean()) == pytest.approx(losses_of(tiny), rel=1e-3)
    with mg.Trainer(tiny) as trainer:
        state = trainer.state_dict().torch()
        assert all(tensor.dtype == getattr(torch, {"bf16": "bfloat16", "fp16": "float16"}[dtype])
                   for tensor in state.values())


def test_a_loop_in_torch_trains_the_engine_s_model(checkpoint, generator):
    """forward() and backward() with an optimizer of torch, against the gradients of differences."""
    with mg.Model.from_pretrained(checkpoint) as model:
        ids = generator.integers(0, 60, (3, 12))
        labels = torch.from_numpy(generator.integers(0, 60, (3, 12)))
        state = model.state_dict().torch()

        def loss_of():
            logits = model.forward(ids).torch().detach().requires_grad_(True)
            loss = torch.nn.functional.cross_entropy(logits.reshape(36, -1), labels.reshape(-1))
            return logits, loss

        def gradients():
            model.clear_gradients()
            logits, loss = loss_of()
            loss.backward()
            model.backward(logits.grad)
            return {name: value.clone() for name, value in model.gradients().torch().items()}, loss.item()

        found, first = gradients()
        assert set(found) == set(state)
        name = "decoder.layers.1.mlp.linear_fc2.weight"
        weight = state[name]
        at = tuple(int(i) for i in np.unravel_index(int(found[name].abs().argmax()), weight.shape))
        kept = weight[at].item()
        step = 1e-2
        weight[at] = kept + step
        above = loss_of()[1].item()
        weight[at] = kept - step
        below = loss_of()[1].item()
        weight[at] = kept
        assert (above - below) / (2 * step) == pytest.approx(found[name][at].item(), rel=2e-2)

        for _ in range(20):
            now, last = gradients()
            for key, value in now.items():
                state[key].sub_(0.1 * value)
        assert last < first


def test_the_logits_are_those_of_inference(checkpoint):
    with mg.Model.from_pretrained(checkpoint) as model:
        ids = [3, 1, 4, 1, 5, 9, 2, 6]
        trained = model.forward([ids, ids[::-1]]).numpy()
        assert trained.shape[:2] == (2, 8)
        np.testing.assert_allclose(trained[0], model.logits(ids).numpy(), rtol=1e-4, atol=1e-5)
        for call in (lambda: model.forward(ids), lambda: model.forward([[1000]]),
                     lambda: model.forward([[1] * 33])):
            with pytest.raises(mg.ShapeError):
                call()
        with pytest.raises(mg.MegatronError):
            model.backward(np.zeros((2, 8, 5), np.float32))


def test_state_dicts_travel_through_torch(tiny, tmp_path):
    with mg.Trainer(tiny) as trainer, mg.Trainer(tiny, seed=9) as other:
        torch.save(trainer.state_dict().torch(), tmp_path / "state.pt")
        other.load_state_dict(torch.load(tmp_path / "state.pt"))
        tokens = np.arange(68).reshape(4, 17) % 60
        assert other.evaluate_step(tokens) == trainer.evaluate_step(tokens)
