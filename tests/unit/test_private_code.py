"""The alarm of a private code: own reward that rises while the reward with a foreign player falls."""

import asyncio
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from command import selfplay
from factories import FINISHED, by_name
from test_conclusion import about, evaluated
from test_partner_shares import loop_in, mixture

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.evaluate.run import EvaluationJob, rises_over, run_evaluate
from selfplay_pipeline.evaluate.states import sample_held_out
from selfplay_pipeline.games.matching.game import SCRIPTED
from selfplay_pipeline.games.matching.scripted import PlayerView, Sharing
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.summary import Played
from selfplay_pipeline.iterate.conclusion import conclusion
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord
from selfplay_pipeline.iterate.held_out import FOREIGN_REWARD, FOREIGN_RISE, REWARD_RISE, Evaluated
from selfplay_pipeline.iterate.history import Iteration, collapse_reason, in_words, private_code
from selfplay_pipeline.iterate.partners import at_once
from selfplay_pipeline.iterate.preflight import check_run
from selfplay_pipeline.iterate.results import Trained, known
from selfplay_pipeline.iterate.table import run_table
from selfplay_pipeline.metrics.bootstrap import Interval


def foreign(reward: float, rise: float | None = None) -> dict:
    return {"reward": about(reward)} | ({} if rise is None else {"rise": about(rise)})


def history(*rises: tuple[float, float] | None) -> list[Iteration]:
    """A run with an evaluation before it and after each iteration, by the rises with itself and with the foreign
    player; None for an iteration without an evaluation."""
    found = [evaluated(0.8, 0.8, held_out_foreign=foreign(0.8))]
    for number, both in enumerate(rises, start=1):
        one = Iteration(number)
        if both is not None:
            own, other = both
            one = evaluated(0.8 + own, 0.8, (own, 0.0), held_out_foreign=foreign(0.8 + other, other))
        found.append(replace(one, number=number))
        found[-1].played, found[-1].trained = Played(**FINISHED["generate"]), Trained(**FINISHED["train"])
    return found


@pytest.mark.parametrize(
    ("rises", "alarms"),
    [
        ([(0.1, -0.1)] * 2, True), ([(0.1, -0.1), None, (0.1, -0.1)], True),
        ([(0.0, 0.0)] * 9 + [(0.1, -0.1)] * 2, True),
        ([(0.1, -0.1)], False), ([(0.1, -0.1), (0.1, 0.0)], False), ([(0.1, -0.1), None], False),
        ([(0.1, -0.1)] * 2 + [None], False),  # said once
        ([(0.1, -0.01)] * 20, False), ([(0.01, -0.1)] * 20, False), ([(0.1, 0.05)] * 20, False),
        ([(-0.1, -0.1)] * 20, False), ([(0.1, -0.1), (0.1, 0.1)] * 10, False),
    ],
)  # fmt: skip
def test_the_rule_is_a_rise_and_a_fall_in_two_evaluations_in_a_row(rises, alarms):
    run = history(*rises)
    (sign,) = private_code(run) or [""]
    assert bool(sign) == alarms
    assert ("a private code" in (collapse_reason(run) or "")) == alarms
    assert ("After the last evaluation there is a sign of a private code" in " ".join(conclusion(run))) == alarms
    if alarms:
        assert sign == (
            "a private code: the reward rose by +0.100 [+0.080, +0.120], and with the foreign player by "
            "-0.100 [-0.120, -0.080]"
        )


def errors_of_evaluations(correlation: float, runs: int) -> np.ndarray:
    """Errors of the first evaluation and 20 further ones of each run: a stationary first-order autoregression."""
    errors = np.random.default_rng(0).normal(size=(21, runs))
    for before, one in pairwise(errors):
        one[:] = correlation * before + np.sqrt(1 - correlation**2) * one
    return errors.T


