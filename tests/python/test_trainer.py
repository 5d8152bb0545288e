import argparse
import re
import signal
import threading
import time

import numpy as np
import pytest
from conftest import losses_of, losses_on_ranks

import megatron_cpp as mg


def program_losses(settings, ranks=1):
    """The losses that the program prints, as it prints them."""
    settings = dict(settings, log_interval=1)
    if ranks == 1:
        text = mg.run("pretrain-gpt", settings=settings)
    else:
        text = mg.run("launch", "--nproc-per-node", str(ranks), "--ranks", "threads", "pretrain-gpt", settings=settings)
    return re.findall(r"lm loss: (\S+)", text)


def printed(losses):
    return [f"{loss:.6E}" for loss in losses]


def test_losses_are_those_of_the_program(tiny):
    assert printed(losses_of(tiny)) == program_losses(tiny)


@pytest.mark.parametrize("layout", [dict(tensor_model_parallel_size=2, pipeline_model_parallel_size=2),
                                    dict(global_batch_size=8)])
def test_ranks_are_threads(tiny, layout):
    tiny.update(layout)
    assert printed(losses_on_ranks(4, tiny)) == program_losses(tiny, 4)


def test_steps_are_the_iterations_of_a_run(tiny):
    whole = losses_of(tiny)
    with mg.Trainer(tiny) as trainer:
        steps = [trainer.train_step() for _ in range(4)]
    assert [step.loss for step in steps] == whole
    assert [step.iteration for step in steps] == [1, 2, 3, 4]
    assert steps[-1].consumed_samples == 16
    assert all(step.grad_norm > 0 and not step.is_skipped for step in steps)


def test_callbacks_follow_every_iteration(tiny):
    seen = []
    with mg.Trainer(tiny, callbacks=[lambda trainer, step: seen.append((trainer.iteration, step.loss))]) as trainer:
        last = trainer.train()
    assert [iteration for iteration, _ in seen] == [1, 2, 3, 4]
    assert seen[-1][1] == last.loss


def test_settings_come_from_everything(tiny, tmp_path):
    yaml = pytest.importorskip("yaml")
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(tiny))
    expected = losses_of(tiny)
    assert losses_of(str(file)) == expected
    assert losses_of(argparse.Namespace(**tiny)) == expected
    assert losses_of({"--" + name.replace("_", "-"): value for name, value in tiny.items()}) == expected
    assert losses_of(dict(tiny, lr=1.0), lr=1e-2) == expected


def test_all_problems_of_the_settings_are_reported(tiny):
    with pytest.raises(mg.ConfigError) as error:
        mg.Trainer(tiny, hidden_sise=4, num_attention_heads=5)
    assert "hidden-sise" in str(error.value) and "num-attention-heads 5" in str(error.value)


def test_arguments_have_the_names_of_megatron(tiny):
    with mg.Trainer(tiny, arguments={"add_bias_linear": False}) as trainer:
        assert not any(name.endswith("linear_fc1.bias") for name in trainer.state_dict())
        assert trainer.settings["add_bias_linear"] is False
        assert trainer.settings["hidden_size"] == 32


def test_state_is_shared_without_copies(tiny):
    with mg.Trainer(tiny) as trainer:
        state = trainer.state_dict()
        for tensor in state.values():
            assert tensor.numpy().ctypes.data == tensor.data_ptr
            assert np.from_dlpack(tensor).ctypes.data == tensor.data_ptr
        name = "embedding.word_embeddings.weight"
        view = state[name].numpy()
        before = view.copy()
        trainer.train_step()
        assert not np.array_equal(view, before)
        view[:] = 0
        assert not trainer.state_dict()[name].numpy().any()
    assert view.shape == before.shape  # the elements outlive the trainer


def test_load_state_dict_checks_before_it_changes(tiny):
    with mg.Trainer(tiny) as trainer, mg.Trainer(tiny, seed=7) as other:
        target = other.state_dict()
        source = {name: value.copy() for name, value in trainer.state_dict().numpy().items()}
        before = {name: value.copy() for name, value in target.numpy().items()}
        name = next(iter(source))
        for wrong in ({**source, name: np.zeros((1, 1), np.float32)}, {**source, "more": source[name]},
                      {key: value for key, value in source.items() if key != name}):
            with pytest.raises(mg.ShapeError):
                other.load_state_dict(wrong)
        assert all(np.array_equal(before[key], target[key].numpy()) for key in before)
        other.load_state_dict(source)
        assert all(np.array_equal(source[key], target[key].numpy()) for key in source)


