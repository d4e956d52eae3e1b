"""Loop of `selfplay iterate`: play with the newest checkpoint, convert, train, and repeat."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from selfplay_pipeline.config.schema import SELF, Config
from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.convert.result import Converted
from selfplay_pipeline.convert.stage import convert_episodes
from selfplay_pipeline.core import reporting
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.files import locked, write_json, write_lines
from selfplay_pipeline.core.folders import own_folder
from selfplay_pipeline.core.reporting import logger
from selfplay_pipeline.core.stopping import computing
from selfplay_pipeline.evaluate.run import EvaluationJob, Mode, rises_over, run_evaluate
from selfplay_pipeline.evaluate.states import StateSet, count_shared, sample_held_out, states_in
from selfplay_pipeline.evaluate.worth_of_words import Rise
from selfplay_pipeline.games.base import MONITOR
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.run import NoTurnsError
from selfplay_pipeline.generate.seats import Backends, Servers
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.generate.summary import Played, why_unsuccessful
from selfplay_pipeline.iterate.folder import (
    RunDirectory,
    Stage,
    StageRecord,
    check_unchanged,
    member_checkpoint,
    short,
)
from selfplay_pipeline.iterate.held_out import Evaluated, Figures, measured, measured_with_foreign
from selfplay_pipeline.iterate.history import best_iteration, history_of, in_words
from selfplay_pipeline.iterate.logs import PipelineLog
from selfplay_pipeline.iterate.partners import (
    Group,
    at_once,
    earlier_checkpoints,
    groups_of_iteration,
    named_members,
    seats_of,
)
from selfplay_pipeline.iterate.preflight import (
    attached_share,
    check_ahead,
    check_alone,
    check_begun_together,
    check_run,
    shares_gpu,
)
from selfplay_pipeline.iterate.results import Trained
from selfplay_pipeline.iterate.schedule import Lane, Round, rounds_of, saves_state, source_of, stages_of
from selfplay_pipeline.train.cluster import check_cluster
from selfplay_pipeline.train.groups import NoSignalError
from selfplay_pipeline.train.offline import (
    prepare_training,
)
from selfplay_pipeline.train.offline_stage import train_policy, training_of
from selfplay_pipeline.train.process import Trainer
from selfplay_pipeline.train.saves import has_state

AGAIN = "again"
"""Name of the folder, in that of an iteration, in which it is trained again for the state that it did not save."""


async def run_iterate(config: Config, run_dir: Path, loop_type: type[Loop] | None = None) -> RunDirectory:
    """Run the missing stages of `config.iterate.num_iterations` iterations in `run_dir`; returns the run folder.

    After a kill at any moment, the same call continues at the interrupted stage: each stage resumes its own work, and
    is recorded as done only when its output is complete.

    Args:
        config: The configuration.
        run_dir: The run folder.
        loop_type: Variant of the loop, for tests.

    Raises:
        UserError: The folder is in use or holds a run with another configuration, or a stage rejects its input.
    """
    check_alone(config)
    (run,) = await run_together([(config, run_dir)], run_dir, loop_type)
    return run


async def run_together(
    members: Sequence[tuple[Config, Path]], folder: Path, loop_type: type[Loop] | None = None
) -> list[RunDirectory]:
    """Run the missing stages of several runs in turn, round by round, with the same servers and trainer.

    Args:
        members: Configuration and run folder of each run; the configurations differ only in seeds and partners.
        folder: Folder for the logs of servers.
        loop_type: Variant of the loop, for tests.

    Raises:
        UserError: As for `run_iterate`.
    """
    config, _ = members[0]
    with computing():
        check_begun_together(members)  # first, because the lock writes a file
        check_run(config)
        check_cluster(config.train, [config.model], folder)
    shares = shares_gpu(config) or await attached_share(config)
    check_ahead(config, shares=shares)
    with ExitStack() as stack:
        for _, run_dir in members:
            stack.enter_context(locked(run_dir / ".lock", f"run directory {run_dir}"))
        runs = [RunDirectory(run_dir) for _, run_dir in members]
        with computing():
            for run, (own, _) in zip(runs, members, strict=True):
                run.open(own)
        own_folder(folder, "iterate --members")  # a single run has its own folder already
        reporting.begin()
        servers = Servers(
            Backends.of(config), folder, at_once=at_once(config), shares_gpu=shares_gpu(config), alone=True
        )
        trainer = Trainer()
        loops = [
            (loop_type or Loop)(own, run, servers, trainer, stack.enter_context(PipelineLog(own, run.path)), shares)
            for run, (own, _) in zip(runs, members, strict=True)
        ]
        try:
            await loops[0].run_all(*loops[1:])
        finally:
            await _stop(config, trainer, servers)
        return runs


async def _stop(config: Config, trainer: Trainer, servers: Servers) -> None:
    """Stop all processes in parallel, since each takes a second or more.

    An attached server may take its memory back, for which the trainer must be gone.
    """
    if config.engine.server_url:
        await asyncio.to_thread(trainer.stop)
    await asyncio.gather(asyncio.to_thread(trainer.stop), servers.stop())


@dataclass
class Loop:
    """A run in progress."""

    config: Config
    run: RunDirectory
    servers: Servers
    trainer: Trainer
    log: PipelineLog
    shares_gpu: bool = False
    """Whether servers and trainer release GPU memory to each other."""

    async def run_all(self, *others: Loop) -> None:
        """Run all iterations of this and other runs, round by round: iteration k of each run, then k + 1."""
        for current in rounds_of(self.config.iterate):
            for loop in (self, *others):
                await loop._round(current)

    async def _round(self, current: Round) -> None:
        """Run the lanes of a round at the same time."""
        lanes = [lane for lane in current.lanes if lane]
        if lanes:
            self._prepare_training(lanes[0][0][0])
        await side_by_side(*(self._lane(lane) for lane in lanes))
        if current.completes is not None:
            self._watch(current.completes)

    async def _lane(self, lane: Lane) -> None:
        """Run the stages of a lane in order."""
        for number, stage in lane:
            await self._stage(number, stage, self._checkpoint(number, stage))
            if stage == "train":
                self._remove_earlier_states(number)

    def _checkpoint(self, number: int, stage: Stage) -> str:
        """Returns the checkpoint that a stage plays with or trains."""
        source = source_of(self.config.iterate, number, stage)
        return self.run.checkpoint(source) if source else str(self.config.model)

    def _remove_earlier_states(self, number: int) -> None:
        """Remove what is older than the newest saved state; called when no interrupted training can need it."""
        states = self._trainer_states(number)
        while len(states) > 1 and not has_state(states[-1]):
            states.pop()
        for state in states[:-1]:
            shutil.rmtree(state, ignore_errors=True)
        if has_state(self._state(number)):
            shutil.rmtree(self.run.iteration(number) / AGAIN, ignore_errors=True)

    async def _stage(self, number: int, stage: Stage, checkpoint: str) -> None:
        """Run one stage unless it is done.

        Raises:
            UserError: The checkpoint has changed since an iteration made it.
        """
        if self.run.state.get(number, stage) is not None:
            return
        made = self.run.state.trained(source_of(self.config.iterate, number, stage))
        if made is not None:
            with computing():
                check_unchanged(checkpoint, made)
        reporting.status(f"{self._at(number)}: {stage} with {short(checkpoint)}")
        with computing():
            self.log.open()
        started = time.monotonic()
        result = (await self._result(number, stage, checkpoint)).model_dump(mode="json")
        self.run.finish(number, stage, StageRecord(seconds=time.monotonic() - started, figures=result))

    async def _result(self, number: int, stage: Stage, checkpoint: str) -> BaseModel:
        """Run one stage and return its result. Stages exchange only checkpoints and files."""
        match stage:
            case "generate":
                return await self._generate(number, checkpoint)
            case "convert":
                return await self._convert(number, self.run.games(number))
            case "train":
                return await self._train(number, checkpoint, self.run.rows(number))
            case "evaluate":
                return await self._evaluate(number, checkpoint)

    def _at(self, number: int) -> str:
        member = f"{self.run.path.name}, " * bool(named_members(self.config))
        return f"{member}iteration {number}/{self.config.iterate.num_iterations}"

    async def _generate(self, number: int, checkpoint: str) -> Played:
        first, groups = (number - 1) * self.config.generate.num_groups, self._groups(number)
        played = await generate_episodes(
            self.config,
            self.run.games(number),
            checkpoint=checkpoint,
            iteration=number,
            first_state=first,
            seats=seats_of(self.config),
            groups=[group.players for group in groups],
            servers=self.servers,
            other_play=self.config.iterate.other_play,
        )
        if len(self.config.iterate.partners) < 2:
            return played.result()
        partners = {state: group.partner for state, group in enumerate(groups, start=first)}
        return played.result().model_copy(update={"partners": played.by_partner(partners)})

    def _groups(self, number: int) -> list[Group]:
        """Returns the players of each group of an iteration; empty if all groups have the same."""
        if not self.config.iterate.partners:
            return []
        source = source_of(self.config.iterate, number, "generate")
        made = [str(self.config.model), *(self.run.checkpoint(earlier) for earlier in range(1, source + 1))]
        members = {name: self._of_member(name, source) for name in named_members(self.config)}
        return groups_of_iteration(self.config, number, earlier_checkpoints(made), members)

    def _of_member(self, name: str, number: int) -> str:
        """Returns the checkpoint that another member of the population made in an iteration; 0 stands for the model.

        Raises:
            UserError: The member has not trained the iteration, or its checkpoint has changed since.
        """
        if not number:
            return str(self.config.model)
        with computing():
            return member_checkpoint(self.run.path.parent / name, number)

    async def _convert(self, number: int, games: Path) -> Converted:
        with computing():
            return convert_episodes(self.config, games, self.run.iteration(number))

    async def _train(self, number: int, checkpoint: str, rows: Path) -> Trained:
        if self.shares_gpu:
            await self.servers.release(checkpoint)
        elif not self.config.iterate.keep_processes:
            await self.servers.stop()
        for earlier in self._without_state(number):
            await self._train_again(earlier)
        training = self._training(number, checkpoint, rows)
        if training.initial_trainer_state is None and self._trained_before(number):
            logger.warning(
                f"iteration {number}: the trainer_state of the iteration before is gone, so training begins with a new "
                "optimizer; to continue as before, stop, and put the folder back"
            )
        try:
            result = await train_policy(training, self.trainer)
        except NoSignalError as reason:
            self._check_successful(number)
            logger.warning(f"iteration {number}: not trained, the checkpoint is carried forward: {reason}")
            return Trained(
                checkpoint=checkpoint,
                carried=True,
                weights=_hash_of(checkpoint),
                steps=0,
                seconds_in_steps=0.0,
                staleness=self._staleness(number),
            )
        finally:
            if not self.config.iterate.keep_processes:
                self.trainer.stop()
        return Trained(
            checkpoint=str(result.checkpoint),
            carried=False,
            weights=_hash_of(str(result.checkpoint)),
            steps=result.steps,
            groups=result.groups,
            groups_without_signal=result.groups_without_signal,
            rows=result.rows,
            updates=result.updates,
            own_tokens=result.own_tokens,
            seconds_in_steps=result.seconds_in_steps,
            log_prob_gap=result.log_prob_gap,
            staleness=self._staleness(number),
        )

    async def _train_again(self, number: int) -> None:
        """Train an iteration again from its stored rows, and keep the trainer's state at its end.

        Checkpoint and figures stay those of the first time. After a kill at any moment it can be called again.
        """
        reporting.status(f"{self._at(number)}: train again from its rows, since its trainer's state was not saved")
        training = self._training(number, self._checkpoint(number, "train"), self.run.rows(number))
        again = {"output": self.run.iteration(number) / AGAIN, "saves_state": True, "loggers": ["console"]}
        result = await train_policy(training.model_copy(update=again), self.trainer)
        made = self.run.state.trained(number)
        if made is not None and _hash_of(str(result.checkpoint)) != made.weights:
            logger.warning(
                f"iteration {number}: trained again, it ends in slightly other weights than its checkpoint's, as on a "
                "GPU; the log-prob gap of the next iteration shows how far they are"
            )
        save = f"global_step_{result.steps}"
        shutil.rmtree(self._state(number) / save, ignore_errors=True)
        (result.trainer_state / save).replace(self._state(number) / save)
        self._remove_earlier_states(number)

    @computing()
    def _check_successful(self, number: int) -> None:
        """Raises NoTurnsError if no episode of an iteration could succeed, so that a repetition would not either."""
        games = self.run.games(number)
        if not games.exists():
            return
        why = why_unsuccessful(read_episodes(games), self.config.generate.max_new_tokens)
        if why is not None:
            raise NoTurnsError(f"{games}: nothing can be learned from iteration {number}: {why}")

    def _staleness(self, number: int) -> int | None:
        """Returns how many trainings the weights that play an iteration lag behind those that it trains.

        It is None if episodes are always played with the newest weights.
        """
        if not self.config.iterate.ahead:
            return None
        between = range(source_of(self.config.iterate, number, "generate") + 1, number)
        trained = [self.run.state.trained(earlier) for earlier in between]
        return sum(one is not None and not one.carried for one in trained)

    def _training(self, number: int, checkpoint: str, rows: Path) -> TrainConfig:
        return training_of(
            self.config,
            rows,
            self.run.iteration(number),
            checkpoint=checkpoint,
            sampled_by=self._checkpoint(number, "generate"),
            seed=self.config.seed + number,
            initial_trainer_state=self._earlier_state(number),
            base_model=str(self.config.model) if self.config.train.lora_rank else None,
            reference_model=str(self.config.model),
            plays_meanwhile=self.config.iterate.ahead > 0,
            shares_gpu=self.shares_gpu,
            rate_share=self.config.iterate.rate_share(number),
            saves_state=saves_state(self.config.iterate, number),
        )

    def _prepare_training(self, number: int) -> None:
        """Start the trainer's process in the background while the episodes are played."""
        options = self.config.iterate
        wanted = "train" in stages_of(options, number) and self.run.state.get(number, "train") is None
        if wanted and options.keep_processes:
            training = self._training(number, self._checkpoint(number, "train"), self.run.rows(number))
            prepare_training(training, self.trainer, self.run.path / "trainer.log")

    def _earlier_state(self, number: int) -> Path | None:
        """Returns the trainer state to continue from; its float32 weights keep small updates that a bfloat16 checkpoint
        loses. None if no iteration has trained, or if the newest state is gone.
        """
        made = self._trained_before(number)
        if not made:
            return None
        state = self._state(made[-1])
        return state if has_state(state) or self.trainer.holds(state) else None

    def _without_state(self, number: int) -> list[int]:
        """Returns the iterations to train again before an iteration, in order: those since the last saved state.

        It is empty if the trainer has the newest state in memory, or if a file that is needed was removed.
        """
        made = self._trained_before(number)
        if not made or self.trainer.holds(self._state(made[-1])):
            return []
        since = [*takewhile(lambda one: not has_state(self._state(one)), reversed(made))]
        whole = all(self._state(one).exists() and self.run.rows(one).exists() for one in since)
        return since[::-1] if whole else []

    def _state(self, number: int) -> Path:
        return self.run.iteration(number) / "trainer_state"

    def _trained_before(self, number: int) -> list[int]:
        """Returns the earlier iterations that made a checkpoint of their own, in order."""
        return [one for one in range(1, number) if (of := self.run.state.trained(one)) and not of.carried]

    def _trainer_states(self, last: int) -> list[Path]:
        """Returns the trainer states up to an iteration, in order; an untrained iteration has none."""
        folders = [self._state(number) for number in range(1, last + 1)]
        return [folder for folder in folders if folder.exists()]

    @cached_property
    def _held_out(self) -> StateSet:
        with computing():
            return sample_held_out(self.config, self.config.evaluate.monitor_states, MONITOR)

    async def _evaluate(self, number: int, checkpoint: str) -> Evaluated:
        """Returns the held-out figures of a checkpoint; warns if states were trained on since the last evaluation.

        A checkpoint that was carried forward since its evaluation keeps those figures, and is not evaluated again.
        """
        config = self.config
        if (same := self._evaluated_before(number)) is not None:
            logger.info(f"iteration {number}: its checkpoint was evaluated before, and keeps those figures")
            return same
        states = self._held_out
        since = range(max(1, number - config.iterate.evaluate_every + 1), number + 1)
        game = make_game(config.game)
        with computing():
            kept = [games for earlier in since if (games := self.run.games(earlier)).exists()]
            played = set[str]().union(*(states_in(game, games) for games in kept))
        shared = count_shared(game, states, played)
        if gone := len(since) - len(kept):
            logger.warning(
                f"iteration {number}: {gone} files of episodes are gone, so that their states are not compared"
            )
        if shared:
            logger.warning(f"iteration {number}: {shared} held-out states were among those trained on")
        job = EvaluationJob(
            checkpoint,
            states,
            self.run.iteration(number) / "evaluation",
            partner=config.iterate.partner,
            episodes=1,
            seat=config.iterate.seat,
            swaps=("swapped",) if config.evaluate.swap_messages else (),
        )
        evaluation = await run_evaluate(config, job, self.servers)
        figures = measured(game, evaluation, self._rises(number, job), partnered=config.iterate.partner != SELF)
        figures |= await self._with_foreign(number, checkpoint)
        return Evaluated(checkpoint=checkpoint, states_shared_with_training=shared, figures=figures)

    def _evaluated_before(self, number: int) -> Evaluated | None:
        """Returns the figures of the same checkpoint in an earlier iteration, after which none has trained."""
        for earlier in range(number, 0, -1):
            trained = self.run.state.trained(earlier)
            if trained is None or not trained.carried:
                return None
            if (evaluated := self.run.state.evaluated(earlier - 1)) is not None:
                return evaluated
        return None

    async def _with_foreign(self, number: int, checkpoint: str) -> Figures:
        """Returns the figures of a checkpoint with the foreign player; empty without one."""
        options = self.config.iterate
        if options.foreign is None:
            return {}
        job = EvaluationJob(
            checkpoint,
            self._held_out,
            self.run.iteration(number) / "foreign",
            partner=options.foreign,
            episodes=1,
            seat=None if options.partner == SELF else options.seat,  # the seat of the own reward
            greedy=False,
            in_turn=True,
        )
        evaluation = await run_evaluate(self.config, job, self.servers)
        return measured_with_foreign(evaluation, self._rises(number, job))

    def _rises(self, number: int, job: EvaluationJob) -> dict[Mode, Rise]:
        """Returns the rises over the run's first evaluation of this kind; empty for the first one, or without it."""
        first = self.run.iteration(0) / job.output.name
        if not number or not (first / "evaluation.json").exists():
            return {}
        with computing():
            return rises_over(self.config, job, first)

    @computing()
    def _watch(self, number: int) -> None:
        """Write the figures up to an iteration, and of later complete ones, and warn about a collapse."""
        options, done = self.config.iterate, self.run.state.iterations
        history = [
            iteration
            for iteration in history_of(self.run.state)
            if iteration.number <= number or done[iteration.number].keys() >= set(stages_of(options, iteration.number))
        ]
        if not history:
            return
        write_lines(self.run.path / "metrics.jsonl", (iteration.to_line() for iteration in history))
        best = best_iteration(history)
        if best is not None:
            write_json(self.run.path / "best.json", best.model_dump())
        self.log.write(history)
        newest = next((iteration for iteration in history if iteration.number == number), None)
        if newest is None:
            return
        reporting.status(f"{self._at(number)}: {in_words(newest, make_game(self.config.game))}")
        if newest.collapse is not None:
            logger.warning(f"iteration {number}: collapse? {newest.collapse}")


async def side_by_side(*work: Coroutine[Any, Any, None]) -> None:
    """Do several pieces of work at the same time; if one fails, the others are cancelled and have cleaned up before
    its error is raised.
    """
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@computing()
def _hash_of(checkpoint: str) -> str:
    return content_hash(checkpoint)