@pytest.mark.long
@pytest.mark.parametrize(("correlation", "alarms"), [(0.0, 0.04), (0.8, 0.08)])
def test_false_alarms_of_runs_that_learn_are_as_frequent_as_the_page_says(correlation, alarms):
    """The reward with the foreign player stays the same. The seed is fixed, so this cannot fail by chance."""
    (before, first), runs = history((0.1, 0.0)), 3000
    assert before.evaluated and first.evaluated and first.evaluated.interval(FOREIGN_RISE)
    width = 1.96 * np.sqrt(2 * (1 - correlation ** np.arange(1, 21)))
    once = twice = 0
    for errors in errors_of_evaluations(correlation, runs):
        rises = errors[1:] - errors[0]
        once += bool((rises < -width).any())
        run = [before]
        for rise, half in zip(rises, width, strict=True):
            interval = Interval(value=rise, low=rise - half, high=rise + half)
            figures = first.evaluated.figures | {FOREIGN_RISE.name: interval}
            evaluation = first.evaluated.model_copy(update={"figures": figures})
            run.append(Iteration(len(run), evaluated=evaluation))
            if private_code(run):
                twice += 1
                break
    assert twice / runs == pytest.approx(alarms, abs=0.015)
    assert correlation or once / runs == pytest.approx(0.21, abs=0.02)


def test_a_run_without_a_foreign_player_has_no_alarm_and_no_such_figure():
    run = [evaluated(0.8, 0.8), *(evaluated(0.9, 0.9, (0.1, 0.1)) for _ in range(2))]
    assert private_code(run) == [] and "held_out_foreign" not in run[0].to_line()
    assert "foreign" not in in_words(run[-1])


def test_the_figure_is_in_the_table_the_line_and_the_conclusion(tmp_path):
    run = RunDirectory(tmp_path)
    for number, one in enumerate(history((0.1, -0.1), (0.1, -0.1))):
        assert one.evaluated is not None
        stages = (FINISHED if number else {}) | {"evaluate": one.evaluated.model_dump(mode="json")}
        for stage in ("generate", "train", "evaluate"):
            if stage in stages:
                run.finish(number, stage, StageRecord(seconds=1.0, figures=stages[stage]))
    heads = [str(column.header) for column in run_table(run).columns]
    assert "\nforeign" in heads
    assert [*run_table(run).columns[heads.index("\nforeign")].cells] == ["0.800", "0.700", "0.700"]
    fell = "On held-out states the reward with the foreign player fell: sampled -0.100 [-0.120, -0.080]."
    assert fell in conclusion(history((0.1, -0.1), (0.1, -0.1)))
    assert "with the foreign player 0.700" in in_words(history((0.1, -0.1))[-1])


# --- played ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forgetful(Sharing):
    """Tells two of its cells."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        text = super().act(view, rng)
        return " ".join(text.split()[:7]) if text.startswith("[message]") else text


@dataclass(frozen=True)
class Permuted(Sharing):
    """Names of papers in its messages are those of the next paper, and it reads the partner's in the same way."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        titles = [paper.partition(":")[0] for paper in view.papers]
        to_next = dict(pairwise([*titles, titles[0]]))
        back = {name: paper for paper, name in to_next.items()}
        heard = tuple(
            (seat, renamed(text, back) if seat != view.seat else text) for seat, text in view.history
        )  # fmt: skip
        text = super().act(replace(view, history=heard), rng)
        return renamed(text, to_next)


def renamed(text: str, names: dict[str, str]) -> str:
    if not text.startswith("[message]"):
        return text
    return " ".join(names.get(word, word) for word in text.split())


def evaluations(names: list[str], folder: Path) -> list[Iteration]:
    """Returns a run whose policy is each of the scripts in turn, evaluated with itself and with `sharing`."""
    config = load_config("tiny_honest", {})
    states = sample_held_out(config, 60)

    def job(number: int, partner: str) -> EvaluationJob:
        return EvaluationJob(names[number], states, folder / f"{number}-{partner}", partner=partner, episodes=1)

    def against_first(number: int, partner: str) -> dict:
        found = asyncio.run(run_evaluate(config, job(number, partner))).modes["scripted"].figures["reward"]
        rise = rises_over(config, job(number, partner), job(0, partner).output)["scripted"] if number else None
        return {"reward": found, "rise": rise and rise.reward}

    history = []
    for number, _ in enumerate(names):
        own, other = against_first(number, "self"), against_first(number, "sharing")
        rises = {"held_out_rises": {"sampled": {"reward": own["rise"]}}} if number else {}
        both = {"held_out_reward": own["reward"], "held_out_greedy_reward": own["reward"], "held_out_foreign": other}
        figures = {name: value for name, value in by_name(both | rises).items() if value is not None}
        history.append(Iteration(number, evaluated=Evaluated(checkpoint="c", figures=figures)))
    return history


