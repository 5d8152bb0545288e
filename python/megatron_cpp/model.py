"""Models for inference, for evaluation and for training loops of one's own."""

import asyncio
import os
import queue
import threading
from dataclasses import dataclass, field

import numpy as np

from . import _core
from .state import StateDict


@dataclass
class Generation:
    """A prompt and its continuation."""

    tokens: list  # of the prompt, then the new ones
    prompt_length: int
    text: str = None  # of the new tokens, if the model has a tokenizer
    finish: str = ""  # stop or length
    log_probabilities: list = field(default_factory=list)  # of the new tokens, if requested

    @property
    def new_tokens(self):
        return self.tokens[self.prompt_length:]


class Model:
    """A model from a checkpoint or a folder of a Hugging Face model: from_pretrained().

    A GPT continues texts and has forward() and backward(); every kind has its weights. Functions
    may be called from several threads, one at a time.
    """

    def __init__(self, directory, *, iteration=0, device="auto", num_threads=0, weights="model",
                 tensor_parallel_size=1, pipeline_parallel_size=1, world=None):
        self._core = _core.Model(os.fspath(directory), iteration, device, num_threads, weights,
                                 tensor_parallel_size, pipeline_parallel_size, world)
        self._shape = None

    @classmethod
    def from_pretrained(cls, directory, **options):
        """Loads the latest checkpoint of a directory (or `iteration`), or a Hugging Face model.

        device: auto, cpu or cuda. weights: model, or fp8 or int8 to round them for inference.
        world: the ranks that share the model, with tensor_parallel_size and pipeline_parallel_size.
        Raises ConfigError, IoError, FormatError.
        """
        return cls(directory, **options)

    def save_pretrained(self, directory, format="hf"):
        """Writes the weights as they are now and the tokenizer: format hf, a folder that
        transformers opens, or native, a checkpoint of this program."""
        if format not in ("hf", "native"):
            raise _core.ConfigError(f"format {format} is not known; use hf or native")
        self._core.save(os.fspath(directory), format == "native")

    @property
    def kind(self):
        """GPT, BERT or T5."""
        return self._core.kind

    @property
    def vocab_size(self):
        """Ids that mean something; further ones are padding."""
        return self._core.vocab_size

    @property
    def max_positions(self):
        return self._core.max_positions

    @property
    def end_tokens(self):
        """Each of these ids ends a text."""
        return self._core.end_tokens

    def state_dict(self):
        """This rank's parameters by name, without copies. See StateDict."""
        return StateDict(self._core.parameters())

    def load_state_dict(self, state, strict=True):
        """Copies arrays into the parameters. Raises ShapeError before anything is changed."""
        self.state_dict().load(state, strict)

    def forward(self, ids):
        """The logits [b, s, v] of ids [b, s], in the model's dtype; a torch or numpy array of them
        shares the engine's memory. Keeps what backward() needs. A GPT on one rank."""
        array = _ids(ids, np.int64)
        if array.ndim != 2:
            raise _core.ShapeError(f"forward: ids have {array.ndim} axes, and must have two: [b, s]")
        logits = self._core.forward(array)
        self._shape = logits.shape
        return _batch_first(logits)

    def backward(self, gradient):
        """Adds the gradients of the weights, from that of the logits of the last forward(), an
        array [b, s, v] of fp32 or the model's dtype."""
        if self._shape is None:
            raise _core.MegatronError("backward: there was no forward() before it")
        s, b, v = self._shape
        if tuple(gradient.shape) != (b, s, v):
            raise _core.ShapeError(f"backward: the gradient has shape {tuple(gradient.shape)}, and the logits {(b, s, v)}")
        if hasattr(gradient, "contiguous"):
            gradient = gradient.detach().transpose(0, 1).contiguous()
        else:
            gradient = np.ascontiguousarray(np.asarray(gradient).transpose(1, 0, 2))
        self._core.backward(gradient)
        self._shape = None

    def gradients(self):
        """The gradients so far by the names of the parameters that have one, without copies."""
        return StateDict(self._core.gradients())

    def clear_gradients(self):
        self._core.clear_gradients()

    def logits(self, ids):
        """The logits [n, v] of the tokens after each of n ids, fp32 in host memory."""
        return self._core.logits(_ids(ids, np.int32))

    def log_probabilities(self, ids):
        """log p(ids[i] | ids before it) of ids 1 .. n - 1."""
        return self._core.log_probabilities(_ids(ids, np.int32))

    def encode(self, text):
        return self._core.encode(text)

    def decode(self, ids):
        return self._core.decode([int(one) for one in ids])

    def generate(self, prompts, **options):
        """Continues texts, or lists of ids, many at once: one Generation for one prompt, a list for
        a list of prompts. For the options see Engine.submit()."""
        is_one = isinstance(prompts, str) or (len(prompts) > 0 and np.ndim(prompts[0]) == 0
                                              and not isinstance(prompts[0], str))
        many = [prompts] if is_one else list(prompts)
        if not many:
            return []
        ids = [self._ids_of(prompt) for prompt in many]
        new = options.get("max_new_tokens", 64)
        engine = Engine(self, max_rows=min(len(many), 256), reuse_prefixes=False,
                        cache_tokens=sum(len(one) + new + 32 for one in ids))
        try:
            found = engine.generate(ids, **options)
        finally:
            engine.close()
        return found[0] if is_one else found

    def _ids_of(self, prompt):
        return self.encode(prompt) if isinstance(prompt, str) else [int(one) for one in prompt]

    def _text_of(self, ids):
        try:
            return self.decode(ids)
        except _core.ConfigError:
            return None

    def close(self):
        """Frees the model, and closes its engines."""
        self._core.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Engine:
    """Continuous batching: requests join and leave between two steps.

    One thread at a time calls it. cache_tokens: capacity of the cache of keys and values; 0: four
    texts as long as the model's positions.
    """

    def __init__(self, model, *, max_rows=64, max_step_tokens=512, cache_tokens=0, reuse_prefixes=True):
        self.model = model
        self._count = 0
        self._core = _core.Engine(model._core, max_rows, max_step_tokens, cache_tokens, reuse_prefixes)

    def submit(self, prompt, *, max_new_tokens=64, temperature=1.0, top_k=0, top_p=0.0, seed=1234,
               row=None, stop_tokens=(), ignore_end=False, log_probabilities=False,
               repetition_penalty=None):
        """Adds a request: a text or ids. Returns its id.

        top_k: 1 draws the most probable token, 0 any; top_p: the most probable tokens with that sum
        of probabilities, 0 any. Draws depend on seed, row (the number of the request, unless given)
        and the ids alone. stop_tokens end a text beside the model's own, which ignore_end forgets;
        the token that ends it is kept.
        """
        number = self._core.submit(self.model._ids_of(prompt), max_new_tokens, temperature, top_k,
                                   top_p, seed, self._count if row is None else row,
                                   [int(one) for one in stop_tokens], ignore_end,
                                   log_probabilities, repetition_penalty)
        self._count += 1
        return number

    def step(self):
        """Runs one forward pass. Returns its Events: id, token, log_probability, finish."""
        return self._core.step()

    def has_work(self):
        return self._core.has_work()

    def cancel(self, id):
        self._core.cancel(id)

    def generate(self, prompts, **options):
        """Continues every prompt: a list of Generations."""
        rows = {}
        for number, prompt in enumerate(prompts):
            ids = self.model._ids_of(prompt)
            rows[self.submit(ids, row=number, **options)] = Generation(list(ids), len(ids))
        wants = options.get("log_probabilities", False)
        try:
            while self.has_work():
                for event in self.step():
                    row = rows.get(event.id)
                    if row is None:
                        continue
                    if event.finish == "failed":
                        raise _core.MegatronError("the model's logits are not numbers")
                    if event.token is not None:
                        row.tokens.append(event.token)
                        if wants:
                            row.log_probabilities.append(event.log_probability)
                    row.finish = event.finish or row.finish
        except BaseException:
            for number in rows:
                self.cancel(number)
            raise
        for row in rows.values():
            row.text = self.model._text_of(row.new_tokens)
        return list(rows.values())

    def stream(self, prompt, **options):
        """Yields the Events of one request; ending the loop early cancels it."""
        number = self.submit(prompt, **options)
        try:
            while self.has_work():
                for event in self.step():
                    if event.id == number:
                        yield event
                        if event.finish:
                            return
        finally:
            self.cancel(number)

    def close(self):
        """Frees its memory. Closing twice does nothing."""
        try:
            self._core.close()
        except _core.ClosedError:
            pass