def test_batches_of_the_caller(tiny, generator):
    with mg.Trainer(tiny, train_iters=100) as trainer:
        assert (trainer.rows, trainer.seq_length) == (4, 16)
        tokens = generator.integers(0, 60, (4, 17))
        first = trainer.evaluate_step(tokens)["lm loss"]
        for _ in range(30):
            step = trainer.train_step(tokens)
        assert step.iteration == 30
        assert trainer.evaluate_step(tokens)["lm loss"] < 0.5 * first
        # Labels and a mask that say the same change nothing.
        assert (trainer.evaluate_step(tokens, np.ones((4, 16)), tokens[:, 1:]) ==
                trainer.evaluate_step(tokens))
        half = np.ones((4, 16))
        half[:, 8:] = 0
        assert trainer.evaluate_step(tokens, half) != trainer.evaluate_step(tokens)
        for wrong in (tokens[:3], tokens[:, :16]):
            with pytest.raises(mg.ShapeError):
                trainer.train_step(wrong)
        with pytest.raises(mg.ShapeError):
            trainer.train_step(tokens + 1000)
        with pytest.raises(mg.DtypeError):
            trainer.train_step(tokens.astype(float))


def test_checkpoints_continue(tiny, tmp_path):
    tiny["train_iters"] = 6
    expected = losses_of(tiny)
    with mg.Trainer(tiny) as trainer:
        for _ in range(3):
            trainer.train_step()
        trainer.save(tmp_path / "saved")
        with pytest.raises(mg.ConfigError):
            trainer.save()
    assert losses_of(tiny, load=tmp_path / "saved") == expected[3:]


def test_closed_objects_raise(tiny):
    trainer = mg.Trainer(tiny)
    trainer.close()
    trainer.close()
    for call in (trainer.train_step, trainer.save, trainer.state_dict, lambda: next(trainer),
                 lambda: trainer.layout, trainer.evaluate):
        with pytest.raises(mg.ClosedError):
            call()


def test_a_world_ends_with_its_function(tiny):
    kept = []

    def rank(world):
        kept.append((world, mg.Trainer(tiny, world=world, global_batch_size=4)))

    mg.run_ranks(2, rank)
    for world, trainer in kept:
        with pytest.raises(mg.ClosedError):
            world.rank
        with pytest.raises(mg.ClosedError):
            trainer.train_step()


def test_a_barrier_waits_for_all():
    order = []

    def rank(world):
        if world.rank == 1:
            while len(order) < 2:
                time.sleep(0)
            order.append("late")
        else:
            order.append("early")
        world.barrier()
        order.append("after")

    mg.run_ranks(3, rank)
    assert order == ["early", "early", "late", "after", "after", "after"]


def test_an_exception_of_a_rank_ends_all(tiny):
    def rank(world):
        with mg.Trainer(tiny, world=world, tensor_model_parallel_size=2) as trainer:
            trainer.train_step()
            if world.rank == 1:
                raise KeyError("mine")
            trainer.train_step()

    with pytest.raises(KeyError):
        mg.run_ranks(2, rank)


def test_one_thread_at_a_time(tiny):
    tiny.update(hidden_size=128, seq_length=32, global_batch_size=32)
    with mg.Trainer(tiny) as trainer:
        thread = threading.Thread(target=lambda: [trainer.train_step() for _ in range(3)])
        thread.start()
        seen = set()
        while thread.is_alive():
            try:
                trainer.layout
            except mg.MegatronError as error:
                seen.add(str(error))
        thread.join()
        assert seen <= {"the trainer is in use by another call"}
        assert trainer.iteration == 3


def test_other_threads_run_during_a_step(tiny):
    tiny.update(hidden_size=256, seq_length=32, global_batch_size=16, num_layers=4)
    with mg.Trainer(tiny) as trainer:
        trainer.train_step()
        counts = []
        done = threading.Event()

        def count():
            while not done.is_set():
                counts.append(time.perf_counter())
                time.sleep(0.001)

        thread = threading.Thread(target=count)
        thread.start()
        begin = time.perf_counter()
        trainer.train_step()
        end = time.perf_counter()
        done.set()
        thread.join()
        assert sum(begin < at < end for at in counts) >= 1


