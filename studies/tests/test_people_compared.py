"""`studies.people.run`: its table, and what it refuses."""

import pytest

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.metrics.bootstrap import Interval
from studies.people.run import Comparison, Row, main, table


def about(value):
    return Interval(value=value, low=value - 0.01, high=value + 0.01)


def test_the_table_has_people_lines_and_each_player_with_its_difference_from_people():
    rows = [
        Row(player="self-play", mode="greedy", muted=muted, reward=about(reward), minus_people=about(reward - 0.92))
        for muted, reward in ((False, 0.95), (True, 0.8))
    ]
    found = Comparison(states=134, people=about(0.92), lines={"own_view": about(0.77)}, rows=rows)
    assert table(found).splitlines() == [
        "| on 134 states | reward | minus people |",
        "|---|---|---|",
        "| people | 0.920 [0.910, 0.930] | |",
        "| *own view* (line) | 0.770 [0.760, 0.780] | |",
        "| self-play, greedy | 0.950 [0.940, 0.960] | +0.030 [+0.020, +0.040] |",
        "| self-play, greedy, muted | 0.800 [0.790, 0.810] | -0.120 [-0.130, -0.110] |",
    ]


@pytest.mark.parametrize("given", ["self-play", "=x", "self-play="])
def test_a_player_has_a_name_and_a_checkpoint(given):
    with pytest.raises(UserError, match="NAME=CHECKPOINT"):
        main(players=[given])
