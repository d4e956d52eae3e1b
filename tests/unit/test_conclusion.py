"""The verdict at the end of `iterate`: what the held-out evaluations of a run show, and what they do not."""

import asyncio
import io
import json
from dataclasses import replace

import pytest
from factories import FINISHED, by_name, words_worth
from rich.console import Console

from selfplay_pipeline.cli.show.iterate import show_run
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.evaluate.run import EvaluationJob, rewards_of, rises_over, run_evaluate, totals_of
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.evaluate.worth_of_words import Rise
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.iterate.conclusion import conclusion
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord, describe
from selfplay_pipeline.iterate.held_out import Evaluated
from selfplay_pipeline.iterate.history import Iteration, history_of
from selfplay_pipeline.iterate.table import run_table
from selfplay_pipeline.metrics.bootstrap import Interval, contrast
from selfplay_pipeline.report.charts import charts_of
from selfplay_pipeline.report.page import render
from selfplay_pipeline.report.sources import discover

SILENCE = {"wordless": {"silence": {"value": 0.84, "low": 0.838, "high": 0.842}}}
ONE_RUN = (
    "One run cannot show that the policy learned by talking: it has one seed and no control that hears no messages. "
    "The intervals in brackets (95 %) cover other states, not other seeds. `make learn` trains several seeds and "
    "the controls."
)


def about(value: float, width: float = 0.02) -> dict[str, float]:
    return {"value": value, "low": value - width, "high": value + width}


def evaluated(
    sampled: float, greedy: float, rises: tuple[float, float] = (), worth: tuple[float, float] = (), *,
    worth_rises: tuple[float, float] = (), fixed: bool = False, **more,
) -> Iteration:  # fmt: skip
    """An evaluation by its means; each interval is as wide as its mean ± 0.02."""
    modes = ("sampled", "greedy")
    figures = {"held_out_reward": about(sampled), "held_out_greedy_reward": about(greedy)}
    figures |= SILENCE | {"held_out_talk_score": about(0.1)} if fixed else {}
    if worth:
        figures["held_out_words"] = {mode: words_worth(**about(one)) for mode, one in zip(modes, worth, strict=True)}
    if rises:
        figures["held_out_rises"] = {
            mode: {"reward": about(rise)} | ({"worth": about(worth_rises[at])} if worth_rises else {})
            for at, (mode, rise) in enumerate(zip(modes, rises, strict=True))
        }
    return Iteration(0, evaluated=Evaluated(checkpoint="c", figures=by_name(figures | more)))


def said(*history: Iteration) -> list[str]:
    return conclusion(list(history))


SHOWN, MISSING, NOTHING = "On held-out states ", "It is not shown that ", "Nothing is shown on held-out states."
SILENCE_LINE = "the reward is above the silence line (0.840, the best that play without words reaches on average)"


@pytest.mark.parametrize(
    ("rises", "sentences"),
    [
        ((0.1, 0.01), [f"{SHOWN}the reward rose: sampled +0.100 [+0.080, +0.120].",
                       f"{MISSING}the reward rose: greedy +0.010 [-0.010, +0.030]."]),
        ((-0.1, 0.1), [f"{SHOWN}the reward fell: sampled -0.100 [-0.120, -0.080].",
                       f"{SHOWN}the reward rose: greedy +0.100 [+0.080, +0.120]."]),
        ((0.1, 0.1), [f"{SHOWN}the reward rose: sampled +0.100 [+0.080, +0.120], greedy +0.100 [+0.080, +0.120]."]),
        ((), [NOTHING, f"{MISSING}the reward rose: not measured."]),
    ],
    ids=["above zero in one mode", "a fall is no missing rise", "above zero in both modes", "not measured"],
)  # fmt: skip
def test_a_rise_or_fall_is_shown_by_the_modes_whose_interval_leaves_zero_out(rises, sentences):
    assert said(evaluated(0.7, 0.8), evaluated(0.8, 0.81, rises)) == [*sentences, ONE_RUN]


