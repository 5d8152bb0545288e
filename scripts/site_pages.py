"""Pages of the site, for scripts/site.sh.

    site_pages.py write PAGES    README.md, docs/ and a reference of the Python package, as MkDocs reads them
    site_pages.py check SITE     exits with 1 if a link of a page, or the anchor in it, leads nowhere

Links to files outside of docs/ lead to the repository at MG_REPOSITORY_URL (as
https://host/owner/name/blob/main); without it they become plain text.
"""

import ast
import html.parser
import os
import pathlib
import re
import shutil
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = os.environ.get("MG_REPOSITORY_URL", "").rstrip("/")


def with_links(text, source, page):
    """The text of a document at `source` for a page at `page`, both relative to docs/."""

    def link(match):
        label, target = match.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return match.group(0)
        path, _, anchor = target.partition("#")
        file = (ROOT / source).parent.joinpath(path).resolve()
        if file == ROOT / "README.md":
            path = "index.md"
        elif file == ROOT / "CHANGELOG.md":
            path = "changes.md"
        elif file == ROOT / "docs/tutorials":
            path = "tutorials/first-model.md"
        elif file.is_file() and (ROOT / "docs") in file.parents:
            path = str(file.relative_to(ROOT / "docs"))
        elif REPOSITORY:
            return f"[{label}]({REPOSITORY}/{file.relative_to(ROOT)})"
        else:
            return label
        path = os.path.relpath(path, pathlib.Path(page).parent)
        return f"[{label}]({path}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.S | re.M)  # code holds no links
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"<!-- (?:not )?run: .*? -->\n?", "", parts[i])
        parts[i] = re.sub(r"\[([^][]*)\]\(([^() ]+)\)", link, parts[i])
    return "".join(parts)


def public(nodes):
    return [n for n in nodes if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name[0] != "_"]


def signature(node, name):
    function = node
    if isinstance(node, ast.ClassDef):
        inits = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        if not inits:
            return f"class {name}"
        function = inits[0]
    arguments = ast.unparse(function.args).removeprefix("self").removeprefix(", ")
    is_property = any(getattr(d, "id", "") == "property" for d in node.decorator_list)
    kind = "class " if isinstance(node, ast.ClassDef) else ""
    return name if is_property else f"{kind}{name}({arguments})"


def documented(node, name, level):
    text = ast.get_docstring(node)
    if not text:
        return
    yield f"\n{'#' * level} {name}\n\n```python\n{signature(node, name)}\n```\n\n```text\n{text}\n```\n"


def python_reference():
    yield "# Python reference\n\nThe package `megatron_cpp`; [Python](python.md) introduces it.\n"
    for module in sorted((ROOT / "python/megatron_cpp").glob("*.py")):
        tree = ast.parse(module.read_text())
        nodes = [n for n in public(tree.body) if ast.get_docstring(n)]
        if nodes:
            yield f"\n## {module.stem.strip('_')}\n\n{ast.get_docstring(tree) or ''}\n"
        for node in nodes:
            yield from documented(node, node.name, 3)
            for inner in public(node.body) if isinstance(node, ast.ClassDef) else ():
                yield from documented(inner, f"{node.name}.{inner.name}", 4)


def write(pages):
    shutil.rmtree(pages, ignore_errors=True)
    for file in sorted((ROOT / "docs").rglob("*")):
        name = file.relative_to(ROOT / "docs")
        target = pages / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            target.write_text(with_links(file.read_text(), file.relative_to(ROOT), name))
        elif file.suffix in (".svg", ".png", ".txt"):
            shutil.copy(file, target)
    for source, page in (("README.md", "index.md"), ("CHANGELOG.md", "changes.md")):
        (pages / page).write_text(with_links((ROOT / source).read_text(), source, page))
    (pages / "python-reference.md").write_text("".join(python_reference()))


class Page(html.parser.HTMLParser):
    def __init__(self, file):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(file.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {v for k, v in attributes if k in ("id", "name") and v}
        link = values.get("href") if tag in ("a", "link") else values.get("src")
        if link:
            self.links.append(link)


def check(site):
    own = [f for f in sorted(site.rglob("*.html")) if "cpp" not in f.relative_to(site).parts and f.name != "404.html"]
    pages = {f: Page(f) for f in own}
    dead = []
    for file, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else file
            if target.is_dir():
                target /= "index.html"
            anchor = urllib.parse.unquote(parts.fragment)
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].anchors):
                dead.append(f"{file.relative_to(site)}: {link}")
    print("\n".join(dead) or f"{len(pages)} pages, {sum(len(p.links) for p in pages.values())} links")
    return 1 if dead else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(pathlib.Path(sys.argv[2]))
    elif sys.argv[1:2] == ["check"]:
        sys.exit(check(pathlib.Path(sys.argv[2]).resolve()))
    else:
        sys.exit(__doc__)
