"""Dialogues made from documents in Markdown: headings become questions, their paragraphs answers.

    dialogues.py OUT DOCUMENT.md ...

Writes OUT/train.jsonl, and each tenth dialogue to OUT/valid.jsonl, in the form of the chat template `plain`.
"""

import json
import pathlib
import re
import sys


def sections(text):
    """(heading, paragraphs) without code, tables, comments and pictures."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.S)
    heading, paragraphs = None, []
    for block in re.split(r"\n\s*\n", text):
        block = block.strip()
        found = re.match(r"#+ (.*)", block)
        if found:
            if heading:
                yield heading, paragraphs
            heading, paragraphs = found.group(1), []
            block = block[found.end():].strip()
        if block and not block.startswith(("|", "!", "    ")):
            paragraphs.append(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"\s+", " ", block)))
    if heading:
        yield heading, paragraphs


def shortened(text, most=300):
    """Whole sentences of at most so many characters, or that many characters of the first."""
    if len(text) <= most:
        return text
    end = max(text.rfind(mark, 0, most) for mark in (". ", ": ", "; "))
    return text[: end + 1] if end > 0 else text[:most]


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    dialogues = []
    for path in sys.argv[2:]:
        title = None
        for heading, paragraphs in sections(pathlib.Path(path).read_text(encoding="utf-8")):
            title = title or heading
            topic = heading if heading == title else f"{heading} ({title})"
            for i, answer in enumerate(paragraphs):
                question = f"Tell me more about {topic}." if i else f"What should I know about {topic}?"
                dialogues.append({"text": f"user: {question}\nassistant: {shortened(answer)}\n"})
    for name, part in (("valid", dialogues[::10]), ("train", [d for i, d in enumerate(dialogues) if i % 10])):
        (out / f"{name}.jsonl").write_text("".join(json.dumps(d) + "\n" for d in part), encoding="utf-8")
        print(f"{len(part)} dialogues in {out / name}.jsonl")


main()
