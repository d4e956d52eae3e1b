"""The code of other libraries that ours replaces or overrides: has it changed since it was last compared?

A table beside each test has a digest of each part. With LIBRARY_CODE=write in the environment a test writes its table
anew, once somebody has compared both versions of what changed.
"""

import ast
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from selfplay_pipeline.core.patches import Patch


def source_of(part: str) -> str | None:
    """The source of `module:name` in the installed library, which is read and not imported; None if there is none.

    Of a name that the module imports, the import.
    """
    module, _, name = part.partition(":")
    package, *rest = module.split(".")
    path = Path(find_spec(package).origin).parent.joinpath(*rest)
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.exists():
        return None
    text, body = parsed(path)
    found = None
    for word in name.split("."):
        found = next((node for node in statements(body) if word in names_of(node)), None)
        if found is None:
            return None
        body = getattr(found, "body", [])
    if isinstance(found, ast.ImportFrom):
        return f"from {'.' * found.level}{found.module} import {word}"
    return ast.get_source_segment(text, found)


@functools.cache
def parsed(path: Path) -> tuple[str, list[ast.stmt]]:
    text = path.read_text(encoding="utf-8")
    return text, ast.parse(text).body


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields statements with those of an `if`, `try` or `with`, but without those of a function or class."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from statements([*node.body, *getattr(node, "orelse", [])])


def names_of(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {alias.asname or alias.name for alias in names}
    return set()


def ours(patch: Patch) -> str:
    return f"{patch.replacement.__module__.removeprefix('selfplay_pipeline.')}:{patch.replacement.__qualname__}"


def check_records(patches: list[Patch]) -> None:
    """Fails unless each replacement gives its reasons and was written for the installed version of its library."""
    assert patches and all(patch.replacement.__doc__ and patch.public_way for patch in patches)
    wrong = {
        f"{ours(patch)} was written for {patch.library}, and {version(Requirement(patch.library).name)} is installed"
        for patch in patches
        if not Requirement(patch.library).specifier.contains(version(Requirement(patch.library).name))
    }
    assert not wrong, "\n".join(
        [*sorted(wrong), "Compare what changed, see the other tests, and write the new version."]
    )


def check_code(table: str, users: Mapping[str, set[str]]) -> None:
    """Fails, naming what replaces or overrides it, if a part of a library is not what the table says.

    Args:
        table: The name of the file of digests, which is in this folder.
        users: What of ours replaces, overrides or relies on a part, by the part.
    """
    stored = Path(__file__).with_name(table)
    sources = {part: source_of(part) for part in sorted(users)}
    gone = [
        f"{part} is gone; see {', '.join(sorted(users[part]))}" for part, source in sources.items() if source is None
    ]
    assert not gone, "\n".join(gone)
    digests = {part: hashlib.sha256(str(source).encode()).hexdigest()[:12] for part, source in sources.items()}
    if os.environ.get("LIBRARY_CODE") == "write":
        stored.write_text("".join(f"{digest} {part}\n" for part, digest in digests.items()))
    known = dict(reversed(line.split()) for line in stored.read_text().splitlines())
    other = [f"{part}; see {', '.join(sorted(users[part]))}" for part in digests if digests[part] != known.get(part)]
    how = f"Compare both versions; then run this test with LIBRARY_CODE=write, which writes {stored.name} anew."
    assert not other, "\n".join(["This code has changed since ours was compared with it:", *other, how])
    assert known == digests, f"nothing of ours uses {sorted(known.keys() - digests.keys())} of {stored} any more"
