"""Text files are UTF-8, whatever the locale says; those of episodes may have a byte order mark or be compressed."""

from __future__ import annotations

import codecs
import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command import selfplay

from selfplay_pipeline.frames import episodes_frame, turns_frame
from selfplay_pipeline.generate.read_records import size_of_lines

PACKAGE = Path("selfplay_pipeline")


def test_every_file_is_read_and_written_with_a_named_encoding() -> None:
    """ruff's rule knows only the calls whose object it recognises as a path."""
    unnamed = re.compile(r"\.read_text\(\)|\.write_text\((?!.*(?:utf-8|def |path, ))|\.open\((\"[wra]\")?\) as")
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if unnamed.search(line)
    ]
    assert found == []


PLAY = "generate --player random --player random --num-episodes 8 --output games.jsonl"
FORMS: dict[str, Callable[[bytes], bytes]] = {
    "with a byte order mark": lambda text: codecs.BOM_UTF8 + text,
    "compressed": gzip.compress,
    "compressed, with a byte order mark": lambda text: gzip.compress(codecs.BOM_UTF8 + text),
    "compressed in two members": lambda text: gzip.compress(text[:999]) + gzip.compress(text[999:]),
}
READERS = {
    "show": "show FILE",
    "show one": "show FILE --episode s0-g000000-p3",
    "export": "export FILE --output out",
    "report": "report FILE --output out.html",
    "report of a folder": "report . --output out.html",
}


@pytest.fixture
def played(tmp_path, monkeypatch) -> Path:
    """A file of scripted episodes of rules that are not the default ones, with its arguments beside it."""
    monkeypatch.chdir(tmp_path)
    done = selfplay(*PLAY.split(), "--config", "tiny")
    assert done.returncode == 0, done.stderr
    return Path("games.jsonl")


@pytest.mark.parametrize("reader", READERS)
def test_commands_read_episodes_in_every_form(played, reader: str):
    def read(name: str) -> tuple[str, ...]:
        done = selfplay(*READERS[reader].replace("FILE", name).split())
        assert done.returncode == 0 and "default rules" not in done.stderr, (name, done.stderr)
        page = Path("out.html").read_text() if "report" in reader else ""
        page = re.sub(r"games\.jsonl(\.gz)?|[\d-]+ [\d:]+ UTC", "", page)  # the names, and the time of the report
        return page, re.sub(r"games\.jsonl(\.gz)?|[\d.]+ MB", "", done.stdout)

    plain, expected = played.read_bytes(), read("games.jsonl")
    for form, write in FORMS.items():
        name = "games.jsonl.gz" if "compressed" in form else "games.jsonl"
        played.unlink(missing_ok=True)
        Path(name).write_bytes(write(plain))
        found = read(name)
        assert found == expected, form


@pytest.mark.parametrize("form", FORMS)
def test_python_and_convert_read_episodes_in_every_form(played, form: str):
    played.with_name("other.jsonl").write_bytes(FORMS[form](played.read_bytes()))
    assert episodes_frame("other.jsonl").equals(episodes_frame("games.jsonl"))
    assert turns_frame("other.jsonl").equals(turns_frame("games.jsonl"))
    done = selfplay("convert", "other.jsonl", "--output", "out")
    assert done.returncode == 2 and "the policy took no turn in any of the 8 episodes" in done.stderr


@pytest.mark.parametrize("text", [b"", b"a", b"\n"])
def test_nothing_is_added_to_a_compressed_file(played, text: bytes):
    """Not even if the compressed bytes end as a line does."""
    played.write_bytes(gzip.compress(played.read_bytes()) + text)
    before = played.read_bytes()
    done = selfplay(*PLAY.replace("8", "16").split(), "--config", "tiny")
    says = r"selfplay: games\.jsonl: compressed with gzip, so that no line can be added; decompress it \(`gunzip`\)\n"
    assert done.returncode == 2 and re.fullmatch(says, done.stderr), done.stderr
    assert played.read_bytes() == before


def test_a_bar_knows_the_size_of_compressed_lines(played):
    plain = size_of_lines(played)
    assert plain == len(played.read_bytes())
    played.write_bytes(gzip.compress(played.read_bytes()))
    assert size_of_lines(played) == plain
