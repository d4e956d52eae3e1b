"""`bin/check_prose.py` finds what must be read twice, and allows each form of a summary."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "bin" / "check_prose.py"


def checked(tmp_path: Path, docstring: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "module.py").write_text(f'def function() -> int:\n    """{docstring}"""\n')
    return subprocess.run([sys.executable, CHECK, tmp_path], capture_output=True, text=True)


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
