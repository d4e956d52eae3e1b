"""Figures in the pages of the studies are those of their stored results.

To add a figure, add to FIGURES the study, its phrase with `{}` in place of each figure, and the stored values.
"""

import json
from dataclasses import fields
from statistics import fmean, stdev
from typing import Any

import pytest
from stored_results import MODES, MUTED, NOISE, PLACEBO, ROOT, SELF, WARM, Exam, Study, interval, page, stored

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.metrics.bootstrap import Interval
from studies.common.compared import Results
from studies.common.verdict import Evidence, conditions, verdict
from studies.listen.play import draw as draw_listening
from studies.words.picture import draw

four, three = (Study(f"planner/results/{size}/results") for size in ("4x4", "3x3"))
four_seeds, first_seeds = (stored(f"studies/planner/results/3x3/{name}.json") for name in ("four_seeds", "seeds_2_3"))
code, people = Study("code/results/results"), [Study(f"people/results/seed_{seed}") for seed in (2, 3)]
exam, exams = Exam("planner/results/4x4/exam"), [Exam(f"code/results/exam_{seed}") for seed in (3, 4, 5)]
with_people = stored("studies/people/results/people.json")
partners = stored("studies/partners/results/results.json")
listened = [stored(f"studies/listen/results/exam_{name}.json") for name in ("start", "seed_3")]
played = stored("studies/listen/results/self_play.json")
second = stored("studies/listen/results/evaluation_seed_2.json")["modes"]
silenced, noise, permuted, permuted_2 = (
    stored(f"studies/listen/results/evaluation_{name}.json")["modes"]
    for name in ("muted_3", "noise_3", "placebo_3", "placebo_2")
)
both_seats = [stored(f"studies/listen/results/evaluation_{name}.json")["modes"] for name in ("start", "seed_3")]
untrained = json.loads((ROOT / "studies/listen/results/metrics.jsonl").read_text().splitlines()[0])
listener = stored("studies/listen/results/evaluation_iteration_12.json")["modes"]
words, read = (stored("studies/words/results/results.json")[name] for name in ("trainings", "exams"))


def exchange_costs(model: int) -> list[float]:
    """The reward that a model loses with each seed if the words of the code are exchanged."""
    return [one.of(model, "heard") - one.of(model, "exchanged") for one in exams]