class AsyncEngine:
    """An Engine for coroutines: a thread runs its steps while there are requests.

        async with AsyncEngine(model) as engine:
            texts = await asyncio.gather(*(engine.generate(prompt) for prompt in prompts))
            async for event in engine.stream("Once upon a time"):
                print(event.token)

    For the options of a request see Engine.submit(). A request ends when its task is cancelled or
    its loop is left. Raises ClosedError after close().
    """

    def __init__(self, model, **options):
        self.model = model
        self._engine = Engine(model, **options)
        self._calls = queue.SimpleQueue()  # to the thread, which alone uses the engine
        self._requests = {}  # those that are running, by number; the thread's
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def num_requests(self):
        """The requests that have not ended."""
        return len(self._requests)

    async def generate(self, prompt, **options):
        """The Generation of one prompt."""
        request = _AsyncRequest(prompt, options)
        tokens, log_probabilities, finish = [], [], ""
        async for event in self._events(request):
            if event.token is not None:
                tokens.append(event.token)
                if options.get("log_probabilities", False):
                    log_probabilities.append(event.log_probability)
            finish = event.finish
        text = await request.loop.run_in_executor(None, self.model._text_of, tokens)
        return Generation(request.ids + tokens, len(request.ids), text, finish, log_probabilities)

    def stream(self, prompt, **options):
        """An asynchronous iterator over the Events of one request as they come."""
        return self._events(_AsyncRequest(prompt, options))

    async def _events(self, request):
        self._call("submit", request)
        try:
            while True:
                event = await request.events.get()
                if isinstance(event, BaseException):
                    raise event
                if event.finish == "failed":
                    raise _core.MegatronError("the model's logits are not numbers")
                yield event
                if event.finish:
                    return
        finally:
            self._calls.put(("cancel", request))

    def _call(self, name, request=None):
        with self._lock:
            if self._is_closed:
                raise _core.ClosedError("the engine is closed")
            self._is_closed = name == "close"
            self._calls.put((name, request))

    def close(self):
        """Ends the requests, with a ClosedError, and the thread. Closing twice does nothing."""
        try:
            self._call("close")
        except _core.ClosedError:
            return
        self._thread.join()
        self._engine.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def _run(self):
        while True:
            try:
                name, request = self._calls.get(block=not self._requests)
            except queue.Empty:
                name, request = "step", None
            try:
                if name == "close":
                    return self._fail(_core.ClosedError("the engine was closed"))
                getattr(self, "_" + name)(request)
            except Exception as error:
                self._fail(error)

    def _submit(self, request):
        try:
            request.ids = self.model._ids_of(request.prompt)
            request.number = self._engine.submit(request.ids, **request.options)
            self._requests[request.number] = request
        except Exception as error:
            request.deliver(error)

    def _cancel(self, request):
        if self._requests.pop(request.number, None) is not None:
            self._engine.cancel(request.number)

    def _step(self, _):
        for event in self._engine.step():
            request = self._requests.get(event.id)
            if request is not None:
                if event.finish:
                    del self._requests[event.id]
                request.deliver(event)

    def _fail(self, error):
        requests, self._requests = self._requests, {}
        for number, request in requests.items():
            request.deliver(error)
            try:
                self._engine.cancel(number)
            except _core.MegatronError:
                pass


