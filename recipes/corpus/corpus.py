"""A corpus of real text and code from Debian packages, made by `megatron` alone from their texts on.

    corpus.py DIR [--full] [--megatron PROGRAM] [--vocab-size N] [--held-out SHARE] [--workers N]

Downloads packages with apt-get (DIR/packages), takes their texts (DIR/texts/KIND.jsonl), and has
the program clean, de-duplicate and tokenize them. Without --full about 70 MB of text in five minutes,
with it over 1 GB. A step whose results exist is not repeated. Results:

    DIR/train_text_document.{bin,idx}            token ids
    DIR/held-out_text_document.{bin,idx}         of 2 % of the documents, chosen by their names
    DIR/{train,held-out}/KIND_text_document.*    the same by kind: books, manuals, docs, code
    DIR/tokenizer/{vocab.json,merges.txt}        a byte-level BPE learned from these texts
    DIR/packages.tsv  DIR/steps.tsv  DIR/SHA256SUMS  DIR/licences/PACKAGE

Needs Debian 12 or a relative whose sources apt-get knows: apt-get, dpkg-deb, groff. Packages change with security
updates: packages.tsv has the versions and checksums of those that were read.
"""

import argparse
import concurrent.futures
import gzip
import hashlib
import html.parser
import json
import os
import pathlib
import re
import subprocess
import tarfile
import time
import traceback

KINDS = ("books", "manuals", "docs", "code")
MAX_FILE = 200_000  # bytes; longer files of code are mostly tables

SMALL = """bible-kjv bible-kjv-text dict-jargon dict-devil dict-foldoc debian-handbook manpages
manpages-dev perl-doc git-doc git-man python3.11-doc postgresql-doc-15 libpython3.11-stdlib""".split()
FULL = SMALL + """dict-gcide dict-wn freebsd-manpages cmake-doc erlang-doc sqlite3-doc linux-source-6.1
gcc-12-source""".split()


class Steps:
    """Runs steps, and notes seconds and peak memory of each in DIR/steps.tsv."""

    def __init__(self, folder):
        self.file = folder / "steps.tsv"
        if not self.file.exists():
            self.file.write_text("step\tseconds\tcpu_seconds\tpeak_MiB\tMB_in\tMB_out\n")

    def run(self, name, inputs, output, work):
        """`work` is a command, or a function that makes `output`; nothing happens if it exists."""
        if output.exists():
            return
        start = time.monotonic()
        pid = os.fork()  # each step in a process of its own, which alone has its peak
        if pid == 0:
            code = 1
            try:
                if not callable(work):
                    os.execvp(str(work[0]), [str(word) for word in work])
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status, used = os.wait4(pid, 0)
        if status:
            raise SystemExit(f"corpus.py: {name} failed with {os.waitstatus_to_exitcode(status)}")
        row = (name, f"{time.monotonic() - start:.1f}", f"{used.ru_utime + used.ru_stime:.1f}", f"{used.ru_maxrss / 1024:.0f}",
               f"{sum(map(size_of, inputs)) / 1e6:.1f}", f"{size_of(output) / 1e6:.1f}")
        with self.file.open("a") as file:
            print(*row, sep="\t", file=file)
        print(*row, sep="\t", flush=True)


def size_of(path):
    if path.suffix == ".idx":  # a dataset's .bin has its tokens
        path = path.with_suffix(".bin")
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.exists() else 0


def fetch(folder, packages):
    """Downloads the packages and unpacks each into DIR/tree/PACKAGE."""
    debs, tree = folder / "packages", folder / "tree"
    debs.mkdir(exist_ok=True)
    missing = [name for name in packages if not list(debs.glob(f"{name}_*.deb"))]
    if missing:
        subprocess.run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *missing], cwd=debs, check=True)
    rows = ["package\tversion\tbytes\tsha256"]
    (folder / "licences").mkdir(exist_ok=True)
    for name in packages:
        deb = next(debs.glob(f"{name}_*.deb"))
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        rows.append(f"{name}\t{deb.name.split('_')[1].replace('%3a', ':')}\t{deb.stat().st_size}\t{digest}")
        if not (tree / name).exists():
            (tree / name).mkdir(parents=True)
            subprocess.run(["dpkg-deb", "-x", deb, tree / name], check=True)
        copyright_file = tree / name / "usr/share/doc" / name / "copyright"
        if copyright_file.is_file():
            (folder / "licences" / name).write_bytes(copyright_file.read_bytes())
    (folder / "packages.tsv").write_text("\n".join(rows) + "\n")


