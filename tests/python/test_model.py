import asyncio
import json
import os
import threading

import numpy as np
import pytest
from conftest import TINY

import megatron_cpp as mg


@pytest.fixture(scope="module")
def model(checkpoint):
    with mg.Model.from_pretrained(checkpoint) as model:
        yield model


PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]


def test_texts_are_those_of_the_program(model, checkpoint):
    greedy = model.generate(PROMPTS, max_new_tokens=5, top_k=1, ignore_end=True)
    lines = mg.run("generate", load=checkpoint, ids=None, json=True, greedy=True, max_new_tokens=5,
                   prompt=[" ".join(map(str, one)) for one in PROMPTS], ignore_eod=True)
    assert [json.loads(line)["ids"] for line in lines.splitlines()] == [one.tokens for one in greedy]
    assert all(one.finish == "length" and len(one.new_tokens) == 5 for one in greedy)


def test_one_prompt_or_many(model):
    many = model.generate(PROMPTS, max_new_tokens=3, seed=5)
    assert model.generate(PROMPTS[0], max_new_tokens=3, seed=5).tokens == many[0].tokens
    assert model.generate([]) == []


def test_log_probabilities(model):
    ids = PROMPTS[0]
    logits = model.logits(ids).numpy().astype(np.float64)
    expected = [logits[i, ids[i + 1]] - np.log(np.exp(logits[i]).sum()) for i in range(2)]
    np.testing.assert_allclose(model.log_probabilities(ids), expected, rtol=1e-4)
    made = model.generate(ids, max_new_tokens=2, top_k=1, log_probabilities=True, ignore_end=True)
    np.testing.assert_allclose(made.log_probabilities, model.log_probabilities(made.tokens)[2:], rtol=1e-4)


def test_an_engine_batches_and_cancels(model):
    engine = mg.Engine(model, max_rows=2, cache_tokens=256)
    ids = [engine.submit(prompt, max_new_tokens=4, top_k=1, ignore_end=True) for prompt in PROMPTS]
    engine.cancel(ids[1])
    tokens = {number: [] for number in ids}
    while engine.has_work():
        for event in engine.step():
            tokens[event.id].append(event.token)
    assert tokens[ids[1]] == [] and len(tokens[ids[0]]) == len(tokens[ids[2]]) == 4
    assert engine.step() == []
    events = list(engine.stream(PROMPTS[0], max_new_tokens=4, top_k=1, ignore_end=True))
    assert [event.token for event in events] == tokens[ids[0]] and events[-1].finish == "length"
    for wrong in ([], [1000], [-1], list(range(40))):
        with pytest.raises(mg.ConfigError):
            engine.submit(wrong)
    engine.close()
    engine.close()
    with pytest.raises(mg.ClosedError):
        engine.step()


def test_coroutines_share_an_engine(model):
    async def main():
        async with mg.AsyncEngine(model, max_rows=4, cache_tokens=512) as engine:
            texts = await asyncio.gather(*(engine.generate(prompt, max_new_tokens=4, top_k=1, ignore_end=True,
                                                           log_probabilities=True)
                                           for prompt in PROMPTS * 3))
            with pytest.raises(mg.ConfigError):
                await engine.generate([1000])
            events = [event async for event in engine.stream(PROMPTS[0], max_new_tokens=4, top_k=1, ignore_end=True)]
            assert [event.token for event in events] == texts[0].new_tokens
            assert [event.finish for event in events] == ["", "", "", "length"]
        for call in (engine.generate(PROMPTS[0]), engine.stream(PROMPTS[0]).__anext__()):
            with pytest.raises(mg.ClosedError):
                await call
        engine.close()
        return texts

    texts = asyncio.run(main())
    greedy = model.generate(PROMPTS, max_new_tokens=4, top_k=1, ignore_end=True, log_probabilities=True)
    for text, expected in zip(texts, greedy * 3):
        assert (text.tokens, text.prompt_length, text.finish) == (expected.tokens, expected.prompt_length, "length")
        np.testing.assert_allclose(text.log_probabilities, expected.log_probabilities, rtol=1e-4)


class Gate:
    """The steps of an asynchronous engine, of which only allowed ones run."""

    def __init__(self, engine):
        self.allowed = threading.Semaphore(0)
        self.count = 0
        self._step = engine._engine.step
        engine._engine.step = self.step

    def allow(self, steps):
        for _ in range(steps):
            self.allowed.release()

    def step(self):
        assert self.allowed.acquire(timeout=60)
        self.count += 1
        return self._step()


