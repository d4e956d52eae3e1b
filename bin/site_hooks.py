"""Additions of `make docs` to mkdocs: README as first page, all studies, the Python reference, links that leave docs/.

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
    """List the studies in the order of their table."""
    table = (ROOT / "docs/results/README.md").read_text()
    (results,) = (section["Results"] for section in config.nav if "Results" in section)
    results += [f"results/{name}" for name in dict.fromkeys(re.findall(r"^\| \[[^\]]+\]\(([\w-]+\.md)\)", table, re.M))]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that docs/ does not hold."""
    readme = (ROOT / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=LINK.sub(_from_root, readme)))
    files.append(File.generated(config, "reference.md", content=REFERENCE))
    return files


def on_page_markdown(markdown: str, *, page: Any, **others: Any) -> str:
    """Rewrite the links that leave docs/."""
    folder = posixpath.dirname(page.file.src_uri)

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, link[3]))
        return link[0] if "://" in link[3] or target.startswith("docs/") else _outside(link, target)

    return LINK.sub(rewritten, markdown)


def _from_root(link: re.Match[str]) -> str:
    """Returns a link of the README as a link of a page in docs/."""
    target = link[3]
    if "://" in target:
        return link[0]
    inside = target.startswith("docs/")
    return f"{link[1]}[{link[2]}]({target.removeprefix('docs/')})" if inside else _outside(link, target)


def _outside(link: re.Match[str], target: str) -> str:
    repository = os.environ.get("REPOSITORY")
    return f"[{link[2]}]({repository}/blob/main/{target})" if repository else link[2]
