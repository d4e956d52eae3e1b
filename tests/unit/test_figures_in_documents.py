"""Figures in the documents are those of the stored results; those of studies are in `test_study_figures.py`.

To add a figure, add to FIGURES the document, its phrase with `{}` in place of each figure, and the stored values.
"""

import json
import re
from typing import Any

import pytest
from stored_results import MODES, MUTED, NOISE, ROOT, SELF, WARM, Exam, Study, interval, page, stored

README, SHOWN, GROWTH, RACE = "README.md", "docs/shown.md", "docs/results/growth.md", "docs/results/race.md"
planner, code = Study("planner/results/4x4/results"), Study("code/results/results")
people = [Study(f"people/results/seed_{seed}") for seed in (2, 3)]
strangers = stored("studies/partners/results/results.json")["arms"][SELF]


def growth() -> dict[str, list[dict[str, Any]]]:
    """The measurements of `bench.growth` by command, in the order of their sizes."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (ROOT / "docs/results/growth/growth.jsonl").read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["command"], []).append(row)
    return found


def at_a_million(rows: list[dict[str, Any]], name: str) -> float:
    """By the slope between the two largest sizes."""
    small, large = rows[-2:]
    slope = (large[name] - small[name]) / (large["episodes"] - small["episodes"])
    return float(large[name] + slope * (1_000_000 - large["episodes"]))


words, read = (stored("studies/words/results/results.json")[name] for name in ("trainings", "exams"))
costs = {name: one["heard"] - one["exchanged"] for name, one in read.items()}

FIGURES: list[tuple[Any, ...]] = [
    (README, "from {:.3f}, {:.3f} and {:.3f} to {:.3f}, {:.3f} and {:.3f} sampled; silence is 0.840",
     *(words[f"self_{seed}"][at]["held_out_reward"]["value"] for at in ("0", "5") for seed in (4, 5, 6))),
    (README, "costs the trained models {:.3f}, {:.3f} and {:.3f}, and the warm start {:.3f}",
     *(costs[f"after_{seed}"] for seed in (4, 5, 6)), costs["before"]),
    (README, "from {:.3f} to {:.3f} sampled and from {:.3f} to {:.3f} greedy",
     *(planner.of(player, mode).value for mode in MODES for player in (WARM, SELF))),
    (README, "silence is {:.3f}. If one score", planner.silence.value),
    (README, "the best plan for the changed score in {} of the cases, and before self-play in {}",
     planner.follows(SELF), planner.follows(WARM)),
    (README, "reward from {:.3f} to {} sampled; silence is {:.3f}", code.of(WARM, "sampled").value,
     code.of(SELF, "sampled"), code.silence.value),

    (SHOWN, "rises from {:.3f} to {} sampled (three seeds)", planner.of(WARM, "sampled").value,
     planner.of(SELF, "sampled")),
    (SHOWN, "{:.3f} of the proposals follow it, and before {:.3f}",
     planner.follows(SELF).value, planner.follows(WARM).value),
    (SHOWN, "60 iterations reach {} (four seeds)",
     interval(stored("studies/planner/results/3x3/four_seeds.json")["four_seeds"]["sampled"]["reward"])),
    (SHOWN, "muted training ends {:.3f} below silence", -planner.of(MUTED, "sampled", part="over_silence").value),
    (SHOWN, "untrained, and reaches {:.3f}", Exam("planner/results/4x4/exam").of(0, "unmarked")),
    (SHOWN, "the reward is {} sampled and {} greedy (three seeds), {:+} above silence", *code.both(SELF),
     code.of(SELF, "sampled", part="over_silence")),
    (SHOWN, "self-play is {:+} above it", code.of(NOISE, "sampled", part="below_self_play")),
    *((SHOWN, phrase, *(seed.of(player, "sampled", part=part).value for seed in people))
      for phrase, player, part in (
          ("reward is {:.3f} and {:.3f} (two seeds)", SELF, "talking"),
          ("instead of {:.3f} and {:.3f};", WARM, "talking"),
          ("words are worth {:.3f} and {:.3f}, and", SELF, "worth"))),
    (SHOWN, "the difference is {:+}, while their words are worth {:+}",
     *(interval(strangers[name]) for name in ("cross_seed", "worth"))),

    *((GROWTH, "| `{command}` | {episodes:,} | {seconds} | {processor} | {peak_mb} |".format(**row))
      for rows in growth().values() for row in rows),
    *((GROWTH, "| `{}` | {:,.0f} | {:,.0f} |", name, *(at_a_million(rows, what) for what in ("processor", "peak_mb")))
      for name, rows in growth().items()),
    *((RACE, " ".join(line.split())) for line in (ROOT / "docs/results/race/tiny/table.md").read_text().splitlines()
      if line.startswith("| ") and "[" in line and "mean of" not in line),
]  # fmt: skip


@pytest.mark.parametrize(
    ("document", "phrase", "values"), [(document, phrase, values) for document, phrase, *values in FIGURES]
)
def test_a_figure_is_the_stored_one(document, phrase, values):
    assert phrase.format(*values) in page(document)


def test_every_figure_of_the_readme_is_compared_with_a_stored_one():
    text = page(README)
    for document, phrase, *values in FIGURES:
        if document == README:
            text = text.replace(phrase.format(*values), "")
    assert not re.findall(r".{30}\b0\.\d\d+", text), "add them to FIGURES, or leave them out"


def test_the_page_of_the_race_gives_the_stored_command():
    assert re.sub(r" --output /\S+", "", stored("docs/results/race/tiny/results.json")["command"]) in page(RACE)
