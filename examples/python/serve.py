"""Serves a checkpoint over HTTP and asks it: serve.py CHECKPOINT"""

import json
import sys
import urllib.request

import megatron_cpp as mg

with mg.Server(sys.argv[1]) as server:
    body = json.dumps({"model": server.name, "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0})
    request = urllib.request.Request(server.url + "/v1/completions", body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        print(json.load(answer)["choices"][0]["text"])
