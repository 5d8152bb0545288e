"""Renders the templates of cases.jsonl with Python's jinja2 and rewrites the results in the file.

Usage: render.py cases.jsonl. The environment is that of transformers 4.57
(utils/chat_template_utils.py).
"""

import datetime
import json
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 1, 1)


class Raised(Exception):
    pass


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_text")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(lineno)

    def _text(self, caller):
        return caller()


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return env


def result(source, variables):
    try:
        return {"text": environment().from_string(source).render(**variables)}
    except Raised as raised:
        return {"raises": str(raised)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(path):
    lines = [json.loads(line) for line in open(path, encoding="utf-8")]
    templates = {one["template"]: one["source"] for one in lines if "source" in one}
    conversations = {one["conversation"]: one["variables"] for one in lines if "variables" in one}
    with open(path, "w", encoding="utf-8") as file:
        for name, variables in conversations.items():
            line = {"conversation": name, "variables": variables}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        for name, source in templates.items():
            line = {"template": name, "source": source}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            for conversation, variables in conversations.items():
                line = {"template": name, "conversation": conversation}
                line.update(result(source, variables))
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
