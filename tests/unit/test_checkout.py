"""What git tracks, what commands may leave in a checkout, and what `bin/check_prose.py` finds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECK = ROOT / "bin" / "check_files.py"


def git(folder: Path, *arguments: str, stdin: str = "") -> str:
    return subprocess.run(["git", *arguments], cwd=folder, input=stdin, capture_output=True, text=True).stdout


def check(folder: Path) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, CHECK], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


def test_lock_files_and_large_files_are_found(tmp_path):
    git(tmp_path, "init")
    sizes = {"data/games.jsonl.lock": 0, "data/.lock": 0, "data/teacher.jsonl": 1_000_001, "code.py": 1_000_000}
    for name, size in sizes.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(size))
    assert check(tmp_path) == (0, []), "nothing is tracked yet"
    git(tmp_path, "add", ".")
    code, lines = check(tmp_path)
    assert code == 1
    assert [line.split(";")[0][:40] for line in lines] == [
        "data/.lock: is a lock file",
        "data/games.jsonl.lock: is a lock file",
        "data/teacher.jsonl: has 1,000,001 bytes,",
    ]


def test_a_link_to_nothing_is_found(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "model").symlink_to("gone")
    git(tmp_path, "add", ".")
    code, lines = check(tmp_path)
    assert code == 1 and lines[0].startswith("model: is a link to gone, which does not exist; ")


def test_what_commands_write_below_data_is_ignored():
    """All paths there that documents, the Makefile and the configuration name are outputs, or ship with the package."""
    files = [ROOT / "Makefile", *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "bench").rglob("*.py")]
    files += [*(ROOT / "studies").rglob("*.py"), *(ROOT / "studies").rglob("*.md")]
    files += [*(ROOT / "selfplay_pipeline").rglob("*.py"), *(ROOT / "selfplay_pipeline").rglob("MODEL.md")]
    named = set(re.findall(r"(?<![\w/])data/[a-z]\w+", "\n".join(file.read_text() for file in files)))
    assert {"data/learn_coded", "data/learn", "data/matching_game_selfplay_iterations", "data/tiny_model"} <= named
    tracked = set(git(ROOT, "ls-files", "data").split())
    ignored = set(git(ROOT, "check-ignore", "--stdin", stdin="\n".join(sorted(named))).split())
    shipped = {f"data/{path.name}" for path in (ROOT / "selfplay_pipeline" / "games").glob("*/data/*")}
    assert named - ignored - tracked <= shipped
    assert all((ROOT / path).is_symlink() for path in tracked)


# --- prose --------------------------------------------------------------------------------------------------------


PROSE = ROOT / "bin" / "check_prose.py"


def checked(tmp_path: Path, docstring: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "module.py").write_text(f'def function() -> int:\n    """{docstring}"""\n')
    return subprocess.run([sys.executable, PROSE, tmp_path], capture_output=True, text=True)


@pytest.mark.parametrize(
    "docstring",
    [
        "Return the claim that the interval supports.",
        "Returns the claim that the interval supports.",
        "Whether a sentence may begin so is for its author to say.",
        "Read the file.\n\n    Raises:\n        UserError: The file is missing.\n    ",
    ],
)
def test_each_form_of_a_summary_is_allowed(tmp_path, docstring):
    done = checked(tmp_path, docstring)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("docstring", "fault"),
    [
        ("Returns the form in which a key is stored.", "'the form in which' must be read twice"),
        ("Returns the hash of the file and that of\n    which it was made.", "'that of which' must be read twice"),
        (f"Returns {'one ' * 25}word.", "the first sentence has 27 words; at most 25"),
        ("Read.\n\n    Raises:\n        UserError: it cannot be.\n    ", "under Raises: the subject is 'it'; name it"),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path, docstring, fault):
    done = checked(tmp_path, docstring)
    assert done.returncode == 1 and f"module.py:2: {fault}" in done.stdout