def test_in_the_fixed_protocol_the_last_reward_is_compared_with_silence_in_the_line_s_own_error():
    rose = (0.1, 0.1)
    _, shown, missing, last = said(evaluated(0.7, 0.7, fixed=True), evaluated(0.9, 0.861, rose, fixed=True))
    assert shown == f"{SHOWN}{SILENCE_LINE}: sampled 0.900 [0.880, 0.920]."
    assert missing == f"{MISSING}the reward is above the silence line: greedy 0.861 [0.841, 0.881]."
    assert last == ONE_RUN


def test_silence_is_explained_once_also_where_nothing_is_shown():
    nothing, rise, silence, last = said(evaluated(0.7, 0.7, fixed=True), evaluated(0.7, 0.7, (0.0, 0.0), fixed=True))
    assert nothing == NOTHING and last == ONE_RUN
    assert rise == f"{MISSING}the reward rose: sampled +0.000 [-0.020, +0.020], greedy +0.000 [-0.020, +0.020]."
    assert silence == f"{MISSING}{SILENCE_LINE}: sampled 0.700 [0.680, 0.720], greedy 0.700 [0.680, 0.720]."


def test_in_free_play_silence_is_no_bound_and_actions_tell():
    first, last = said(evaluated(0.7, 0.7, **SILENCE), evaluated(0.9, 0.9, (0.1, 0.1), **SILENCE))
    assert "silence" not in first and "and in free play actions tell too. " in last


def test_the_worth_of_words_is_compared_with_zero_and_with_the_start():
    start = evaluated(0.7, 0.7, worth=(0.0, 0.0), fixed=True)
    last = evaluated(0.9, 0.9, (0.1, 0.1), (0.1, 0.01), worth_rises=(0.1, 0.01), fixed=True)
    _, _, *worth, _ = said(start, last)
    assert worth == [
        f"{SHOWN}the reward falls when messages are swapped: sampled 0.100 [0.080, 0.120].",
        f"{SHOWN}the worth of words rose: sampled +0.100 [+0.080, +0.120].",
        f"{MISSING}the reward falls when messages are swapped: greedy 0.010 [-0.010, 0.030].",
        f"{MISSING}the worth of words rose: greedy +0.010 [-0.010, +0.030].",
    ]


@pytest.mark.parametrize("history", [[], [evaluated(0.7, 0.7)], [Iteration(1)]])
def test_without_two_evaluations_nothing_is_shown(history):
    assert said(*history) == ["Nothing is shown: fewer than two evaluations were made."]


# --- pairing by state


def evaluation(player: str, folder, config) -> EvaluationJob:
    job = EvaluationJob(player, held_out_states(make_game(config.game), 30), folder, episodes=1, swaps=("swapped",))
    asyncio.run(run_evaluate(config, job))
    return job


@pytest.mark.long
def test_rises_are_paired_by_state(tmp_path):
    config = load_config("tiny_honest", {})
    before, after = (evaluation(player, tmp_path / player, config) for player in ("own-view", "sharing"))
    rise = rises_over(config, after, before.output)["scripted"]
    talk, deaf = (totals_of(config, one, "scripted").select(["reward"]) for one in (after, before))
    assert rise.reward == contrast([(1, talk), (-1, deaf)])["reward"] and rise.reward.low > 0
    swapped = [totals_of(config, one, "scripted", "swapped").select(["reward"]) for one in (after, before)]
    assert rise.worth == contrast([(1, talk), (-1, swapped[0]), (-1, deaf), (1, swapped[1])])["reward"]
    assert rises_over(config, after, after.output)["scripted"].worth == Interval(value=0, low=0, high=0)
    assert rises_over(config, replace(after, swaps=()), before.output)["scripted"] == Rise(reward=rise.reward)
    before.file("scripted", "swapped").unlink()  # as if the run had begun without swapped messages
    assert rises_over(config, after, before.output)["scripted"] == Rise(reward=rise.reward)


@pytest.mark.long
def test_rewards_alone_are_those_among_all_figures(tmp_path):
    config = load_config("tiny_honest", {})
    job = evaluation("own-view", tmp_path, config)
    alone, every = rewards_of(config, job, "scripted"), totals_of(config, job, "scripted").select(["reward"])
    assert alone.names == ("reward",)
    assert (alone.numerators == every.numerators).all() and (alone.denominators == every.denominators).all()