@pytest.mark.long
@pytest.mark.parametrize(("later", "alarms"), [("permuted", True), ("sharing", False)])
def test_a_script_that_permutes_names_sets_it_off_and_one_that_learns_to_share_does_not(
    later, alarms, tmp_path, monkeypatch
):
    monkeypatch.setitem(SCRIPTED, "forgetful", Forgetful())
    monkeypatch.setitem(SCRIPTED, "permuted", Permuted())
    run = evaluations(["forgetful", later, later], tmp_path)
    own, other = map(run[-1].evaluated.interval, (REWARD_RISE["sampled"], FOREIGN_RISE))
    assert own.low > 0, "both are better with themselves than the one that forgets"
    assert (other.high < 0) == alarms
    assert bool(private_code(run)) == alarms


def test_a_foreign_checkpoint_has_a_server_and_an_unknown_one_is_refused():
    assert at_once(mixture([], **{"iterate.foreign": "sharing"})) == 1
    assert at_once(mixture([], **{"iterate.foreign": "data/tiny_honest_model"})) == 2
    with pytest.raises(UserError, match="no scripted player or checkpoint 'nobody'"):
        check_run(mixture([], **{"iterate.foreign": "nobody"}))


def test_an_evaluation_plays_the_foreign_player_in_each_seat(tmp_path):
    loop = loop_in(tmp_path / "run", mixture([], **{"iterate.foreign": "sharing", "evaluate.monitor_states": 5}))
    asyncio.run(loop._stage(0, "evaluate", loop._checkpoint(0, "evaluate")))
    found = loop.run.state.evaluated(0)
    assert found is not None and found.interval(FOREIGN_RISE) is None
    records = [*read_episodes(tmp_path / "run" / "iter_0" / "foreign" / "sampled.jsonl")]
    assert sorted(record.partners for record in records) == ["0: sharing"] * 5 + ["1: sharing"] * 5
    rewards = [record.outcome.normalized_reward for record in records]
    assert found.interval(FOREIGN_REWARD).value == pytest.approx(np.mean(rewards))


def test_a_policy_that_is_the_foreign_player_takes_each_seat_in_turn_as_later_ones_do(tmp_path):
    """With rewards of their own, the first seat's alone is another one than the mean of both."""
    config = load_config("tiny_bargaining", {"game.reward": "selfish"})
    states = sample_held_out(config, 40)

    def job(name: str) -> EvaluationJob:
        return EvaluationJob(
            "proposing", states, tmp_path / name, partner="proposing", episodes=1, in_turn=name == "in turn"
        )

    found = {name: asyncio.run(run_evaluate(config, job(name))).modes["scripted"] for name in ("in turn", "self")}
    assert (found["in turn"].episodes, found["self"].episodes) == (80, 40)
    assert found["in turn"].figures["reward"].value == pytest.approx(found["self"].figures["reward"].value)
    rise = rises_over(config, job("in turn"), job("in turn").output)["scripted"].reward
    assert (rise.value, rise.low, rise.high) == (0, 0, 0), "the same player does not rise"


def test_an_evaluation_of_which_too_few_states_are_left_is_one_line_and_not_a_traceback():
    with pytest.raises(EngineError, match="fewer than two held-out states are left"):
        known(Interval(value=0.7, low=None, high=None))


def test_a_foreign_player_is_played_in_the_seat_of_the_own_reward(tmp_path):
    options = {"iterate.partner": "speaking", "iterate.seat": 1, "iterate.foreign": "sharing"}
    loop = loop_in(tmp_path / "run", mixture([], **options, **{"evaluate.monitor_states": 5}))
    asyncio.run(loop._stage(0, "evaluate", loop._checkpoint(0, "evaluate")))
    records = [*read_episodes(tmp_path / "run" / "iter_0" / "foreign" / "sampled.jsonl")]
    assert [record.partners for record in records] == ["0: sharing"] * 5


def test_a_foreign_player_that_never_plays_is_refused_with_both_options():
    keys = "--set iterate.foreign=sharing --set iterate.evaluate_every=0"
    done = selfplay(*f"iterate --config tiny {keys} --dry-run".split())
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert "--set iterate.foreign and --set iterate.evaluate_every: " in done.stderr
    assert "foreign: sharing plays in evaluations, and evaluate_every: 0 makes none" in done.stderr
    with pytest.raises(UserError, match=r"iterate\.foreign: String should have at least 1 character"):
        load_config("tiny", {"iterate.foreign": ""})
