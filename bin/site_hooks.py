"""Additions of `make docs` to mkdocs: README as first page, studies/, the Python reference, links that leave docs/.

A link to a file outside of docs/ leads to the repository if the environment variable REPOSITORY has its address,
such as https://github.com/OWNER/NAME; else only its text stays.
"""

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")  # a link's text may hold an interval: [0.1, 0.2]
REFERENCE = """# Python functions

The functions of `import selfplay_pipeline as sp`. [Examples](python.md).

::: selfplay_pipeline.simple

::: selfplay_pipeline.frames
    options: {show_root_toc_entry: false}

## What a game defines

::: selfplay_pipeline.games.base.Game
    options: {heading_level: 3}

::: selfplay_pipeline.games.base.Session
    options: {heading_level: 3}
"""


def on_config(config: Any) -> Any:
    """List studies and measurements in the order of their tables."""
    (results,) = (section["Results"] for section in config.nav if "Results" in section)
    for table, folder in (("studies/README.md", "studies"), ("docs/results/README.md", "results")):
        links = re.findall(r"^\| \[[^\]]+\]\(([\w/-]+\.md)\)", (ROOT / table).read_text(), re.M)
        results += [f"{folder}/README.md", *(f"{folder}/{name}" for name in links)]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that docs/ does not hold, and their pictures."""
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text()))
    for pattern in ("README.md", "*/README.md", "*/results/**/*.svg"):
        for path in sorted((ROOT / "studies").glob(pattern)):
            files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    files.append(File.generated(config, "reference.md", content=REFERENCE))
    return files


def on_page_markdown(markdown: str, *, page: Any, **others: Any) -> str:
    """Rewrite links between folders of the repository as links between pages of the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(here if here.startswith("studies/") else f"docs/{here}")
    folder = "" if here == "index.md" else folder

    def rewritten(link: re.Match[str]) -> str:
        if "://" in link[3] or link[3].startswith("#"):
            return link[0]
        target = posixpath.normpath(posixpath.join(folder, link[3]))
        if not target.startswith("docs/") and not re.match(r"studies/.*(README\.md|\.svg)(#|$)", target):
            return _outside(link, target)
        inside = posixpath.relpath(target.removeprefix("docs/"), posixpath.dirname(here) or ".")
        return f"{link[1]}[{link[2]}]({inside})"

    return LINK.sub(rewritten, markdown)


def _outside(link: re.Match[str], target: str) -> str:
    repository = os.environ.get("REPOSITORY")
    return f"[{link[2]}]({repository}/blob/main/{target})" if repository else link[2]
