"""Many clients at once ask a server of `megatron serve`, and check its answers.

    clients.py URL TEXTS.jsonl [--clients 200] [--requests 1000] [--max-tokens 32] [--pid PID]

The prompts are 50 beginnings of texts. The answer to each is asked for alone first; every later answer must be the
same. Prints latencies, and with --pid the resident memory and the open files of the server. Exits with 1 if a
request fails or gets another answer.
"""

import argparse
import http.client
import json
import pathlib
import sys
import threading
import time
import urllib.parse

from growth import Usage

NUM_PROMPTS = 50


class Clients:
    def __init__(self, url, max_tokens):
        self.address = urllib.parse.urlsplit(url)
        self.max_tokens = max_tokens
        self.lock = threading.Lock()
        self.seconds, self.problems, self.next = [], [], 0

    def connection(self):
        return http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=600)

    def ask(self, connection, prompt):
        body = {"prompt": prompt, "max_tokens": self.max_tokens, "temperature": 0, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {data[:200]}")
        content = json.loads(data)
        if content["usage"]["completion_tokens"] != self.max_tokens:
            raise RuntimeError(f"incomplete: {data[:200]}")
        return content["choices"][0]["text"]

    def work(self, prompts, wanted, total):
        connection = self.connection()
        while True:
            with self.lock:
                number, self.next = self.next, self.next + 1
            if number >= total:
                return
            prompt = prompts[number % len(prompts)]
            start = time.monotonic()
            try:
                same = self.ask(connection, prompt) == wanted[prompt]
                problem = None if same else f"request {number}: another answer than alone"
            except (OSError, RuntimeError, http.client.HTTPException, ValueError) as error:
                problem, connection = f"request {number}: {error!r}", self.connection()
            with self.lock:
                self.seconds.append(time.monotonic() - start)
                if problem:
                    self.problems.append(problem)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("texts", type=pathlib.Path)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--pid", type=int)
    parser.add_argument("--samples", type=pathlib.Path, help="file for what the server used, over the requests")
    flags = parser.parse_args()

    with flags.texts.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line, _ in zip(lines, range(NUM_PROMPTS))]
    prompts = sorted({text[:100] for text in texts})
    clients = Clients(flags.url, flags.max_tokens)
    alone = clients.connection()
    wanted = {prompt: clients.ask(alone, prompt) for prompt in prompts}
    usage = Usage(flags.pid) if flags.pid else None
    threads = [threading.Thread(target=clients.work, args=(prompts, wanted, flags.requests)) for _ in range(flags.clients)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if usage:
            usage.sample(min(clients.next, flags.requests))
        time.sleep(0.2)
    took = time.monotonic() - start
    seconds = sorted(clients.seconds)
    at = [f"{seconds[min(len(seconds) - 1, int(share * len(seconds)))]:.2f}" for share in (0.5, 0.9, 0.99)]
    print(f"{flags.clients} clients, {len(seconds)} answers, {len(clients.problems)} wrong or lost; seconds of an answer "
          f"(50, 90, 99 %, most): {', '.join(at)}, {seconds[-1]:.2f}; {len(seconds) * flags.max_tokens / took:.0f} tokens/s")
    for problem in clients.problems[:5]:
        print(problem)
    grows = usage.report("requests") if usage else False
    if usage and flags.samples:
        usage.write(flags.samples)
    sys.exit(bool(clients.problems) or len(seconds) != flags.requests or grows)


main()
