"""Calls with arguments of any type, shape and order, and from several threads: exceptions, never a crash."""

import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

import megatron_cpp as mg
from conftest import TINY


def test_a_thousand_calls(checkpoint, tmp_path):
    choices = random.Random(int(os.environ.get("MG_RANDOM_SEED", "7")))
    model = mg.Model.from_pretrained(checkpoint)
    engine = mg.Engine(model, max_rows=2, cache_tokens=128)
    trainer = mg.Trainer(TINY)
    closed = mg.Trainer(TINY)
    closed.close()
    with mg.DatasetWriter(tmp_path / "corpus") as writer:
        writer.add_document([1, 2, 3])
    dataset = mg.IndexedDataset(tmp_path / "corpus")
    tokenizer = mg.Tokenizer("NullTokenizer", vocab_size=60)
    state = model.state_dict()

    values = [None, True, -1, 0, 1, 3, 2**40, 1.5, float("nan"), "", "1 2", "text", b"bytes", [], [1, 2], [[1, 2]],
              [[1], [2, 3]], (), {}, {"a": 1}, object(), model, trainer, np.zeros((0,)), np.zeros((4, 17), np.int64),
              np.zeros((4, 16), np.float32), np.zeros((2, 3, 4), np.float32), np.ones((4, 17), np.int64)[:, ::-1],
              np.array([1, 2], np.int32), np.array(5), np.array(["a"]), lambda: 1]
    functions = [model.forward, model.backward, model.logits, model.log_probabilities, model.encode, model.decode,
                 model.generate, model.load_state_dict, model.clear_gradients, model.gradients, engine.submit,
                 engine.step, engine.cancel, engine.has_work, trainer.train_step, trainer.evaluate_step,
                 trainer.evaluate, trainer.load_state_dict, trainer.data_parallel_mean, trainer.load, trainer.generate,
                 trainer.data_parallel_gather, closed.train_step, closed.state_dict, dataset.__getitem__,
                 dataset.document, tokenizer.encode, tokenizer.decode, tokenizer.piece, tokenizer.id_of, state.load,
                 mg.Engine, mg.Tokenizer, mg.IndexedDataset, mg.settings_from, mg.Trainer]
    failures = 0
    for _ in range(1000):
        function = choices.choice(functions)
        arguments = [choices.choice(values) for _ in range(choices.randrange(0, 3))]
        try:
            function(*arguments)
        except Exception:
            failures += 1
    assert 300 < failures < 1000

    # Everything still works.
    while engine.has_work():
        engine.step()
    assert trainer.train_step().loss > 0
    assert len(model.generate([1, 2], max_new_tokens=2, ignore_end=True).tokens) == 4


def test_threads_share_objects(checkpoint):
    model = mg.Model.from_pretrained(checkpoint)
    engine = mg.Engine(model, max_rows=2, cache_tokens=256)
    trainer = mg.Trainer(TINY, train_iters=1000)
    unexpected = []

    def calls(seed):
        choices = random.Random(seed)
        functions = [lambda: model.logits([1, 2, 3]), lambda: model.forward([[1, 2, 3]]),
                     lambda: model.backward(np.zeros((1, 3, 128), np.float32)), model.state_dict,
                     lambda: engine.submit([1, 2], max_new_tokens=3), engine.step, engine.has_work,
                     lambda: model.generate([3, 4], max_new_tokens=2), lambda: model.encode("1 2"),
                     trainer.train_step, lambda: trainer.settings, trainer.state_dict, lambda: trainer.layout]
        for _ in range(60):
            try:
                choices.choice(functions)()
            except mg.MegatronError:
                pass
            except BaseException as error:
                unexpected.append(error)

    threads = [threading.Thread(target=calls, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    threads[0].join()
    model.close()  # while others use it
    trainer_closed = False
    while not trainer_closed:
        try:
            trainer.close()
            trainer_closed = True
        except mg.MegatronError:
            pass
    for thread in threads:
        thread.join()
    assert not unexpected
    with pytest.raises(mg.ClosedError):
        engine.step()


# Objects in use, in errors and in circles when the interpreter ends.
CIRCLES = """
import sys
import numpy as np
import megatron_cpp as mg
from conftest import TINY

class Own(mg.Task):
    loss_inputs = "token_losses"
    def loss(self, values, batch):
        return float(values.numpy().mean()), np.full(values.shape, 1 / values.numpy().size, np.float32)

kept = []
for _ in range(3):
    task = Own()
    task.trainer = mg.Trainer(TINY, task=task)
    kept.append(task.trainer.state_dict())
    assert task.trainer.train_step().loss > 0
    for wrong in (lambda: mg.Trainer(TINY, task=task, lr="text"), lambda: task.trainer.train_step(np.ones((1, 1), int))):
        try:
            wrong()
        except mg.MegatronError as error:
            kept.append(error)
model = mg.Model.from_pretrained(sys.argv[1])
engine = mg.Engine(model, max_rows=2, cache_tokens=128)
engine.submit([1, 2], max_new_tokens=3, ignore_end=True)
engine.step()
kept.append((engine, model.state_dict(), model.forward([[1, 2, 3]])))
"""


def test_nothing_leaks(checkpoint):
    """nanobind tells at the end of the interpreter which objects still live."""
    done = subprocess.run([sys.executable, "-c", CIRCLES, checkpoint], capture_output=True, text=True,
                          cwd=os.path.dirname(os.path.abspath(__file__)))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "leaked" not in done.stderr, done.stderr[-2000:]
