"""Figures in the documents are those of the stored results.

To add a figure, add to FIGURES the document, its phrase with `{}` in place of each figure, and the stored values.
"""

import json
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from bench.compared import Results, tables
from bench.verdict import verdict
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.metrics.bootstrap import Interval

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
MODES = ("sampled", "greedy")
(
    README, SHOWN, LISTENING, LONGER, SQUARE, APART, FIXED, HONEST, CREDIT, FILTERED, ONLINE, SHY, MEDIATION, GROWTH,
    DIALOP, PARTNERS, PLANNER, CODED, LANGUAGE, PEOPLE,
) = (
    "README.md", "docs/shown.md",
    *(f"docs/results/{name}.md" for name in (
        "listening", "listening-longer", "listening-4x4", "apart", "fixed", "honest", "turn-credit", "filtered",
        "online", "shy", "mediation", "growth", "dialop", "partners", "planner", "coded", "language",
        "people",
    )),
)  # fmt: skip


def stored(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def interval(of: Any) -> Interval:
    return Interval(**of)


class Study:
    """A result of `bench.learn`: figures by player, part, mode and name."""

    def __init__(self, folder: str, name: str = "results") -> None:
        self.results = stored(f"{folder}/{name}.json")

    def of(self, player: str, mode: str, name: str = "reward", part: str = "talking") -> Interval:
        return interval(self.results["players"][player][part][mode][name])

    def both(self, player: str, name: str = "reward", part: str = "talking") -> list[Interval]:
        """Sampled and greedy."""
        return [self.of(player, mode, name, part) for mode in MODES]

    def values(self, player: str, name: str = "reward", part: str = "talking") -> list[float]:
        return [one.value for one in self.both(player, name, part)]

    def lost(self, player: str) -> list[Interval]:
        return [self.of(player, "sampled", f"lost_to_{to}") for to in ("telling", "planning", "agreement")]

    def follows(self, player: str, kind: str = "changed") -> Interval:
        return interval(self.results["players"][player]["listening"][kind]["follows"])


def rise(study: Study, player: str, mode: str, part: str) -> float:
    """The rise of a mean over the warm start's in the same part."""
    return study.of(player, mode, part=part).value - study.of("warm start", mode, part=part).value


def short(one: Interval) -> str:
    """Two digits, as the talk scores have them."""
    return f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]"


SELF, WARM, MUTED, PLACEBO, NOISE = "self-play", "warm start", "muted", "placebo", "noise"
(
    heard, learned, squares, silenced, apart, fixed, honest, longer, four, mediation, planned3, planned4, planned60,
    confirmed, coded, language, people,
) = (
    Study(f"learn_{name}")
    for name in (
        "listening", "listening_longer", "listening4x4", "listening_muted", "apart", "fixed", "honest", "long",
        "apart4", "mediation", "planner3x3", "planner4x4", "planner3x3_longer", "planner3x3_confirmed",
        "coded", "language", "people",
    )
)  # fmt: skip
coded_seeds = [Study("learn_coded", f"seed_{seed}") for seed in (3, 4, 5)]
language_seeds = [Study("learn_language", f"seed_{seed}") for seed in (2, 3)]
cooler_seeds = [Study("learn_people_cooler", f"seed_{seed}") for seed in (2, 3)]
people_seeds = [Study("learn_people", f"seed_{seed}") for seed in (2, 3)]
CODED_PLAYERS = ("the warm start", "self-play", "muted", "placebo", "noise")


def told_true(seed: int, who: str, mode: str) -> float:
    """The share of the cells told in a message that are true in the code."""
    folder = who.removeprefix("the ").replace(" ", "_")
    of = stored(f"learn_coded/told_{seed}.json")["files"]
    counts = of[f"data/learn_coded/evaluations/seed_{seed}/{folder}/{mode}.jsonl"]
    return counts["true"] / counts["told"]


def own_views(folder: str) -> list[str]:
    """How often the own view's plan is proposed, for each seed where it is the best one and where it is not."""
    lines = (RESULTS / "learn_language" / "own_view.md").read_text().splitlines()
    rows = [line for seed in (2, 3) for line in lines if f"/seed_{seed}/{folder}/sampled.jsonl " in line]
    return [cell.strip() for row in rows for cell in row.split("|")[5:7]]


def plan_cells(folder: str, plan: str) -> list[str]:
    """The cells that plans of greedy episodes are made of, as `bench.plan_cells` printed them."""
    lines = (RESULTS / "learn_people" / "plan_cells.md").read_text().splitlines()
    (row,) = [line for line in lines if f"/{folder}/greedy.jsonl | {plan} " in line]
    return [cell.strip() for cell in row.split("|")[3:7]]


def exchange_costs(seed: int, arm: str) -> float:
    """The reward that an arm loses in the exam if the words of the code are exchanged."""
    of = stored(f"learn_coded/exam_{seed}.json")["rewards"][f"data/learn_coded/{arm}/seed_{seed}/iter_28/checkpoint"]
    return of["heard"] - of["exchanged"]


LINES = make_game(load_config("tiny_honest", {"game.protocol": "free"}).game).wordless
SILENCE, PASS, COUNTER = (LINES[name].value for name in ("silence", "pass", "counter"))