class _AsyncRequest:
    """A request of a coroutine, and the queue of its events."""

    def __init__(self, prompt, options):
        self.prompt = prompt
        self.options = options
        self.ids = None
        self.number = None
        self.loop = asyncio.get_running_loop()
        self.events = asyncio.Queue()

    def deliver(self, event):
        try:
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)
        except RuntimeError:
            pass  # the loop is closed


class Server:
    """The HTTP interfaces of `megatron serve` in this process, until close(); its threads need no
    interpreter. `model` is a Model, which nothing else uses meanwhile, or a directory.

        with Server("checkpoints") as server:
            requests.post(server.url + "/v1/completions", json={"model": server.name, "prompt": "Once"})

    port: 0 takes a free one. api_key: clients must send it. Raises ConfigError if it cannot listen,
    or if the model has no tokenizer.
    """

    def __init__(self, model, *, host="127.0.0.1", port=0, api_key="", name="", max_running_requests=64,
                 cache_tokens=0):
        self.model = model if isinstance(model, Model) else Model(model)
        self._core = _core.Server(self.model._core, host, port, api_key, name, max_running_requests, cache_tokens)
        self.host = host

    @property
    def port(self):
        return self._core.port

    @property
    def name(self):
        """The model's name for clients."""
        return self._core.name

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def close(self):
        """Lets requests finish, for at most 30 seconds, and frees the model for other calls."""
        self._core.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _ids(values, dtype):
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise _core.DtypeError(f"ids are {array.dtype}, and must be integers")
    limits = np.iinfo(dtype)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise _core.ShapeError("an id is not in the vocabulary")
    return np.ascontiguousarray(array, dtype)


class _batch_first:
    """Logits [s, b, v] of the engine, seen as [b, s, v]."""

    def __init__(self, tensor):
        self._tensor = tensor

    @property
    def shape(self):
        s, b, v = self._tensor.shape
        return (b, s, v)

    @property
    def dtype(self):
        return self._tensor.dtype

    @property
    def data_ptr(self):
        return self._tensor.data_ptr

    def torch(self):
        return self._tensor.torch().transpose(0, 1)

    def numpy(self):
        return self._tensor.numpy().transpose(1, 0, 2)

    def __array__(self, *args, **options):
        return np.asarray(self.numpy(), *args, **options)