class PageText(html.parser.HTMLParser):
    """The text of an HTML page: blocks become paragraphs, scripts and navigation are left out."""

    BLOCKS = {"p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "table", "ul", "ol", "dl", "blockquote", "section"}
    LINES = {"br", "li", "tr", "dt", "dd"}
    LEFT_OUT = {"script", "style", "nav", "head", "header", "footer"}

    def __init__(self):
        super().__init__()
        self.parts, self.hidden, self.pre = [], 0, 0

    def handle_starttag(self, tag, attrs):
        if tag in self.LEFT_OUT:
            self.hidden += 1
        elif tag == "pre":
            self.pre += 1
        if tag in self.BLOCKS:
            self.parts.append("\n\n")
        elif tag in self.LINES:
            self.parts.append("\n")
        elif tag in ("td", "th"):
            self.parts.append(" ")

    def handle_endtag(self, tag):
        if tag in self.LEFT_OUT:
            self.hidden = max(0, self.hidden - 1)
        elif tag == "pre":
            self.pre = max(0, self.pre - 1)
        if tag in self.BLOCKS:
            self.parts.append("\n\n")

    def handle_data(self, data):
        if not self.hidden:
            self.parts.append(data if self.pre else re.sub(r"\s+", " ", data))


def page_text(page):
    parser = PageText()
    parser.feed(page)
    parser.close()
    return re.sub(r" *\n", "\n", "".join(parser.parts))


def read(path):
    data = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        data = gzip.decompress(data)
    return data.decode("utf-8", "replace")


def man_text(path):
    page = read(path)
    if len(page) < 400 and ".so " in page:  # another name of a page
        return ""
    # -E: no warnings; -P -cbou: without colours, bold and underlines.
    result = subprocess.run(["groff", "-E", "-Kutf8", "-mandoc", "-Tutf8", "-P-cbou", "-rLL=100n"], input=page.encode(),
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return result.stdout.decode("utf-8", "replace")


def chunks(text, least=4000):
    """Whole paragraphs of at least so many characters."""
    part, size = [], 0
    for paragraph in re.split(r"\n(?=\n|\S)", text):
        part.append(paragraph)
        size += len(paragraph)
        if size >= least:
            yield "\n".join(part)
            part, size = [], 0
    yield "\n".join(part)


def books(tree):
    if (tree / "bible-kjv").exists():
        text = subprocess.run([tree / "bible-kjv/usr/bin/bible", "-p", tree / "bible-kjv-text/usr/lib", "-f",
                               "gen1:1-rev22:21"], stdout=subprocess.PIPE, check=True).stdout.decode()
        chapters = {}
        for line in text.splitlines():  # "Ge1:1 In the beginning ..."
            place, _, verse = line.partition(" ")
            chapters.setdefault(place.partition(":")[0], []).append(verse)
        for chapter, verses in chapters.items():
            yield f"bible-kjv-text/{chapter}", "\n".join(verses)
    for path in sorted(tree.glob("dict-*/usr/share/dictd/*.dict.dz")):
        for i, part in enumerate(chunks(read(path))):
            yield f"{path.relative_to(tree)}/{i}", part
    for path in sorted(tree.glob("debian-handbook/usr/share/doc/debian-handbook/html/en-US/*.html")):
        yield str(path.relative_to(tree)), page_text(read(path))


def manuals(tree, workers):
    pages = sorted(path for path in tree.glob("*/usr/share/man/man*/*") if path.is_file() and not path.is_symlink())
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for path, text in zip(pages, pool.map(man_text, pages)):
            yield str(path.relative_to(tree)), text


def docs(tree):
    sources = [*tree.glob("*/usr/share/doc/*/html/_sources/**/*.txt"), *tree.glob("git-doc/usr/share/doc/**/*.txt"),
               *tree.glob("perl-doc/usr/share/perl/**/*.pod")]
    pages = [page for name in ("postgresql-doc-15", "erlang-doc", "sqlite3-doc") for page in tree.glob(f"{name}/**/*.html")]
    for path in sorted(sources):
        yield str(path.relative_to(tree)), read(path)
    for path in sorted(pages):
        yield str(path.relative_to(tree)), page_text(read(path))


IS_CODE = re.compile(r"\.(c|h|S|cc|cpp|C|hpp|py|sh|pl|rs|awk|md|def|opt|ads|adb|go|f90|d|java|js|inc|y|l)$|/(Makefile|Kconfig)[^/]*$")
# Register tables, and directories of generated headers.
IS_TABLE = re.compile(r"drivers/gpu/drm/amd/include|/asic_reg/|/libgo/go/.*/tables|/unicode/|ChangeLog")
IS_DOC = re.compile(r"/Documentation/.*\.(rst|txt)$|\.texi$")


def docs_and_code(tree):
    """(kind, name, text): both are in the archives of sources, which are read once."""
    for name, text in docs(tree):
        yield "docs", name, text
    for path in sorted(tree.glob("libpython3.11-stdlib/usr/lib/python3.11/**/*.py")):
        if path.is_file() and path.stat().st_size <= MAX_FILE:
            yield "code", str(path.relative_to(tree)), read(path)
    for path in [*tree.glob("linux-source-*/usr/src/*.tar.xz"), *tree.glob("gcc-*-source/usr/src/gcc-*/gcc-*.tar.xz")]:
        with tarfile.open(path, "r|xz") as archive:
            for member in archive:
                kind = "docs" if IS_DOC.search(member.name) else "code" if IS_CODE.search(member.name) else None
                if not kind or not member.isfile() or not 200 < member.size <= MAX_FILE or IS_TABLE.search(member.name):
                    continue
                try:
                    yield kind, member.name, archive.extractfile(member).read().decode("utf-8")
                except UnicodeDecodeError:
                    continue


def is_text(text):
    """Documents of less than 40 % letters, or of lines of more than 300 characters on average, are data."""
    start = text[:20000]
    letters = sum(map(str.isalpha, start))
    return len(text) >= 200 and letters > 0.4 * len(start) and len(text) < 300 * (1 + text.count("\n"))


def write_texts(documents, folder, kinds):
    """Writes (kind, name, text) as FOLDER/KIND.jsonl."""
    files = {kind: (folder / f"{kind}.tmp").open("w", encoding="utf-8") for kind in kinds}
    for kind, name, text in documents:
        text = text.strip()
        if is_text(text):
            files[kind].write(json.dumps({"text": text, "url": name}, ensure_ascii=False) + "\n")
    for kind, file in files.items():
        file.close()
        (folder / f"{kind}.tmp").rename(folder / f"{kind}.jsonl")


def share_of(name):
    """A number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48


def divide(source, kind, train, held_out, share):
    """Documents go to the held-out set by their names, so later versions keep the division."""
    for folder in (train, held_out):
        folder.mkdir(exist_ok=True)
    with source.open(encoding="utf-8") as lines, (held_out / f"{kind}.jsonl").open("w", encoding="utf-8") as few, \
            (train / f"{kind}.tmp").open("w", encoding="utf-8") as most:
        for line in lines:
            (few if share_of(json.loads(line)["url"]) < share else most).write(line)
    (train / f"{kind}.tmp").rename(train / f"{kind}.jsonl")


def sample(files, output, most=60_000_000):
    """Up to so many bytes of the files' lines, in equal parts, for the tokenizer."""
    with output.with_suffix(".tmp").open("wb") as out:
        for file in files:
            step = max(1, -(-file.stat().st_size * len(files) // most))
            with file.open("rb") as lines:
                out.writelines(line for i, line in enumerate(lines) if i % step == 0)
    output.with_suffix(".tmp").rename(output)


def write_sums(folder):
    files = sorted([*folder.glob("*.bin"), *folder.glob("*.idx"), *(folder / "tokenizer").iterdir(), *folder.glob("held-out/*")])
    rows = []
    for path in files:
        with path.open("rb") as file:
            rows.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.relative_to(folder)}\n")
    (folder / "SHA256SUMS").write_text("".join(rows))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--megatron", default="megatron")
    parser.add_argument("--vocab-size", type=int, help="of the tokenizer; 8192, with --full 50304")
    parser.add_argument("--held-out", type=float, default=0.02, help="share of the documents")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    flags = parser.parse_args()
    folder = flags.dir
    folder.mkdir(parents=True, exist_ok=True)
    tree, texts, steps = folder / "tree", folder / "texts", Steps(folder)
    program, workers = flags.megatron, ["--workers", str(flags.workers)]

    steps.run("fetch", [], folder / "packages.tsv", lambda: fetch(folder, FULL if flags.full else SMALL))
    texts.mkdir(exist_ok=True)
    makers = {("books",): lambda: (("books", *pair) for pair in books(tree)),
              ("manuals",): lambda: (("manuals", *pair) for pair in manuals(tree, flags.workers)),
              ("docs", "code"): lambda: docs_and_code(tree)}
    for kinds, make in makers.items():
        steps.run(f"texts {' '.join(kinds)}", [], texts / f"{kinds[-1]}.jsonl",
                  lambda kinds=kinds, make=make: write_texts(make(), texts, kinds))

    tokenizer = folder / "tokenizer"
    vocab = ["--vocab-file", tokenizer / "vocab.json", "--merge-file", tokenizer / "merges.txt"]
    part = texts / "sample.jsonl"
    steps.run("sample", [], part, lambda: sample([texts / f"{kind}.jsonl" for kind in KINDS], part))
    steps.run("train-tokenizer", [part], tokenizer / "merges.txt",
              [program, "train-tokenizer", "--input", part, "--output-dir", tokenizer,
               "--vocab-size", flags.vocab_size or (50304 if flags.full else 8192)])

    for kind in KINDS:
        source = texts / f"{kind}.jsonl"
        if kind != "code":  # the rules of `clean` are those of English prose
            cleaned = texts / f"{kind}.clean.jsonl"
            steps.run(f"clean {kind}", [source], cleaned, [program, "corpus", "clean", source, cleaned, *vocab, *workers])
            source = cleaned
        pairs, groups, unique = (texts / f"{kind}.{name}" for name in ("pairs.json", "groups.json", "unique.jsonl"))
        steps.run(f"find-duplicates {kind}", [source], pairs,
                  [program, "corpus", "find-duplicates", "--inputs", source, "url", "--output", pairs, "--texts-on-disk", *workers])
        steps.run(f"group-duplicates {kind}", [pairs], groups, [program, "corpus", "group-duplicates", pairs, groups, "0.7"])
        steps.run(f"remove-duplicates {kind}", [source], unique,
                  [program, "corpus", "remove-duplicates", groups, source, unique, *workers])
        train, held_out = folder / "train", folder / "held-out"
        steps.run(f"divide {kind}", [unique], train / f"{kind}.jsonl",
                  lambda kind=kind, unique=unique: divide(unique, kind, train, held_out, flags.held_out))
        for part in (held_out, train):
            steps.run(f"preprocess-data {part.name} {kind}", [part / f"{kind}.jsonl"], part / f"{kind}_text_document.idx",
                      [program, "preprocess-data", "--input", part / f"{kind}.jsonl", "--output-prefix", part / kind,
                       "--tokenizer-type", "GPT2BPETokenizer", *vocab, "--append-eod", *workers])
    for part in (held_out, train):
        whole = folder / f"{part.name}_text_document"
        parts = [part / f"{kind}_text_document" for kind in KINDS]
        steps.run(f"merge-datasets {part.name}", [path.with_suffix(".bin") for path in parts], whole.with_suffix(".idx"),
                  [program, "merge-datasets", "--output-prefix", whole, "--datasets", *parts])
    steps.run("checksums", [], folder / "SHA256SUMS", lambda: write_sums(folder))


if __name__ == "__main__":
    main()