FIGURES: list[tuple[Any, ...]] = [
    ("planner", "| silence | {} | {} |", four.silence, three.silence),
    *(("planner", f"| {label} | {{:{sign}}} | {{:{sign}}} |", *(one.of(player, "sampled", part=part)
                                                             for one in (four, three)))
      for label, player, part, sign in (
          ("warm start", WARM, "talking", ""), ("**self-play**", SELF, "talking", ""),
          ("self-play minus silence", SELF, "over_silence", "+"),
          ("self-play, swapped, minus silence", SELF, "swapped_over_silence", "+"),
          ("worth of words, warm start", WARM, "worth", ""), ("worth of words, self-play", SELF, "worth", ""),
          ("muted training minus silence", MUTED, "over_silence", "+"))),
    ("planner", "| self-play minus placebo | not trained | {:+} |",
     three.of(PLACEBO, "sampled", part="below_self_play")),
    ("planner", "| proposals that follow a changed score | {} | {} |", four.follows(SELF), three.follows(SELF)),
    ("planner", "on 3×3 tables is {} and the worth of words {}, sampled",
     *(interval(four_seeds["four_seeds"]["sampled"][name]) for name in ("reward", "worth"))),
    ("planner", "untrained and reaches {:.3f}. With marked messages it reaches {:.3f}, and self-play {:.3f}",
     exam.of(0, "unmarked"), exam.of(0, "heard"), exam.of(1, "heard")),

    *(("code", f"| {label} | {{:{sign}}} | {{:{sign}}} |", *code.both(player, part=part))
      for label, player, part, sign in (
          ("warm start, reward", WARM, "talking", ""), ("**self-play, reward**", SELF, "talking", ""),
          ("**self-play minus silence**", SELF, "over_silence", "+"),
          ("self-play, messages swapped, minus silence", SELF, "swapped_over_silence", "+"),
          ("worth of words, warm start", WARM, "worth", ""), ("**worth of words, self-play**", SELF, "worth", ""),
          ("muted as trained, minus silence", MUTED, "over_silence", "+"), ("placebo, its rise", PLACEBO, "rise", "+"),
          ("noise, minus silence", NOISE, "over_silence", "+"),
          ("self-play minus noise", NOISE, "below_self_play", "+"))),
    ("code", "costs {:.3f}, {:.3f} and {:.3f} of the reward with the three seeds, after it {:.3f}, {:.3f} and {:.3f}.",
     *exchange_costs(0), *exchange_costs(1)),
    ("code", "about as well as the whole code: {:.3f}, {:.3f} and {:.3f}", *(one.of(1, "two_words") for one in exams)),

    ("people", "for what one player sees, {}.", people[0].silence),
    *(("people", f"| {label} | {{}} | {{}} | {{}} | {{}} |",
       *(one for seed in people for one in seed.both(player, part=part))) for label, player, part in (
          ("warm start, reward", WARM, "talking"), ("**self-play, reward**", SELF, "talking"),
          ("self-play, messages swapped", SELF, "swapped"), ("worth of words, warm start", WARM, "worth"),
          ("**worth of words, self-play**", SELF, "worth"), ("muted as trained, reward", MUTED, "muted"),
          ("placebo, reward", PLACEBO, "talking"))),
    ("people", "people reached {}, and self-play, sampled, {} and {}.", interval(with_people["people"]),
     *(interval(row["reward"]) for row in with_people["rows"]
       if row["player"].startswith("self-play") and row["mode"] == "sampled" and not row["muted"])),

    ("partners", "| warm start | {} | {:+} | {:+} |",
     *(interval(partners["warm_start"][name]) for name in ("own", "over_silence", "worth"))),
    *(("partners", f"| {arm} | {{}} | {{:+}} | {{:+}} | {{}} | {{:+}} |",
       *(interval(of[name]) for name in ("own", "over_silence", "worth", "with_seeds", "cross_seed")))
      for arm, of in partners["arms"].items()),
    ("partners", "hears self-play's messages reaches {:.3f}", fmean(row[4] for row in partners["means"][SELF][:3])),
    ("partners", "self-play proposes for {:.3f}, {:.3f} and {:.3f} with", *partners["means"][SELF][3][:3]),
    ("partners", "trained on {:.2f} and {:.2f} of self-play's rows", *(
        partners["arms"][arm]["training"]["rows"] / partners["arms"][SELF]["training"]["rows"]
        for arm in ("past", "population"))),

    *(("words", f"| {label} | {{}} | {{}} | {{}} | {{}} | {{}} |",
       *(interval(words[run][at][f"held_out_{mode}reward"])
         for mode, at in (("", "0"), ("", "2"), ("", "5"), ("greedy_", "0"), ("greedy_", "5"))))
      for label, run in (("self-play, seed 4", "self_4"), ("seed 5", "self_5"), ("seed 6", "self_6"))),
    *(("words", f"| {label} | {{}} | | {{}} | {{}} | {{}} |",
       *(interval(words[run][at][f"held_out_{mode}reward"]) for mode in ("", "greedy_") for at in ("0", "5")))
      for label, run in (
          ("muted, seed 4", "muted_4"), ("seed 5", "muted_5"), ("seed 6", "muted_6"),
          ("permuted rewards, seed 4", "placebo_4"), ("seed 5", "placebo_5"), ("seed 6", "placebo_6"))),
    ("words", "After two iterations the sampled reward rose by {:+}, {:+} and {:+}.",
     *(interval(words[f"self_{seed}"]["2"]["held_out_rises"]["sampled"]["reward"]) for seed in (4, 5, 6))),
    ("words", "costs the warm start {:.3f} of its reward, and the trained models {:.3f}, {:.3f} and {:.3f}.",
     *(one["heard"] - one["exchanged"] for one in read.values())),
    ("words", "{:.3f}, {:.3f} and {:.3f} instead of {:.3f}, {:.3f} and {:.3f}. So",
     *([*read.values()][seed][name] for name in ("two_words", "heard") for seed in (1, 2, 3))),
    ("words", "with seed 6 the reward fell to {:.3f} after", words["self_6"]["3"]["held_out_reward"]["value"]),

    *(("listen", f"| {label} | {{}} | {{}} |", *(interval(one[name]["follows"]) for one in listened))
      for label, name in (
          ("follows the largest cell", "largest cell"), ("… with the names exchanged", "names exchanged"),
          ("… in new wordings", "held-out wordings"),
          ("… with new names", "names never met"), ("all four cells", "all cells"))),
    *(("listen", f"| reward, {mode} | {{}} | {{}} |",
       *(interval(one[mode]["figures"]["reward"]) for one in both_seats)) for mode in MODES),
    *(("listen", f"| … messages swapped, {mode} | {{}} | {{}} |",
       *(interval(one[mode]["words"]["swapped_reward"]) for one in both_seats)) for mode in MODES),
    *(("listen", f"| muted training, {mode} | | {{}} |", interval(silenced[mode]["figures"]["reward"]))
      for mode in MODES),
    *(("listen", f"| permuted rewards, {mode} | | {{}} |", interval(permuted[mode]["figures"]["reward"]))
      for mode in MODES),
    ("listen", "permuted, seed 2: {} sampled ({} of 200 episodes illegal), {} greedy;",
     interval(permuted_2["sampled"]["figures"]["reward"]), permuted_2["sampled"]["statuses"]["error_limit"],
     interval(permuted_2["greedy"]["figures"]["reward"])),
    ("listen", "noise, seed 3: {:.3f} ({} illegal), {:.3f}.", noise["sampled"]["figures"]["reward"]["value"],
     noise["sampled"]["statuses"]["error_limit"], noise["greedy"]["figures"]["reward"]["value"]),
    ("listen", "reward rises to {:.3f} sampled and {:.3f} greedy",
     *(both_seats[1][mode]["figures"]["reward"]["value"] for mode in MODES)),
    ("listen", "Silence is {:.3f};", make_game(load_config("smollm2", {}).game).silence.value),
    ("listen", "Seed 2 ends at {} and {}, and falls to {:.3f} and {:.3f}",
     *(interval(second[mode]["figures"]["reward"]) for mode in MODES),
     *(second[mode]["words"]["swapped_reward"]["value"] for mode in MODES)),
    ("listen", "in {} of the messages, before in {}, and the score is true in {}.",
     *(interval(listened[at]["spoken"]["it belongs to the best plan"]) for at in (1, 0)),
     interval(listened[1]["spoken"]["its score is true"])),
    ("listen", "costs {:.2f} nats a token untouched, {:.2f} after the lesson, {:.2f} after self-play",
     stored("studies/listen/results/exam_untouched.json")["nats a token of English"],
     *(listened[at]["nats a token of English"] for at in (0, 1))),
    ("listen", "differ by {:.4f} to {:.4f} nats a token.", *(
        end(one["log_prob_gap"] for of in played.values() for one in of["play"]) for end in (min, max))),
    ("listen", "An iteration takes {:.1f} to {:.1f} minutes", *(
        end(sum(one["seconds"].values()) / 60 for of in played.values() for one in of["play"]) for end in (min, max))),
    ("listen", "the listener rises from {:.3f} to {:.3f}.", untrained["held_out_reward"]["value"],
     listener["sampled"]["figures"]["reward"]["value"]),
]  # fmt: skip