@pytest.fixture
def control_c():
    """SIGINT as on a terminal: shells start jobs in the background with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_control_c_ends_after_the_step(tiny, control_c):
    with mg.Trainer(tiny, train_iters=1000) as trainer:
        def interrupt(_, step):
            if step.iteration == 2:
                signal.raise_signal(signal.SIGINT)

        trainer.callbacks.append(interrupt)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        iteration = trainer.iteration
        assert iteration in (2, 3)
        assert trainer.train_step().iteration == iteration + 1


def given_losses(count, settings, model, arrays, **more):
    """The losses of five iterations on a batch of the caller, on the last rank."""
    found = []

    def rank(world):
        with mg.Trainer({**settings, **more}, model=model, world=world) as trainer:
            steps = [trainer.train_step(**arrays).losses for _ in range(5)] + [trainer.evaluate_step(**arrays)]
            if world.rank == world.size - 1:
                found.extend(steps)

    mg.run_ranks(count, rank)
    return found


@pytest.mark.parametrize("model", ["bert", "t5"])
def test_batches_of_other_models_on_ranks(tiny, generator, model):
    tiny.update(seq_length=16, vocab_size=127, make_vocab_size_divisible_by=64, num_layers=4, global_batch_size=4, micro_batch_size=2,
                position_embedding_type="learned_absolute")
    ids = generator.integers(0, 60, (4, 16))
    labels = np.where(generator.random((4, 16)) < 0.4, ids, -1)
    arrays = {"tokens": ids, "labels": labels, "attention_mask": np.arange(16) < [[16], [15], [12], [16]]}
    if model == "bert":
        arrays.update(token_types=ids % 2, sentence_order=[0, 1, 1, 0])
    else:
        tiny["decoder_seq_length"] = 8
        arrays.update(labels=labels[:, :8], decoder_tokens=ids[:, 8:], loss_mask=generator.random((4, 8)))
    expected = given_losses(1, tiny, model, arrays)
    assert set(expected[0]) == ({"lm loss", "sop loss"} if model == "bert" else {"lm loss"})
    assert expected[4]["lm loss"] < expected[0]["lm loss"]
    split = {"pipeline_model_parallel_split_rank": 1} if model == "t5" else {}
    found = given_losses(4, tiny, model, arrays, tensor_model_parallel_size=2, pipeline_model_parallel_size=2, **split)
    for one, other in zip(found, expected):
        assert one == pytest.approx(other, rel=1e-4)


def test_batches_of_other_models_are_checked(tiny):
    ids = np.ones((2, 16), np.int64)
    settings = {**tiny, "global_batch_size": 2, "micro_batch_size": 2, "seq_length": 16}
    with mg.Trainer(settings, model="bert", bert_no_binary_head=True) as trainer:
        right = {"tokens": ids, "labels": ids}
        assert trainer.train_step(**right).loss > 0
        for wrong in ({"tokens": ids}, {"tokens": ids[:1], "labels": ids}, {**right, "sentence_order": [0, 1]},
                      {**right, "decoder_tokens": ids}, {**right, "values": [1.0, 2.0]}, {**right, "token_types": ids[:, 1:]},
                      {**right, "attention_mask": ids[0]}, {"tokens": ids, "labels": ids + 1000}):
            with pytest.raises(mg.ShapeError):
                trainer.train_step(**wrong)
        with pytest.raises(TypeError):
            trainer.train_step(**right, images=ids)
        with pytest.raises(mg.ConfigError):
            trainer.train_step()
        assert trainer.train_step(**right).iteration == 2
    with pytest.raises(mg.ConfigError):
        mg.Trainer(settings, model="t5", decoder_seq_length=8, task=AddsSamples())


class AddsSamples(mg.Task):
    def samples(self, split, num_samples, num_tokens):
        return np.ones((4, num_tokens), np.int64)


def test_jax_shares_elements(tiny):
    jax = pytest.importorskip("jax")
    with mg.Trainer(tiny) as trainer:
        for tensor in trainer.state_dict().values():
            shared = jax.dlpack.from_dlpack(tensor)
            assert shared.shape == tuple(tensor.shape)
            assert np.array_equal(np.asarray(shared), tensor.numpy())
            assert shared.unsafe_buffer_pointer() == tensor.data_ptr
