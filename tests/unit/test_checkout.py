"""What git tracks, and what commands may leave in a checkout."""

import re
import subprocess
import sys
from pathlib import Path

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