@pytest.mark.parametrize(("study", "phrase", "values"), [(study, phrase, values) for study, phrase, *values in FIGURES])
def test_a_figure_is_the_stored_one(study, phrase, values):
    assert phrase.format(*values) in page(f"studies/{study}/README.md")


@pytest.mark.parametrize("study", ["planner/results/4x4", "planner/results/3x3", "code/results", "people/results"])
def test_a_stored_verdict_is_that_of_its_conditions(study):
    results = Results.model_validate(stored(f"studies/{study}/results.json"))
    assert results.verdict == verdict(results.conditions)


def test_the_stored_conditions_of_the_4x4_study_are_all_that_the_rule_has_in_its_order():
    """The page of what has been shown numbers them so."""
    nothing: dict[str, Any] = {one.name: {} for one in fields(Evidence)} | {"seeds": 2, "protocol": "fixed"}
    asked = conditions(Evidence(**nothing | {"silent": {"sampled": Interval(value=0, low=0, high=0)}}))
    stored_names = [one["name"] for one in four.results["conditions"]]  # without noise as a placebo, which came later
    assert [one.name.split(", ")[0] for one in asked] == [name.split(", ")[0] for name in stored_names]


def test_the_picture_of_the_words_is_drawn_from_the_stored_results(tmp_path):
    draw(words, tmp_path / "learning.svg")
    assert (tmp_path / "learning.svg").read_text() == (ROOT / "studies/words/results/learning.svg").read_text()


def test_the_picture_of_listening_is_drawn_from_the_stored_results(tmp_path):
    draw_listening(played, tmp_path / "self_play.svg")
    assert (tmp_path / "self_play.svg").read_text() == (ROOT / "studies/listen/results/self_play.svg").read_text()


@pytest.mark.parametrize("page", sorted((ROOT / "studies").glob("*/README.md")), ids=lambda page: page.parent.name)
def test_a_study_is_told_in_600_words(page):
    assert len(page.read_text().split()) <= 600


def test_figures_over_four_seeds_are_t_intervals_over_the_means_of_each():
    for mode in MODES:
        for name in ("reward", "talk_score", "worth"):
            of = "talk_scores_of_seeds" if name == "talk_score" else "rewards_of_seeds"
            every = [one for found in (first_seeds, four_seeds) for one in found[of].values()]
            values = [one[mode] - (one[f"{mode}_swapped"] if name == "worth" else 0) for one in every]
            half = 3.182 * stdev(values) / 2
            kept = interval(four_seeds["four_seeds"][mode][name])
            ends = (kept.value, kept.low, kept.high)
            assert ends == pytest.approx((fmean(values), fmean(values) - half, fmean(values) + half), abs=1e-4)