tiny, online = (
    stored("learn/results.json"),
    {when: stored(f"online/evaluation_{when}.json") for when in ("before", "after")},
)
larger, shy = stored("learn4x4/results.json"), stored("shy/results.json")["over_seeds"]
partners, free, foreign = (
    stored(f"{name}.json") for name in ("partners/results", "partners_free/results", "partners/foreign")
)
SEEDS = list(tiny["seeds"].values())
TRAINED = [seed["after"]["sampled"]["reward"]["value"] for seed in SEEDS]
PLAYED_ONLINE = {when: one["modes"]["sampled"]["figures"]["reward"]["value"] for when, one in online.items()}
WARM_STARTS = (tiny["before"]["sampled"]["reward"]["value"], 0.829, 0.834, 0.835, PLAYED_ONLINE["before"])
"""Five evaluations of `tiny`'s warm start; those in the middle are not stored, as the documents say."""
BASELINE = fmean(WARM_STARTS)
THOUSANDS = 4.096
"""Episodes of a training."""
MUTED_BEFORE = tiny["before"]["sampled"]["reward"]["value"] - tiny["cost_of_muting_before"]["reward"]["value"]
MUTED_AFTER = fmean(TRAINED) - fmean(seed["cost_of_muting_after"]["reward"]["value"] for seed in SEEDS)


def of_seeds(mode: str, name: str) -> list[Any]:
    """A row of the table on `tiny`: before, after, rise, and the interval of each seed."""
    before = tiny["before"][mode][name]["value"]
    after = fmean(seed["after"][mode][name]["value"] for seed in SEEDS)
    ends = [seed["difference"][mode][name] for seed in SEEDS]
    return [before, after, after - before, "; ".join(f"{end['low']:+.3f} to {end['high']:+.3f}" for end in ends)]