async def until(condition):
    for _ in range(10000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError


def test_cancelled_coroutines_end_their_requests(model):
    async def main():
        async with mg.AsyncEngine(model, max_rows=4, cache_tokens=512) as engine:
            gate = Gate(engine)
            first, second = (asyncio.create_task(engine.generate(prompt, max_new_tokens=20, top_k=1, ignore_end=True))
                             for prompt in PROMPTS[:2])
            await until(lambda: engine.num_requests == 2)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(engine.generate(PROMPTS[2]), 0.01)
            gate.allow(20)
            text = await second
            assert text.tokens == model.generate(PROMPTS[1], max_new_tokens=20, top_k=1, ignore_end=True).tokens
            assert gate.count == 20 and engine.num_requests == 0

            gate.allow(1)
            async for event in engine.stream(PROMPTS[0], max_new_tokens=20, ignore_end=True):
                break
            for _ in range(5):
                await asyncio.sleep(0)  # the event loop closes the iterator that was left
            gate.allow(1)  # that which the thread waits for
            await until(lambda: engine.num_requests == 0)
            assert gate.count == 22

    asyncio.run(main())


def test_closing_ends_coroutines(checkpoint):
    async def main(model, closed):
        engine = mg.AsyncEngine(model, max_rows=1, cache_tokens=512)
        gate = Gate(engine)
        tasks = [asyncio.create_task(engine.generate(prompt, max_new_tokens=20, ignore_end=True))
                 for prompt in PROMPTS]
        await until(lambda: engine.num_requests >= 1)
        closing = asyncio.get_running_loop().run_in_executor(None, closed or engine.close)
        if closed:
            await closing
        else:
            await until(lambda: engine._is_closed)
        gate.allow(1000)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, mg.ClosedError)
        await closing
        engine.close()

    with mg.Model.from_pretrained(checkpoint) as model:
        asyncio.run(main(model, None))
        asyncio.run(main(model, model.close))


def test_saved_models_open(model, tmp_path):
    logits = model.logits(PROMPTS[2]).numpy().copy()
    for format in ("native", "hf"):
        folder = tmp_path / format
        model.save_pretrained(folder, format=format)
        with mg.Model.from_pretrained(folder) as again:
            width = min(again.logits([1]).shape[1], logits.shape[1])
            np.testing.assert_array_equal(again.logits(PROMPTS[2]).numpy()[:, :width], logits[:, :width])
    assert os.path.exists(tmp_path / "hf" / "config.json")
    with pytest.raises(mg.ConfigError):
        model.save_pretrained(tmp_path, format="onnx")


def test_saved_models_open_in_transformers(model, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model.save_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        logits = theirs(torch.tensor([PROMPTS[2]])).logits[0].numpy()
    np.testing.assert_allclose(logits, model.logits(PROMPTS[2]).numpy()[:, :logits.shape[1]], rtol=1e-3, atol=1e-4)


def test_changed_weights_are_saved(checkpoint, tmp_path):
    with mg.Model.from_pretrained(checkpoint) as model:
        weights = model.state_dict().numpy()
        weights["decoder.final_layernorm.weight"][:] = 3
        expected = model.logits([1, 2]).numpy().copy()
        model.save_pretrained(tmp_path)
    with mg.Model.from_pretrained(tmp_path) as again:
        found = again.logits([1, 2]).numpy()
        np.testing.assert_array_equal(found, expected[:, :found.shape[1]])


def test_ranks_share_a_model(checkpoint):
    with mg.Model.from_pretrained(checkpoint) as model:
        expected = [one.tokens for one in model.generate(PROMPTS, max_new_tokens=4, top_k=1)]
    found = {}

    def rank(world):
        with mg.Model.from_pretrained(checkpoint, world=world, tensor_parallel_size=2) as part:
            found[world.rank] = [one.tokens for one in part.generate(PROMPTS, max_new_tokens=4, top_k=1)]
            with pytest.raises(mg.Unsupported):
                part.save_pretrained("nowhere")

    mg.run_ranks(2, rank)
    assert found == {0: expected, 1: expected}


def test_a_bert_has_weights_and_no_texts(tmp_path):
    sentences = tmp_path / "sentences"
    with mg.DatasetWriter(sentences) as writer:
        for first in range(40):
            writer.add_document(*[[5 + (first + i) % 30 for i in range(12)] for _ in range(4)])
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] +
                                    [f"w{i}" for i in range(40)]))
    settings = {name: value for name, value in TINY.items() if name not in ("mock_data", "vocab_size", "tokenizer_type")}
    settings.update(data_path=str(sentences), split="1,0,0", vocab_file=str(vocabulary), save=str(tmp_path / "bert"),
                    save_interval=100, tokenizer_type="BertWordPieceLowerCase")
    with mg.Trainer(settings, model="bert") as trainer:
        losses = [step.losses for step in trainer]
    assert set(losses[0]) == {"lm loss", "sop loss"}
    with mg.Model.from_pretrained(tmp_path / "bert") as model:
        assert model.kind == "BERT" and model.state_dict()
        for call in (lambda: model.generate([[1]]), lambda: model.logits([1]), lambda: model.forward([[1]])):
            with pytest.raises(mg.Unsupported):
                call()


def test_missing_models_raise(tmp_path):
    with pytest.raises(mg.MegatronError):
        mg.Model.from_pretrained(tmp_path / "nothing")
    with pytest.raises(mg.ConfigError):
        mg.Model.from_pretrained(tmp_path, device="tpu")
