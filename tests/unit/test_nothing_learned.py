"""`iterate` with a policy that cannot succeed: it stops and says why; an unchanged checkpoint is evaluated once."""

import asyncio
import re

import pytest
from factories import FINISHED, Habits, make_episode, write_episodes

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.result import Converted
from selfplay_pipeline.games.base import CUT, Status
from selfplay_pipeline.generate.run import NoTurnsError
from selfplay_pipeline.generate.summary import Played, why_unsuccessful
from selfplay_pipeline.iterate import loop as iterate
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord
from selfplay_pipeline.train.groups import NoSignalError

ILLEGAL, TALKING = Habits(talk=0.0, spoil=1.0), Habits(talk=0.2, spoil=0.0, cut=0.0, reject=0.0)


def changed(record, outcome=None, turn=None):
    told = record.outcome.model_copy(update=outcome or {})
    return record.model_copy(
        update={"outcome": told, "turns": [one.model_copy(update=turn or {}) for one in record.turns]}
    )


def ended(records, status):
    return [changed(record, {"status": status}) for record in records]


def cut(records):
    return [changed(record, turn={"error_kind": CUT}) for record in records]


def illegal():
    return ended([make_episode(episode=number, habits=ILLEGAL) for number in range(4)], Status.ERROR_LIMIT)


def talking():
    return [make_episode(episode=number, habits=TALKING) for number in range(4)]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (illegal, "no turn of the model was legal"),
        (lambda: cut(illegal()), "every turn was cut at 48 tokens"),
        (lambda: ended(illegal(), Status.TURN_LIMIT), r"limit of \d+ turns \(.*\), and no turn of the model was legal"),
        (lambda: ended(cut(illegal()), Status.TURN_LIMIT), r"limit of \d+ turns \(.*\), and every turn was cut at 48"),
        (lambda: ended(talking(), Status.TURN_LIMIT), "ended at the game's limit of"),
        (lambda: [*illegal(), *talking()], None),
        (talking, None),
        (list, None),
        (lambda: ended(illegal(), Status.ENGINE_FAILURE), None),
    ],
)
def test_the_reason_is_the_one_that_ended_all_episodes(records, words):
    why = why_unsuccessful(records(), 48)
    assert why is None if words is None else re.search(words, why)


class Stages(iterate.Loop):
    """Stages without servers, whose episodes are given, and of which no group has a signal."""

    episodes = staticmethod(talking)

    def _prepare_training(self, number):
        pass

    async def _generate(self, number, checkpoint):
        write_episodes(self.run.games(number), self.episodes())
        return Played(**FINISHED["generate"])

    async def _convert(self, number, games):
        return Converted()


def run(monkeypatch, folder, episodes):
    """Returns the run after its iterations, of which iteration 0 was evaluated before; nothing else may be."""

    async def no_signal(training, trainer):
        raise NoSignalError("none of 1 groups carries a signal")

    async def evaluated(*_):
        raise AssertionError("evaluated again")

    monkeypatch.setattr(Stages, "episodes", staticmethod(episodes))
    monkeypatch.setattr(iterate, "check_run", lambda config: None)
    monkeypatch.setattr(iterate, "train_policy", no_signal)
    monkeypatch.setattr(iterate, "run_evaluate", evaluated)
    config = load_config("tiny", {"iterate.num_iterations": 2, "train.loggers": []})
    begun = RunDirectory(folder)
    begun.open(config)
    begun.finish(0, "evaluate", StageRecord(seconds=1.0, figures=dict(FINISHED["evaluate"])))
    return asyncio.run(iterate.run_iterate(config, folder, Stages))


def test_a_checkpoint_that_was_carried_forward_keeps_its_figures_and_is_not_evaluated_again(tmp_path, monkeypatch):
    state = run(monkeypatch, tmp_path / "run", talking).state
    assert [state.trained(number).carried for number in (1, 2)] == [True, True]
    assert state.evaluated(0) == state.evaluated(1) == state.evaluated(2)


def test_an_iteration_without_a_legal_turn_ends_the_run_before_it_is_carried_forward(tmp_path, monkeypatch):
    with pytest.raises(NoTurnsError, match=r"nothing can be learned from iteration 1: no turn of the model was legal"):
        run(monkeypatch, tmp_path / "run", illegal)
    state = RunDirectory(tmp_path / "run").load()
    assert state.trained(1) is None and state.evaluated(1) is None
