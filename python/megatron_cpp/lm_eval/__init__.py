"""A model class of lm-evaluation-harness.

    import lm_eval
    from megatron_cpp.lm_eval import MegatronLM

    lm_eval.simple_evaluate(MegatronLM("checkpoints"), tasks=["arc_easy"])

Importing this module registers the name megatron_cpp with the harness. `python -m
megatron_cpp.lm_eval --model megatron_cpp --model_args pretrained=DIR --tasks ...` is lm_eval with it.
"""

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from ..model import Engine, Model


@register_model("megatron_cpp")
class MegatronLM(TemplateLM):
    """Log-likelihoods and texts of a GPT of this package. pretrained: a directory that
    Model.from_pretrained() takes."""

    def __init__(self, pretrained, batch_size=64, max_length=None, device="auto", weights="model", **_):
        super().__init__()
        self.model = pretrained if isinstance(pretrained, Model) else Model(
            pretrained, device="auto" if device is None else str(device).split(":")[0], weights=weights)
        self._rows = 64 if batch_size == "auto" else int(batch_size)
        self._max_length = int(max_length or self.model.max_positions)

    @property
    def eot_token_id(self):
        ends = self.model.end_tokens
        return ends[0] if ends else 0

    @property
    def prefix_token_id(self):
        return self.eot_token_id

    @property
    def max_length(self):
        return self._max_length

    @property
    def max_gen_toks(self):
        return 256

    @property
    def tokenizer_name(self):
        return "megatron_cpp"

    def tok_encode(self, string, **_):
        return self.model.encode(string)

    def _loglikelihood_tokens(self, requests, **_):
        answers = []
        for _, context, continuation in requests:
            ids = (list(context) + list(continuation))[-(self.max_length + 1):]
            # The last token is predicted, never read.
            logits = self.model.logits(ids[:-1]).numpy()[-len(continuation):]
            shifted = (logits - logits.max(axis=-1, keepdims=True)).astype(np.float64)
            chances = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
            wanted = ids[-len(continuation):]
            likelihood = float(sum(chances[i, token] for i, token in enumerate(wanted)))
            is_greedy = bool((logits.argmax(axis=-1) == wanted).all())
            answers.append((likelihood, is_greedy))
        return answers

    def loglikelihood_rolling(self, requests, **_):
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        answers = []
        for request in requests:
            windows = map(make_disjoint_window, get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]), prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length, context_len=1))
            scored = self._loglikelihood_tokens([(None, *window) for window in windows])
            answers.append(sum(likelihood for likelihood, _ in scored))
        return answers

    def generate_until(self, requests, **_):
        engine = Engine(self.model, max_rows=self._rows)
        try:
            return [self._continued(engine, *request.args) for request in requests]
        finally:
            engine.close()

    def _continued(self, engine, prompt, options):
        stops = options.get("until") or []
        stops = [stops] if isinstance(stops, str) else stops
        count = int(options.get("max_gen_toks", self.max_gen_toks))
        ids = self.tok_encode(prompt)[-max(self.max_length - count, 1):]
        is_drawn = options.get("do_sample", False) and options.get("temperature", 0) > 0
        drawn = {"temperature": options["temperature"]} if is_drawn else {"top_k": 1}
        new, text = [], ""
        for event in engine.stream(ids, max_new_tokens=min(count, self.max_length - len(ids)), row=0, **drawn):
            if event.token is None or event.finish == "stop":
                continue
            new.append(event.token)
            text = self.model.decode(new)
            if any(stop in text for stop in stops):
                break
        for stop in stops:
            text = text.split(stop)[0]
        return text
