"""The race against TRL: what its table says, and what it refuses before it takes an hour."""

import sys
from pathlib import Path

import pytest

from bench.race.__main__ import QUICK, Race, _claim
from bench.race.table import Figures, Rise, rows
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.metrics.bootstrap import Interval

OURS = Figures(
    seconds=30, playing=8, in_steps=16, episodes=1600, steps=12, peak_gb=4, looking=0.1, load=0.2, checkpoint="ours"
)
TRL = OURS.model_copy(update={"seconds": 60.0, "playing": 20.0, "in_steps": 32.0, "peak_gb": 1.6})
RISES = {
    "sampled": Rise(
        ours=Interval(value=0.04, low=0.03, high=0.05),
        trl=Interval(value=0.05, low=0.04, high=0.06),
        difference=Interval(value=-0.01, low=-0.02, high=0.001),
    )
}


def test_the_rest_is_what_is_neither_played_nor_trained_and_a_ratio_is_ours_over_trl():
    assert (OURS.rest, TRL.rest) == (6, 8)
    found = {row.name: row[1:] for row in rows({"ours": (OURS,), "trl": (TRL,)}, RISES)}
    assert found["rest, % of wall time"] == ("20.0", "13.3", "1.50")
    assert found["episodes a second while playing"] == ("200.0", "80.0", "2.50")
    assert found["peak memory, GB"] == ("4.00", "1.60", "2.50")
    assert found["sampled reward, rise a minute"] == ("+0.080 [+0.060, +0.100]", "+0.050 [+0.040, +0.060]", "1.60")


def test_a_folder_holds_one_race_and_what_trl_cannot_do_is_said_before_it_runs(tmp_path):
    def claim(folder, python=Path(sys.executable), **changes):
        _claim(Race("tiny", QUICK | changes, 1, tmp_path / folder, python))

    for _ in "begun", "continued":
        claim("race")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    for folder, changes, words in (
        ("race", {"generate.temperature": 1.0}, "another configuration"),
        ("mine", {}, "not a folder of `make race`"),
        ("new", {"generate.num_episodes": 72}, "144 rows of an iteration are no multiple of 128"),
        ("new", {"python": tmp_path / "none"}, "`make race` makes it"),
    ):
        with pytest.raises(UserError, match=words):
            claim(folder, **changes)
    assert not (tmp_path / "new").exists()