# --- table, log and page of a run that swaps messages


@pytest.fixture
def swapped_run(tmp_path) -> RunDirectory:
    """A run of one iteration, evaluated before and after it with swapped messages."""
    run = RunDirectory(tmp_path / "run")
    write_json(
        run.manifest, describe(load_config("tiny_honest", {"iterate.num_iterations": 1}).model_dump(mode="json"))
    )
    start = evaluated(0.7, 0.72, worth=(0.01, 0.02), fixed=True)
    end = evaluated(0.9, 0.92, (0.2, 0.2), (0.11, 0.12), worth_rises=(0.1, 0.1), fixed=True)
    for number, one in enumerate((start, end)):
        run.iteration(number).mkdir()
        for stage in ("generate", "convert", "train") if number else ():
            run.finish(number, stage, StageRecord(seconds=1, figures=FINISHED[stage]))
        run.finish(number, "evaluate", StageRecord(seconds=1, figures=one.evaluated.model_dump(mode="json")))
    return run


def test_the_table_has_columns_for_the_worth_of_words(swapped_run):
    console = Console(file=io.StringIO(), width=140)
    console.print(run_table(swapped_run))
    lines = console.file.getvalue().splitlines()
    assert [line.split() for line in lines if line[:1].isdigit()] == [
        ["0", "0.700", "0.720", "0.100", "0.010", "0.020"],
        ["1", "0.800", "100.0%", "0.000", "1.50", "2/8", "7", "0.900", "0.920", "0.100", "0.110", "0.120", "1", "1"],
    ]
    assert "worth: worth of words" in " ".join(lines)


def test_metrics_have_the_worth_of_words_and_the_rises(swapped_run):
    first, last = (iteration.to_line() for iteration in history_of(swapped_run.state))
    assert first["held_out_words"]["greedy"]["worth"]["value"] == 0.02 and "held_out_rises" not in first
    assert last["held_out_rises"]["sampled"] == {"reward": about(0.2), "worth": about(0.1)}
    assert json.loads(json.dumps(last)) == last


def test_iterate_ends_with_what_was_shown_and_what_was_not(swapped_run, capsys):
    show_run(swapped_run)
    lines = capsys.readouterr().out.splitlines()
    assert f"{SHOWN}the reward rose: sampled +0.200 [+0.180, +0.220], greedy +0.200 [+0.180, +0.220]." in lines
    assert ONE_RUN in lines


def test_the_page_has_the_closing_lines_the_columns_and_the_chart_of_the_worth_of_words(swapped_run):
    source = discover(swapped_run.path)
    page, _ = render(source, [], lambda scan: None, 1_000_000)
    assert "On held-out states the reward rose: sampled +0.200" in page and ONE_RUN in page
    assert '<th scope="col">worth of words</th><th scope="col">worth of words, greedy</th>' in page
    (chart,) = [chart for chart in charts_of(source, []) if chart.key == "worth_of_words"]
    assert [(one.label, list(one.x), list(one.y), list(one.low)) for one in chart.series] == [
        ("held out, sampled", [0, 1], [0.01, 0.11], [-0.01, 0.09]),
        ("held out, greedy", [0, 1], [0.02, 0.12], [0.0, pytest.approx(0.1)]),
    ]


def test_a_run_without_swapped_messages_has_no_trace_of_them(swapped_run):
    for number, value in ((0, 0.7), (1, 0.9)):
        one = evaluated(value, value, *([(0.2, 0.2)] * number))
        figures = one.evaluated.model_dump(mode="json")
        swapped_run.finish(number, "evaluate", StageRecord(seconds=1, figures=figures))
    console = Console(file=io.StringIO(), width=140)
    console.print(run_table(swapped_run))
    page, _ = render(discover(swapped_run.path), [], lambda scan: None, 1_000_000)
    assert "worth" not in console.file.getvalue() and "worth" not in page
    assert "held_out_words" not in json.dumps([one.to_line() for one in history_of(swapped_run.state)])
