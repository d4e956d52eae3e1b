"""Why a training stopped, as one line."""

import errno
import pickle

import pytest

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.train.stopped import (
    TrainingStopped,
    leave_reason,
    no_space,
    one_line,
    prepare_reason,
    take_reason,
)


class InAnotherProcess(Exception):
    """As Ray wraps an error, once a process."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"Traceback …\n{cause}")
        self.cause = cause


FULL = OSError(errno.ENOSPC, "No space left on device", "/a/file")
REASONS = [
    (TrainingStopped("step 3: no"), "step 3: no"),
    (UserError("a file: no"), "a file: no"),
    (InAnotherProcess(InAnotherProcess(TrainingStopped("step 3: no"))), "step 3: no"),
    (FULL, "/a/file: No space left on device"),
    (RuntimeError("\n first line \nsecond"), "RuntimeError: first line"),
    (KeyError(), "KeyError"),
    (pickle.UnpicklingError("Weights only\nload unsupported GLOBAL posix.system whose"), "it asks for posix.system, "),
]


@pytest.mark.parametrize(("error", "expected"), REASONS, ids=[type(error).__name__ for error, _ in REASONS])
def test_it_is_what_really_happened(tmp_path, error, expected):
    assert one_line(error).startswith(expected) and "\n" not in one_line(error)
    prepare_reason(tmp_path / "reason")
    room = (tmp_path / "reason").stat().st_size
    leave_reason(tmp_path / "reason", error)
    assert (tmp_path / "reason").stat().st_size == room, "a full disk has no more"
    assert take_reason(tmp_path / "reason") == one_line(error)
    assert not (tmp_path / "reason").exists()


def test_no_reason_is_none(tmp_path):
    prepare_reason(tmp_path / "reason")
    assert take_reason(tmp_path / "reason") is None
    assert take_reason(tmp_path / "reason") is None


def test_a_full_disk_is_told_from_other_errors():
    assert no_space(InAnotherProcess(FULL)) and no_space(
        RuntimeError("I/O error: No space left on device (os error 28)")
    )
    assert not no_space(OSError(errno.EIO, "Input/output error"))