def growth() -> dict[str, list[dict[str, Any]]]:
    """The measurements of `bench.growth` by command, in the order of their sizes."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (RESULTS / "growth" / "growth.jsonl").read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["command"], []).append(row)
    return found


def at_a_million(rows: list[dict[str, Any]], name: str) -> float:
    """By the slope between the two largest sizes."""
    small, large = rows[-2:]
    slope = (large[name] - small[name]) / (large["episodes"] - small["episodes"])
    return float(large[name] + slope * (1_000_000 - large["episodes"]))


SMOLLM2 = stored("gpu/smollm2.json")
PLANNED60, CONFIRMED = (stored(f"learn_planner3x3_{name}/more.json") for name in ("longer", "confirmed"))


def scripted(player: str, name: str) -> Interval:
    return interval(stored(f"scripted/{player}.json")["modes"]["scripted"]["figures"][name])


def expected(name: str) -> float:
    return stored("scripted/own-view.json")["references"][name]["value"]


ROW = "| {:.3f} | {:.3f} | {:+.3f} | {} |"
AGAINST_SILENCE = (
    (LONGER, learned), (SQUARE, squares),
    *((PLANNER, study) for study in (planned3, planned4, planned60, confirmed)),
)  # fmt: skip
"""Studies in which the script of silence played the same states."""
ROWS = [
    ("warm start, reward", WARM, "talking", "", "reward"),
    ("**self-play, reward**", SELF, "talking", "", "reward"),
    ("its rise", SELF, "rise", "+", "reward"),
    ("warm start minus silence", WARM, "over_silence", "+", "reward"),
    ("**self-play minus silence**", SELF, "over_silence", "+", "reward"),
    ("talk score of self-play", SELF, "talking", "", "talk_score"),
    ("self-play, messages swapped, minus silence", SELF, "swapped_over_silence", "+", "reward"),
    ("worth of words, warm start", WARM, "worth", "", "reward"),
    ("**worth of words, self-play**", SELF, "worth", "", "reward"),
    ("muted as trained, minus silence", MUTED, "over_silence", "+", "reward"),
    ("self-play minus muted", MUTED, "below_self_play", "+", "reward"),
    ("worth of words, muted, played with messages", MUTED, "worth", "", "reward"),
    ("placebo, its rise", PLACEBO, "rise", "+", "reward"),
    ("self-play minus placebo", PLACEBO, "below_self_play", "+", "reward"),
    ("noise, its rise", NOISE, "rise", "+", "reward"),
    ("noise, minus silence", NOISE, "over_silence", "+", "reward"),
    ("self-play minus noise", NOISE, "below_self_play", "+", "reward"),
    ("worth of words, noise", NOISE, "worth", "", "reward"),
]
"""Their rows: label, player, part, sign and figure."""
FIGURES: list[tuple[Any, ...]] = [
    (README, "from {:.3f} to {:.3f} sampled and from {:.3f} to {:.3f} greedy",
     *(planned4.of(player, mode).value for mode in MODES for player in (WARM, SELF))),
    (README, "silence is {:.3f}. If one score", planned4.results["references"]["silence"]["value"]),
    (README, "the best plan for the changed score in {} of the cases, and before self-play in {}",
     planned4.follows(SELF), planned4.follows(WARM)),
    (PLANNER, "ends {:.2f} below silence, and its warm start {:.2f} below",
     *(-planned4.of(player, "sampled", part="over_silence").value for player in (MUTED, WARM))),
    (PLANNER, "with swapped messages the reward is {:.3f} below silence",
     -planned4.of(SELF, "sampled", part="swapped_over_silence").value),
    (PLANNER, "{:.3f} of the reward is lost to telling after self-play", planned4.lost(SELF)[0].value),
    (SHOWN, "60 iterations take it from {:.2f} to {} (four seeds)", planned60.of(WARM, "sampled").value,
     interval(CONFIRMED["four_seeds"]["sampled"]["reward"])),
    (PLANNER, "the talk score of seed 4 is {:.3f} sampled and {:.3f} greedy, and that of seed 5 {:.3f} and {:.3f}",
     *(CONFIRMED["talk_scores_of_seeds"][seed][mode] for seed in "45" for mode in MODES)),
    (PLANNER, "the mean talk score is {} sampled and {} greedy, the reward {} and {}, the worth of words {} and {}",
     *(interval(CONFIRMED["four_seeds"][mode][name]) for name in ("talk_score", "reward", "worth") for mode in MODES)),
    (PLANNER, "{:.3f} of the reward to planning, {:.3f} to telling",
     *(confirmed.lost(SELF)[part].value for part in (1, 0))),
    (PLANNER, "each seed ({:.3f} and {:.3f}, {:.3f} and {:.3f}, sampled)",
     *(found for seed in "45" for found in (CONFIRMED["rewards_of_seeds"][seed]["sampled"],
                                            CONFIRMED["controls"]["placebo"][seed]["sampled"]["reward"]))),
    (PLANNER, "agreed in {:.2f} of its sampled episodes; that of seed 4 agreed in {:.3f}",
     *(CONFIRMED["controls"]["placebo"][seed]["sampled"]["agreed"] for seed in "54")),
    (PLANNER, "ends at {:.3f} sampled as it was trained", CONFIRMED["controls"]["muted"]["5"]["sampled"]["reward"]),
    (PLANNER, "it agreed in {:.2f} of the episodes; seed 4 agreed in all",
     CONFIRMED["controls"]["muted, with messages"]["5"]["sampled"]["agreed"]),
    (PLANNER, "it is {:.3f} sampled and {:.3f} greedy. Seed 3 exceeds the goal ({:.3f} and {:.3f}); seed 2 does not "
     "({:.3f} and {:.3f})", *planned60.values(SELF, "talk_score"),
     *(PLANNED60["talk_scores_of_seeds"][seed][mode] for seed in "32" for mode in MODES)),
    (PLANNER, "{:.3f} of the reward, compared with {:.3f} after 28 iterations. Telling costs {:.3f}, compared with "
     "{:.3f}",
     *(study.lost(SELF)[part].value for part in (1, 0) for study in (planned60, planned3))),
    (PLANNER, "is {:.3f} with seed 2 and {:.3f} with seed 3", *(
        found["sampled"] - found["sampled_swapped"] for found in PLANNED60["rewards_of_seeds"].values())),
    (PLANNER, "was {:.2f} to {:.2f} in the first ten iterations, {:.3f} in the 23rd and {:.3f} in the 26th",
     *(choose(PLANNED60["placebo"][:10]) for choose in (min, max)), PLANNED60["placebo"][22], PLANNED60["placebo"][25]),
    *((PLANNER, f"| {size}, {label} | {{heard:.3f}} | {{muted:.3f}} | {{unmarked:.3f}} |".format(**rewards))
      for size in ("4×4", "3×3") for label, rewards in zip(
          ("the warm start", "self-play", "muted", "placebo"),
          stored(f"learn_planner{size.replace('×', 'x')}/exam.json")["rewards"].values(), strict=False)),

    (README, "reward from {:.3f} to {} sampled; silence is {:.3f}", coded.of(WARM, "sampled").value,
     coded.of(SELF, "sampled"), coded.results["references"]["silence"]["value"]),
    (SHOWN, "the reward is {} sampled and {} greedy (three seeds), {:+} above silence", *coded.both(SELF),
     coded.of(SELF, "sampled", part="over_silence")),
    (CODED, "*{}*", coded.results["verdict"]),
    (CODED, "the line itself is {}", interval(coded.results["references"]["silence"])),
    *((CODED, f"| {label} | {{:{sign}}} | {{:{sign}}} |", *coded.both(player, name, part))
      for label, player, part, sign, name in ROWS),
    *((CODED, f"| {label}, {mode} | {{:{sign}}} | {{:{sign}}} | {{:{sign}}} |",
       *(study.of(player, mode, name, part) for study in coded_seeds))
      for label, player, part, sign, name in ROWS for mode in MODES if player in (WARM, SELF) and part != "rise"
      and (part != "talking" or name == "talk_score")),
    *((CODED, f"| {seed}, {who} | {{heard:.3f}} | {{exchanged:.3f}} | {{two_words:.3f}} | {{muted:.3f}} | "
       "{unmarked:.3f} |".format(**of)) for seed in (3, 4, 5) for who, of in zip(
          CODED_PLAYERS, stored(f"learn_coded/exam_{seed}.json")["rewards"].values(), strict=True)),
    (CODED, "the readers reach {:.3f}, {:.3f} and {:.3f}",
     *(stored(f"learn_coded/exam_{seed}.json")["rewards"][f"data/learn_coded/self-play/seed_{seed}/iter_28/checkpoint"][
         "two_words"] for seed in (3, 4, 5))),
    (CODED, "in {:.3f} of its sampled episodes, and its reward is {:+}, {:+} and {:+} from silence",
     coded.of(NOISE, "sampled", "agreed").value,
     *(study.of(NOISE, "sampled", part="over_silence") for study in coded_seeds)),
    (CODED, "rise to silence (by {:.3f} and {:.3f}), and the third, which began farthest below, falls by {:.3f}",
     *(abs(coded_seeds[at].of(NOISE, "sampled", part="rise").value) for at in (1, 2, 0))),
    (CODED, "greedily seeds 4 and 5 gain {:.3f} and {:.3f}, but the start of seed 4 gained {:.3f}",
     *(study.of(NOISE, "greedy", part="worth").value for study in coded_seeds[1:]),
     coded_seeds[1].of(WARM, "greedy", part="worth").value),
    (CODED, "Sampled, its words gain {}, {} and {} there",
     *(study.of(NOISE, "sampled", part="worth") for study in coded_seeds)),
    (CODED, "Exchanged words cost it {:.3f}, {:.3f} and {:.3f} in the exam",
     *(exchange_costs(seed, NOISE) for seed in (3, 4, 5))),
    (CODED, "cost the readers {:.3f}, {:.3f} and {:.3f}.", *(exchange_costs(seed, SELF) for seed in (3, 4, 5))),
    (SHOWN, "self-play is {:+} above it", coded.of(NOISE, "sampled", part="below_self_play")),
    *((CODED, f"| {who} | {{:.2f}} | {{:.2f}} | {{:.2f}} | {{:.2f}} | {{:.2f}} | {{:.2f}} |",
       *(told_true(seed, who, mode) for seed in (3, 4, 5) for mode in MODES)) for who in CODED_PLAYERS),

    (APART, "*{}*", apart.results["verdict"]),
    (APART, "| warm start, talk score | {} | {} |", *map(short, apart.both(WARM, "talk_score"))),
    (APART, "| what muting costs it | {} | {} | | **self-play, talk score** | {} | {} |",
     *apart.both(WARM, part="muting_costs"), *map(short, apart.both(SELF, "talk_score"))),
    (APART, "| its reward | {} | {} | | its rise | {:+} | {:+} | | what muting costs it | {} | {} |",
     *apart.both(SELF), *apart.both(SELF, part="rise"), *apart.both(SELF, part="muting_costs")),
    (APART, "| muted training, as trained | {} | {} |", *apart.both(MUTED, part="muted")),
    (APART, "| self-play minus muted training | {:+} | {:+} |", *apart.both(MUTED, part="below_self_play")),
    (APART, "| placebo, its rise | {:+} | {:+} |", *apart.both(PLACEBO, part="rise")),
    (APART, "| self-play minus placebo | {:+} | {:+} |", *apart.both(PLACEBO, part="below_self_play")),
    *((APART, f"| {label} | {{}} | {{}} | {{}} |", *apart.lost(player)) for label, player in
      (("the warm start", WARM), ("after self-play", SELF), ("after muted training", MUTED))),
    (APART, "by {:.3f} sampled ({:.3f} to {:.3f}) and {:.3f} greedy ({:.3f} to {:.3f})",
     *(figure for mode in MODES for figure in (
         rise(apart, SELF, mode, "muted"), *(apart.of(player, mode, part="muted").value for player in (WARM, SELF))))),
    (APART, "So {:.3f} of the rise of {:.3f}, and {:.3f} of that of {:.3f}, need no messages",
     *(rise(apart, SELF, mode, part) for mode in MODES for part in ("muted", "talking"))),
    (APART, "an episode has {} messages and {} proposals if it is greedy",
     *(apart.of(SELF, "greedy", name) for name in ("messages", "proposals"))),
    (APART, "Sampled play has {} messages and {} proposals",
     *(apart.of(SELF, "sampled", name) for name in ("messages", "proposals"))),
    (APART, "who hears nothing, {:.3f}, is the bound", SILENCE),
    (APART, "takes {:.2f} of what is left above it before self-play, and {:.2f} after it",
     *(apart.of(player, "greedy", "talk_score").value for player in (WARM, SELF))),
    (APART, "a changed message in {} of its proposals, and a swapped one in {}; the warm start in {} and {}",
     *(apart.follows(player, kind) for player in (SELF, WARM) for kind in ("changed", "swapped"))),
    (APART, "the muted training in {} and {}", *(apart.follows(MUTED, kind) for kind in ("changed", "swapped"))),
    (APART, "The mean talk score is {} sampled and {} greedy", *longer.both(SELF, "talk_score")),
    (APART, "the means after 20 iterations, {:.2f} and {:.2f}", *apart.values(SELF, "talk_score")),
    (APART, "{:.3f} of the reward is still lost to planning, {:.3f} to telling",
     *(longer.of(SELF, "sampled", f"lost_to_{to}").value for to in ("planning", "telling"))),
    (APART, "| warm start, reward | {} | {} |", *four.both(WARM)),
    (APART, "| after self-play | {} | {} |", *four.both(SELF)),
    (APART, "| its talk score | {} | {} |", *map(short, four.both(SELF, "talk_score"))),
    (APART, "a changed message in {} of its proposals, {:.3f}", four.follows(SELF), four.follows(WARM).value),

    (FIXED, "silence line is {}", interval(fixed.results["references"]["silence"])),
    (FIXED, "| warm start, reward | {} | {} |", *fixed.both(WARM)),
    (FIXED, "| self-play, reward | {} | {} |", *fixed.both(SELF)),
    (FIXED, "| self-play, messages swapped | {} | {} |", *fixed.both(SELF, part="swapped")),
    (FIXED, "| worth of words, warm start | {} | {} |", *fixed.both(WARM, part="worth")),
    (FIXED, "| worth of words, self-play | {} | {} |", *fixed.both(SELF, part="worth")),
    (FIXED, "| muted as trained, reward | {} | {} |", *fixed.both(MUTED, part="muted")),
    (FIXED, "| self-play minus muted | {:+} | {:+} |", *fixed.both(MUTED, part="below_self_play")),
    (FIXED, "| placebo, its rise | {:+} | {:+} |", *fixed.both(PLACEBO, part="rise")),
    (FIXED, "reaches {} sampled", fixed.of(MUTED, "sampled")),
    (FIXED, "its words are worth {},", fixed.of(MUTED, "sampled", part="worth")),
    (FIXED, "sampled play reaches {:.3f}", fixed.of(SELF, "sampled").low),
    (FIXED, "({:.3f} after four)", fixed.results["curves"][SELF]["5"][1]["rewards"]["sampled"]),
    (LANGUAGE, "*{}*", language.results["verdict"]),
    (LANGUAGE, "the line itself is {}", interval(language.results["references"]["silence"])),
    *((document, f"| {label} |" + f" {{:{sign}}} |" * 4,
       *(seed.of(player, mode, part=part) for seed in seeds for mode in MODES))
      for document, seeds in ((LANGUAGE, language_seeds), (PEOPLE, people_seeds))
      for label, player, part, sign in (
          ("warm start, reward", WARM, "talking", ""), ("warm start, messages muted", WARM, "muted", ""),
          ("**self-play, reward**", SELF, "talking", ""), ("self-play, its rise", SELF, "rise", "+"),
          ("self-play, messages swapped", SELF, "swapped", ""), ("worth of words, warm start", WARM, "worth", ""),
          ("**worth of words, self-play**", SELF, "worth", ""), ("muted as trained, reward", MUTED, "muted", ""),
          ("muted, its rise", MUTED, "rise", "+"), ("self-play minus muted", MUTED, "below_self_play", "+"),
          ("worth of words, muted, played with messages", MUTED, "worth", ""))),
    (LANGUAGE, "| self-play minus silence |" + " {:+} |" * 4,
     *(seed.of(SELF, mode, part="over_silence") for seed in language_seeds for mode in MODES)),
    *((PEOPLE, f"| {label} |" + f" {{:{sign}}} |" * 4,
       *(seed.of(player, mode, part=part) for seed in people_seeds for mode in MODES))
      for label, player, part, sign in (
          ("muted, played with messages, reward", MUTED, "talking", ""), ("placebo, reward", PLACEBO, "talking", ""),
          ("placebo, its rise", PLACEBO, "rise", "+"), ("self-play minus placebo", PLACEBO, "below_self_play", "+"),
          ("worth of words, placebo", PLACEBO, "worth", ""))),
    (PEOPLE, "({:.3f} and {:.3f} of their sampled episodes end with an illegal turn)",
     *(seed.of(PLACEBO, "sampled", "illegal").value for seed in people_seeds)),
    *((LANGUAGE, f"| {label} | {{}} | {{}} | {{}} | {{}} |", *own_views(folder))
      for label, folder in (("warm start", "warm_start"), ("self-play", "self-play"),
                            ("warm start, muted", "warm_start_mute"), ("muted, as trained", "muted_mute"))),
    *((PEOPLE, f"| {label} |" + f" {{:{sign}}} |" * 4,
       *(seed.of(player, mode, figure, part) for seed in cooler_seeds for mode in MODES))
      for label, player, figure, part, sign in (
          ("end of the first phase, reward", WARM, "reward", "talking", ""),
          ("second phase, reward", SELF, "reward", "talking", ""), ("its rise", SELF, "reward", "rise", "+"),
          ("its worth of words", SELF, "reward", "worth", ""),
          ("its messages muted, reward", SELF, "reward", "muted", ""),
          ("illegal actions an episode, before", WARM, "illegal", "talking", ""),
          ("illegal actions an episode, after", SELF, "illegal", "talking", ""))),
    (PEOPLE, "*{}*", people.results["verdict"]),
    *((SHOWN, phrase, *(seed.of(player, "sampled", part=part).value for seed in people_seeds))
      for phrase, player, part in (
          ("reward is {:.3f} and {:.3f} (two seeds)", SELF, "talking"),
          ("instead of {:.3f} and {:.3f};", WARM, "talking"),
          ("words are worth {:.3f} and {:.3f}, and", SELF, "worth"))),
    (PEOPLE, "planning loses {:.3f} and {:.3f} of the reward, telling {:.3f} and {:.3f}",
     *(seed.of(SELF, "sampled", f"lost_to_{to}").value for to in ("planning", "telling") for seed in people_seeds)),
    (PEOPLE, "the other episodes reach {:.3f} and {:.3f}",
     *(seed.of(SELF, "greedy").value / seed.of(SELF, "greedy", "agreed").value for seed in people_seeds)),
    *((PEOPLE, f"| {label}, seed {seed} |" + " {} |" * 4, *plan_cells(f"seed_{seed}/{folder}", "played"))
      for seed in (2, 3)
      for label, folder in (("warm start", "warm_start"), ("self-play", "self-play"),
                            ("muted, as trained", "muted_mute"))),
    *((PEOPLE, f"| {label} |" + " {} |" * 4, *plan_cells("seed_2/self-play", plan))
      for label, plan in (("best plan by the own view, states of self-play, seed 2", "best by the own view"),
                          ("best plan by both views, the same", "best by both views"))),
    *((PEOPLE, f"| {player} | {{}} | {{}} |", *(seed.follows(player, "swapped") for seed in people_seeds))
      for player in (WARM, SELF, MUTED, PLACEBO)),
    (MEDIATION, "*{}*", mediation.results["verdict"]),
    (MEDIATION, "silence line is {}", interval(mediation.results["references"]["silence"])),
    *((MEDIATION, f"| {label} | {{:{sign}}} | {{:{sign}}} |", *mediation.both(player, part=part))
      for label, player, part, sign in (
          ("warm start, reward", WARM, "talking", ""), ("warm start, messages muted", WARM, "muted", ""),
          ("self-play, reward", SELF, "talking", ""), ("self-play, messages swapped", SELF, "swapped", ""),
          ("self-play, its rise", SELF, "rise", "+"), ("worth of words, warm start", WARM, "worth", ""),
          ("worth of words, self-play", SELF, "worth", ""), ("muted as trained, reward", MUTED, "muted", ""),
          ("muted, its rise", MUTED, "rise", "+"), ("self-play minus muted", MUTED, "below_self_play", "+"),
          ("placebo, its rise", PLACEBO, "rise", "+"), ("self-play minus placebo", PLACEBO, "below_self_play", "+"))),
    *((MEDIATION, f"| {label} | {{}} | {{}} |", mediation.follows(player), mediation.follows(player, "swapped"))
      for label, player in (("the warm start", WARM), ("self-play", SELF), ("muted", MUTED), ("placebo", PLACEBO))),
    (LISTENING, "silence line is {}", interval(heard.results["references"]["silence"])),
    (LISTENING, "*{}*", heard.results["verdict"]),
    *((LISTENING, f"| {label} | {{}} | {{}} |", *heard.both(player, part=part)) for label, player, part in (
        ("warm start, reward", WARM, "talking"), ("**self-play, reward**", SELF, "talking"),
        ("self-play, messages swapped", SELF, "swapped"), ("worth of words, warm start", WARM, "worth"),
        ("**worth of words, self-play**", SELF, "worth"), ("muted as trained, reward", MUTED, "muted"),
        ("muted, played with messages", MUTED, "talking"),
        ("worth of words, muted, played with messages", MUTED, "worth"))),
    *((LISTENING, f"| {label} | {{:+}} | {{:+}} |", *heard.both(player, part=part)) for label, player, part in (
        ("its rise", SELF, "rise"), ("self-play minus muted", MUTED, "below_self_play"),
        ("placebo, its rise", PLACEBO, "rise"), ("self-play minus placebo", PLACEBO, "below_self_play"))),
    *((LISTENING, f"| {label} | {{}} | {{}} |", heard.follows(player), heard.follows(player, "swapped"))
      for label, player in (("self-play", SELF), ("muted", MUTED), ("placebo", PLACEBO), ("the warm start", WARM))),
    (LISTENING, "below silence when muted** ({} sampled)", heard.of(WARM, "sampled", part="muted")),
    *((document, "itself is {}", interval(study.results["references"]["silence"]))
      for document, study in AGAINST_SILENCE),
    *((document, "*{}*", study.results["verdict"]) for document, study in AGAINST_SILENCE),
    *((document, f"| {label} | {{:{sign}}} | {{:{sign}}} |", *study.both(player, name, part))
      for document, study in AGAINST_SILENCE
      for label, player, part, sign, name in ROWS if player in study.results["players"]),
    *((document, f"| {label} | {{}} | {{}} |", study.follows(player), study.follows(player, "swapped"))
      for document, study in AGAINST_SILENCE
      for label, player in (("self-play", SELF), ("muted", MUTED), ("placebo", PLACEBO), ("the warm start", WARM))
      if player in study.results["players"]),
    *((LONGER, f"| {label} | {{:{sign}}} | {{:{sign}}} |", *silenced.both(player, part=part))
      for label, player, part, sign in (
          ("muted as trained, minus silence", MUTED, "over_silence", "+"), ("its rise as trained", MUTED, "rise", "+"),
          ("reward, played with messages", MUTED, "talking", ""),
          ("worth of words, played with messages", MUTED, "worth", ""),
          ("reward, `data/tiny_silent_model`, with messages", WARM, "talking", ""),
          ("minus silence, `data/tiny_silent_model`, with messages", WARM, "over_silence", "+"),
          ("worth of words, `data/tiny_silent_model`", WARM, "worth", ""))),
    (SHOWN, "[{:.3f} with messages]", silenced.of(MUTED, "sampled").value),
    (LONGER, "{:.3f} of 0.092 is lost to planning", learned.lost(SELF)[1].value),
    *((PARTNERS, f"| {arm} | {{}} | {{:+}} | {{:+}} | {{}} | {{:+}} |",
       *(interval(of[name]) for name in ("own", "over_silence", "worth", "with_seeds", "cross_seed")))
      for arm, of in partners["arms"].items()),
    (PARTNERS, "| warm start | {} | {:+} | {:+} |",
     *(interval(partners["warm_start"][name]) for name in ("own", "over_silence", "worth"))),
    *((PARTNERS, f"| {arm}, free | {{}} | {{:+}} | {{:+}} | {{}} | {{:+}} |",
       *(interval(of[name]) for name in ("own", "over_silence", "worth", "with_seeds", "cross_seed")))
      for arm, of in free["arms"].items()),
    *((PARTNERS, f"| {arm} | {{:.2f}} | {{:+}} | {{:+}} | {{:+}} | {{:+}} |",
       of["training"]["rows"] / partners["arms"][SELF]["training"]["rows"],
       *(interval(of[f"{name}_minus"]) for name in ("own", "worth", "with_seeds", "with_scripts")))
      for arm, of in partners["arms"].items() if arm != SELF),
    *((PARTNERS, f"| {arm} | {{:.3f}} | {{:.3f}} | {{:.3f}} | {{:.3f}}, {{:.3f}}, {{:.3f}} | {{:.3f}} |",
       fmean(row[4] for row in means[:3]), fmean(row[3] for row in means[:3]), fmean(means[4][:3]), *means[3][:3],
       fmean(means[seed][seed] for seed in range(3)))
      for arm, means in partners["means"].items()),
    ("docs/partners.md", "rose by {}, and that with the foreign player went from {:.3f} to {:.3f}, a rise of {}.",
     interval(foreign["rises"]["own"]),
     *(foreign["evaluations"][at]["held_out_foreign"]["value"] for at in (0, -1)),
     interval(foreign["rises"]["foreign"])),
    (SHOWN, "rises from {:.3f} to {} sampled (three seeds)",
     planned4.of(WARM, "sampled").value, planned4.of(SELF, "sampled")),
    (SHOWN, "{:.3f} of the proposals follow it, and before {:.3f}",
     planned4.follows(SELF).value, planned4.follows(WARM).value),
    (SHOWN, "untrained, and reaches {:.3f}",
     next(iter(stored("learn_planner4x4/exam.json")["rewards"].values()))["unmarked"]),
    (SHOWN, "worth {} sampled and {} greedy", *learned.both(SELF, part="worth")),
    (SHOWN, "they are worth {} and {}.", *learned.both(MUTED, part="worth")),
    (SHOWN, "{} of the proposals follow it, and {} before", learned.follows(SELF), learned.follows(WARM)),
    (SHOWN, "rises from {:.3f} to {} sampled", learned.of(WARM, "sampled").value, learned.of(SELF, "sampled")),
    (SHOWN, "{:+} above silence on the same states", learned.of(SELF, "sampled", part="over_silence")),
    (SHOWN, "ends {:.3f} below silence", -learned.of(MUTED, "sampled", part="over_silence").value),

    (HONEST, "| warm start, talk score | {} | {} |", *map(short, honest.both(WARM, "talk_score"))),
    (HONEST, "| self-play, talk score | {} | {} |", *map(short, honest.both(SELF, "talk_score"))),
    (HONEST, "| self-play, reward | {} | {} |", *honest.both(SELF)),
    (HONEST, "| its rise | {:+} | {:+} |", *honest.both(SELF, part="rise")),
    (HONEST, "| muted as trained, reward | {} | {} |", *honest.both(MUTED, part="muted")),
    (HONEST, "| self-play minus muted | {:+} | {:+} |", *honest.both(MUTED, part="below_self_play")),
    (HONEST, "above its muted training by {:+}", honest.of(MUTED, "sampled", part="below_self_play")),
    (HONEST, "| placebo, its rise | {:+} | {:+} |", *honest.both(PLACEBO, part="rise")),
    (HONEST, "| imitation continued, its rise | {:+} | {:+} |", *honest.both("imitation", part="rise")),
    (HONEST, "| what muting costs self-play | {} | {} |", *honest.both(SELF, part="muting_costs")),
    *((HONEST, f"| {label} | {{}} | {{}} |", honest.follows(player), honest.follows(player, "swapped"))
      for label, player in (("self-play, 20 iterations", SELF), ("muted", MUTED), ("placebo", PLACEBO),
                            ("imitation of the deaf teacher", "imitation"), ("the warm start", WARM))),

    *((CREDIT, f"| reward, {mode} | {{}} | {{}} |", apart.of(SELF, mode), apart.of("credit", mode)) for mode in MODES),
    *((CREDIT, f"| talk score, {mode} | {{}} | {{}} |",
       *(short(apart.of(player, mode, "talk_score")) for player in (SELF, "credit"))) for mode in MODES),
    (CREDIT, "| lost to planning | {} | {} |",
     *(apart.of(player, "sampled", "lost_to_planning") for player in (SELF, "credit"))),
    (CREDIT, "| follows a changed message | {} | {} |", apart.follows(SELF), apart.follows("credit")),

    ("docs/what-talk-is-worth.md", "with {:.3f} and {:.3f} messages and {:.3f} proposals an episode",
     apart.of(SELF, "greedy", "messages").value, honest.of(SELF, "greedy", "messages").value,
     apart.of(SELF, "greedy", "proposals").value),
    ("docs/what-talk-is-worth.md", "sampled self-play does not always ({:.3f} and {:.3f} messages)",
     *(study.of(SELF, "sampled", "messages").value for study in (apart, honest))),

    (FILTERED, "mean of five evaluations before | {:.3f} | {:.3f} | {:+.3f} |",
     BASELINE, fmean(TRAINED), fmean(TRAINED) - BASELINE),
    *((FILTERED, f"| {label} {ROW}", *of_seeds(mode, name)) for label, mode, name in (
        ("… the first evaluation before", "sampled", "reward"),
        ("… given agreement", "sampled", "reward_if_agreed"), ("**greedy reward**", "greedy", "reward"),
        ("optimal matchings, sampled", "sampled", "optimal"), ("optimal matchings, greedy", "greedy", "optimal"))),
    (FILTERED, "the warm start reaches {:.3f} and the trained policies {:.3f} on average: {:.3f} of the rise of {:.3f}",
     MUTED_BEFORE, MUTED_AFTER, MUTED_AFTER - MUTED_BEFORE, fmean(TRAINED) - BASELINE),

    (FILTERED, "sampled reward is {:.3f} → {:.3f} ({:+}), greedy {:.3f} → {:.3f} ({:+})",
     *(figure for mode in MODES for figure in (
         larger["before"][mode]["reward"]["value"], larger["seeds"]["1"]["after"][mode]["reward"]["value"],
         interval(larger["seeds"]["1"]["difference"][mode]["reward"])))),

    (SHY, "| **above a coin that asks as often**, sampled | {} | **{:+}** |",
     *(interval(shy["above_coin"][player]["sampled"]) for player in ("warm start", "trained"))),

    (ONLINE, "five gave {:.3f}, {:.3f}, {:.3f}, {:.3f} and {:.3f}", *WARM_STARTS),
    (ONLINE, "| sampled reward, warm start → trained | {:.3f} → {:.3f}, {:.3f}, {:.3f} | {:.3f} → {:.3f} |",
     BASELINE, *TRAINED, BASELINE, PLAYED_ONLINE["after"]),
    (ONLINE, "per 1000 episodes | {:.3f} on average | {:.3f} |",
     (fmean(TRAINED) - BASELINE) / THOUSANDS, (PLAYED_ONLINE["after"] - BASELINE) / THOUSANDS),
    (ONLINE, "it is {:.3f} against {:.3f}", (fmean(TRAINED) - WARM_STARTS[0]) / THOUSANDS,
     (PLAYED_ONLINE["after"] - PLAYED_ONLINE["before"]) / THOUSANDS),

    *(("docs/results/silence.md", f"| `{player}` | {{}} |", scripted(player, "reward"))
      for player in ("random", "own-view")),
    ("docs/results/silence.md", "| {:.3f} | | `own-view`", expected("random")),
    ("docs/results/silence.md", "{:.1f} % | {:.3f} | | `sharing`", 100 * scripted("own-view", "optimal").value,
     expected("own_view")),
    ("docs/results/silence.md", "| `sharing` | {0.value:.5f} [{0.low:.5f}, {0.high:.5f}] | {1:.1f} % |",
     scripted("sharing", "reward"), 100 * scripted("sharing", "optimal").value),

    *(("docs/results/tried.md", "| {}, seed {} | {} | {} | {:.2f} |", "muted" if "muted" in name else "with messages",
       name[-1], *(interval(run["evaluate"][figure]) for figure in ("held_out_reward", "held_out_greedy_reward")),
       1 - run["generate"]["groups_without_signal"] / run["generate"]["groups"])
      for name, run in SMOLLM2["runs"].items()),
    ("docs/results/tried.md", "{:.3f} of {:,} episodes agreed",
     fmean(run["generate"]["agreement_rate"] for run in SMOLLM2["runs"].values()),
     sum(run["generate"]["episodes"] for run in SMOLLM2["runs"].values())),
    *(("docs/results/gpu.md", phrase, *(choose(run[stage]["seconds"] for run in SMOLLM2["runs"].values())
                                        for choose in (min, max)))
      for phrase, stage in (("{:.0f} to {:.0f} s for 400", "evaluate"), ("{:.0f} to {:.0f} s for 3,072", "generate"))),
    ("docs/results/gpu.md", "held at most {:,} MiB", SMOLLM2["highest_memory_mib"]),

    *((GROWTH, "| `{command}` | {episodes:,} | {seconds} | {processor} | {peak_mb} |".format(**row))
      for rows in growth().values() for row in rows),
    *((GROWTH, "| `{}` | {:,.0f} | {:,.0f} |", name, *(at_a_million(rows, what) for what in ("processor", "peak_mb")))
      for name, rows in growth().items()),

    *((DIALOP, f"| {player} | {{}} | {{}} |", *map(interval, rewards)) for player, rewards in zip(
        ("the model", "`sharing`"), stored("dialop/crossplay_mediation.json")["rewards"], strict=True)),
    (DIALOP, "its agent reaches {} sampled and {} greedy",
     *(interval(stored("dialop/agent_mediation.json")["modes"][mode]["figures"]["reward"]) for mode in MODES)),
    *((found, " ".join(line.split()))
      for found, file in (("docs/results/textarena.md", "textarena/table.md"), (DIALOP, "dialop/table.md"),
                          (PEOPLE, "learn_people/people.md"))
      for line in (RESULTS / file).read_text().splitlines() if line),
]  # fmt: skip
COMMANDS = [
    (HONEST, "learn_honest"), (APART, "learn_long"), (APART, "learn_apart4"), (CREDIT, "learn_apart"),
    (MEDIATION, "learn_mediation"), (FILTERED, "learn"), (LISTENING, "learn_listening"),
    (LONGER, "learn_listening_longer"), (SQUARE, "learn_listening4x4"),
    (PLANNER, "learn_planner3x3"), (PLANNER, "learn_planner4x4"), (CODED, "learn_coded"),
    (PLANNER, "learn_planner3x3_longer"), (PLANNER, "learn_planner3x3_confirmed"),
    (LONGER, "learn_listening_muted"), (PARTNERS, "partners"), (PARTNERS, "partners_free"),
    (SHY, "shy"), (LANGUAGE, "learn_language"), (PEOPLE, "learn_people"), (PEOPLE, "learn_people_cooler"),
    ("docs/results/race.md", "race/tiny"),
]  # fmt: skip
"""Documents, and folders of results that record their command."""


def plain(text: str) -> str:
    return " ".join(text.split())


def page(document: str) -> str:
    return plain((ROOT / document).read_text())


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


@pytest.mark.parametrize(("document", "folder"), COMMANDS)
def test_a_document_gives_the_stored_command(document, folder):
    command = re.sub(r" --output /\S+", "", stored(f"{folder}/results.json")["command"])
    assert command in page(document)


@pytest.mark.parametrize("study", sorted(file.parent.name for file in RESULTS.glob("learn_*/table.md")))
def test_the_table_of_a_study_and_its_verdict_are_those_of_the_stored_results(study):
    results = Results.model_validate(stored(f"{study}/results.json"))
    assert (RESULTS / study / "table.md").read_text() == tables(results)
    assert results.verdict == verdict(results.conditions)


def test_online_and_offline_training_change_places_with_the_baseline():
    rises = [(fmean(TRAINED) - base, PLAYED_ONLINE["after"] - base) for base in (BASELINE, *WARM_STARTS)]
    assert all(offline < while_playing for offline, while_playing in rises)
    assert fmean(TRAINED) - WARM_STARTS[0] > PLAYED_ONLINE["after"] - WARM_STARTS[-1], "with a baseline for each"


def test_figures_over_four_seeds_are_t_intervals_over_the_means_of_each():
    for mode in MODES:
        for name in ("reward", "talk_score", "worth"):
            of = "talk_scores_of_seeds" if name == "talk_score" else "rewards_of_seeds"
            every = [one for found in (PLANNED60, CONFIRMED) for one in found[of].values()]
            values = [one[mode] - (one[f"{mode}_swapped"] if name == "worth" else 0) for one in every]
            half = 3.182 * stdev(values) / 2
            kept = interval(CONFIRMED["four_seeds"][mode][name])
            ends = (kept.value, kept.low, kept.high)
            assert ends == pytest.approx((fmean(values), fmean(values) - half, fmean(values) + half), abs=1e-4)
