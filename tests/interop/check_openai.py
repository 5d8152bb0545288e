#!/usr/bin/env python3
"""Asks a running `megatron serve` with OpenAI's Python package, and reads /metrics with Prometheus'.

Usage: check_openai.py URL   (in an environment with openai and prometheus_client)

Ends with an error at the first thing that does not hold; prints a line for each that does.
"""
import sys
import urllib.request

import openai
from prometheus_client.parser import text_string_to_metric_families


def say(text):
    print(f"ok: {text}", flush=True)


def main():
    url = sys.argv[1].rstrip("/")
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    say(f"models: {model}")

    ask = dict(model=model, prompt="The river", max_tokens=8, temperature=0)
    whole = client.completions.create(**ask, logprobs=3)
    choice = whole.choices[0]
    assert choice.finish_reason in ("length", "stop"), choice
    assert whole.usage.completion_tokens == len(choice.logprobs.tokens)
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs)
    assert all(value <= 0 for value in choice.logprobs.token_logprobs)
    say(f"completion: {choice.text!r}")

    pieces = []
    for chunk in client.completions.create(**ask, stream=True,
                                           stream_options={"include_usage": True}):
        pieces += [one.text for one in chunk.choices]
    assert chunk.usage == whole.usage, chunk
    assert "".join(pieces) == choice.text, pieces
    say(f"stream of {len(pieces)} chunks")

    drawn = [client.completions.create(model=model, prompt="The", max_tokens=12, seed=5, n=2)
             for _ in range(2)]
    assert [c.text for c in drawn[0].choices] == [c.text for c in drawn[1].choices]
    assert drawn[0].choices[0].text != drawn[0].choices[1].text
    say("seeds and n")

    cut = choice.text[3:5]
    stopped = client.completions.create(**ask, stop=cut)
    assert stopped.choices[0].text == choice.text.split(cut)[0], stopped
    assert stopped.choices[0].finish_reason == "stop"
    say("stop")

    messages = [{"role": "user", "content": "Hello"}]
    chat = client.chat.completions.create(model=model, messages=messages, max_tokens=6,
                                          temperature=0, logprobs=True, top_logprobs=2)
    assert chat.choices[0].message.role == "assistant"
    assert len(chat.choices[0].logprobs.content) == chat.usage.completion_tokens
    text = ""
    for chunk in client.chat.completions.create(model=model, messages=messages, max_tokens=6,
                                                temperature=0, stream=True):
        text += chunk.choices[0].delta.content or ""
    assert text == chat.choices[0].message.content
    say(f"chat: {text!r}")

    for change, kind in ((dict(max_tokens=10**6), openai.BadRequestError),
                         (dict(model="other"), openai.NotFoundError),
                         (dict(temperature=-1), openai.BadRequestError)):
        try:
            client.completions.create(**{**ask, **change})
        except kind as error:
            assert error.body["message"], error
        else:
            raise AssertionError(f"{change} was not refused")
    say("errors")

    with urllib.request.urlopen(url + "/metrics") as answer:
        families = {family.name: family
                    for family in text_string_to_metric_families(answer.read().decode())}
    tokens = families["vllm:generation_tokens"].samples[0]
    assert tokens.labels == {"model_name": model} and tokens.value > 0, tokens
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"
    say(f"metrics: {len(families)} families")


if __name__ == "__main__":
    main()
