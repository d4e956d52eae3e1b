"""Training a LoRA adapter with the real verl: what it changes, what it is compared with, and where it goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hostile_folder import fill, ran
from reports import Report, Reports
from shared_server import TINY, loop_with
from test_train import (
    EPISODES,
    GROUPS,
    MARK,
    Run,
    build_model,
    farthest,
    grpo_loss,
    log_probs,
    model,
    optimise,
    optimizer_updates,
    remaining,
    rows_by_group,
    traces,
    weights,
    write_games,
)
from watching import Watch

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.training import WRITES_ROWS, TrainConfig
from selfplay_pipeline.core import reporting
from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.iterate.loop import run_iterate
from selfplay_pipeline.train.offline import run_train
from selfplay_pipeline.train.process import Trainer, TrainError

__all__ = ["model"]
RANK, ALPHA = 3, 12
TARGETS = ["q_proj", "down_proj"]
LAYERS = [
    f"actor_rollout_ref.model.target_modules=[{','.join(TARGETS)}]", f"actor_rollout_ref.model.lora_alpha={ALPHA}"
]  # fmt: skip
"""Keys of verl for an adapter to these layers, with another scale than ours."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.parquet"
    write_games(path, model)
    return path


@pytest.fixture(scope="module")
def staying() -> Iterator[Trainer]:
    with Trainer() as trainer:
        yield trainer


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, model: Path, data: Path, staying: Trainer) -> Run:
    """Three steps, each on all groups and one update, with a KL term: the pass without the adapter is the first."""
    config = TrainConfig(
        model=str(model), data=data, output=tmp_path_factory.mktemp("first") / "out", epochs=3, learning_rate=1e-2,
        train_batch_size=GROUPS * 2 * EPISODES, kl_coef=0.05, lora_rank=RANK, overrides=LAYERS,
        save_every=1, device="cpu",
    )  # fmt: skip
    return Run(config, asyncio.run(run_train(config, trainer=staying)), [], set())


def further(first: Run, output: Path, **changes: Any) -> TrainConfig:
    """Goes on from `first` as the next iteration does, on games that its checkpoint would play."""
    games = output.parent / "further.parquet"
    write_games(games, first.result.checkpoint)
    began_with = {
        "model": str(first.result.checkpoint),
        "base_model": first.config.model,
        "initial_trainer_state": first.result.trainer_state,
        "data": games,
        "output": output,
        "epochs": 1,
        "overrides": [*LAYERS, WRITES_ROWS],
    }
    return first.config.model_copy(update=began_with | changes)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory, first: Run, staying: Trainer) -> Run:
    config = further(first, tmp_path_factory.mktemp("second") / "out")
    return Run(config, asyncio.run(run_train(config, trainer=staying)), [], set())


def plain_adapter(model: str, seed: int) -> Any:
    """peft's adapter to a model, as verl makes it before its first step."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    torch.manual_seed(seed)
    return get_peft_model(network, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, task_type="CAUSAL_LM"))


def test_it_does_what_a_hand_written_loop_over_pefts_adapter_does(first: Run) -> None:
    import torch

    network, rows = plain_adapter(first.config.model, first.config.seed), rows_by_group(first.config.data)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0.0)
    for line in first.lines():
        chosen = [rows[index] for _, index in line["groups"]]
        loss = grpo_loss(network, chosen, reference=Path(first.config.model), kl_coef=0.05)
        assert float(loss.detach()) == pytest.approx(line["actor/loss"], abs=1e-3)
        assert optimise(network, optimizer, loss) == pytest.approx(line["actor/grad_norm"], rel=1e-2)
    merged, trained = network.merge_and_unload().state_dict(), weights(first.result.checkpoint)
    before = weights(Path(first.config.model))
    moved = torch.cat([(merged[name] - before[name]).flatten() for name in trained])
    apart = torch.cat([(merged[name] - trained[name]).flatten() for name in trained])
    assert torch.linalg.norm(apart) < 1e-2 * torch.linalg.norm(moved)


def test_the_checkpoint_differs_from_the_model_by_matrices_of_low_rank_in_the_targets_alone(
    first: Run, second: Run
) -> None:
    import torch

    before = weights(Path(first.config.model))
    for run in (first, second):
        trained = weights(run.result.checkpoint)
        check_checkpoint(str(run.result.checkpoint))
        assert trained.keys() == before.keys()
        for name, weight in trained.items():
            moved = weight - before[name]
            if not name.endswith(tuple(f"{target}.weight" for target in TARGETS)):
                assert torch.equal(weight, before[name]), "bit by bit"
                continue
            sizes = torch.linalg.svdvals(moved)
            assert sizes[RANK - 1] > 1e-3 and sizes[RANK] < 1e-5, f"{name}: rank {RANK}"


def test_the_adapter_is_kept_beside_the_checkpoint_as_peft_reads_it(first: Run) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(first.config.model, dtype=torch.float32)
    adapter = first.config.output / "adapter"
    merged = PeftModel.from_pretrained(base, adapter).merge_and_unload().state_dict()
    for name, weight in weights(first.result.checkpoint).items():
        torch.testing.assert_close(merged[name], weight, atol=1e-6, rtol=0)
    saved = sum(path.stat().st_size for path in first.result.trainer_state.rglob("*") if path.is_file())
    assert saved < 200_000, "a save holds the adapter and its optimizer, not the model (0.2 MB)"


def test_the_next_iteration_goes_on_with_the_adapter_that_the_checkpoint_holds(second: Run) -> None:
    """verl's log-probs with model and adapter are those of the checkpoint, and the optimizer is the earlier one."""
    rows = {
        (row["extra_info"]["index"], row["extra_info"]["episode"], row["extra_info"]["seat"]): row
        for group in rows_by_group(second.config.data).values()
        for row in group
    }
    assert len(second.dumped()) == len(rows)
    for dumped in second.dumped():
        row = rows[dumped["group"], dumped["episode"], dumped["seat"]]
        exact = log_probs(Path(second.config.model), row["prompt_ids"], row["response_ids"])
        own = [value for value, mask in zip(exact, row["response_mask"], strict=True) if mask]
        assert dumped["old_log_probs"] == pytest.approx(own, abs=1e-4)
    assert optimizer_updates(second.result.trainer_state) == 3 + 1


def kl(policy: Path, reference: Path, data: Path) -> float:
    """Mean of exp(d) - d - 1, at most 10, over all own tokens; d is the reference's log-prob less the policy's."""
    import torch

    found = []
    for row in (row for group in rows_by_group(data).values() for row in group):
        ours, theirs = (
            torch.tensor(log_probs(folder, row["prompt_ids"], row["response_ids"])) for folder in (policy, reference)
        )
        apart = (theirs - ours)[torch.tensor(row["response_mask"], dtype=torch.bool)]
        found.append((torch.exp(apart) - apart - 1).clamp(max=10))
    return float(torch.cat(found).mean())


def test_the_reference_policy_is_the_model_without_the_adapter(first: Run, second: Run) -> None:
    assert abs(first.lines()[0]["actor/kl_loss"]) < 1e-7
    expected = kl(Path(second.config.model), Path(first.config.model), second.config.data)
    assert expected > 1e-3
    assert second.lines()[0]["actor/kl_loss"] == pytest.approx(expected, rel=1e-3)


def test_another_model_or_another_seed_begins_with_an_adapter_of_its_own(
    first: Run, staying: Trainer, tmp_path: Path
) -> None:
    """In the same process, which then does the first training again."""
    build_model(tmp_path / "other", seed=1)
    another = {"model": str(tmp_path / "other"), "any_model": True}
    other = first.config.model_copy(update=another | {"output": tmp_path / "a", "epochs": 1})
    changed, kept = weights(asyncio.run(run_train(other, trainer=staying)).checkpoint), weights(tmp_path / "other")
    process = staying.process_id
    assert all(
        changed[name].equal(kept[name]) for name in kept if not name.endswith(("q_proj.weight", "down_proj.weight"))
    )
    seeded = asyncio.run(
        run_train(first.config.model_copy(update={"output": tmp_path / "b", "seed": 5}), trainer=staying)
    )
    again = asyncio.run(run_train(first.config.model_copy(update={"output": tmp_path / "c"}), trainer=staying))
    assert process is not None and staying.process_id == process
    assert farthest(again.checkpoint, first.result.checkpoint) < 1e-6
    assert farthest(seeded.checkpoint, first.result.checkpoint) > 1e-3


def test_two_workers_end_where_one_does(first: Run, tmp_path: Path) -> None:
    """Killed after the first step, they continue by the same command, in a folder of which they run no file.

    No other machine can reach their sockets.
    """
    (tmp_path / "hostile").mkdir()
    fill(tmp_path / "hostile")
    config = first.config.model_copy(update={"output": tmp_path / "two", "gpus_per_node": 2})
    running: set[str] = set()

    def kill_the_workers(report: Report) -> None:
        """They are stopped first, since a look at all processes may take longer than what is left of the training."""
        ours, processes = psutil.Process().children(recursive=True), psutil.process_iter(["cmdline"])
        named = [process for process in processes if "ray::WorkerDict" in " ".join(process.info["cmdline"] or ())]
        workers = [process for process in named if process in ours]
        for worker in workers:
            worker.suspend()
        running.update(traces(config.output))
        for worker in workers:
            worker.kill()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, str(config.output))
        patch.chdir(tmp_path / "hostile")
        watch = Watch(str(config.output))
        with pytest.raises(TrainError), reporting.use(Reports(kill_the_workers)):
            asyncio.run(run_train(config))
        assert not remaining(running)
        reports = Reports()
        with reporting.use(reports):
            result = asyncio.run(run_train(config))
        watch.stop()
    assert len(running) > 6, "Ray's processes, verl's, and folders in /tmp"
    assert not traces(config.output)
    assert ran(tmp_path / "hostile") == ""
    assert reports.seen[0].done > 1
    assert farthest(result.checkpoint, first.result.checkpoint) < 1e-4
    commands = " ".join(listener.command for listener in watch.listeners)
    for of_training in ("raylet", "gcs_server", "train.verl.main", "WorkerDict", "TransferQueue"):
        assert of_training in commands
    assert [listener for listener in sorted(watch.listeners) if not listener.is_local] == []


@pytest.fixture(scope="module")
def loop(staying: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations; the merged checkpoint plays in the second. `test_online_train.py` serves one with SGLang."""
    path = tmp_path_factory.mktemp("loop")
    config = load_config(
        "tiny",
        {
            "iterate.num_iterations": 2, "iterate.evaluate_every": 0, "generate.num_episodes": 16,
            "generate.episodes_per_state": 4, "train.train_batch_size": 32, "train.keep_zero_signal": True,
            "train.learning_rate": 1e-2, "train.kl_coef": 0.05, "train.lora_rank": 4, "train.mini_batches": 1,
            "train.old_log_probs": "step",
            "engine.kind": "transformers",
        },
    )  # fmt: skip
    asyncio.run(run_iterate(config, path, loop_with(staying)))
    return path


def steps(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_checkpoint_plays_with_the_log_probs_that_verl_computes_with_the_adapter(loop: Path) -> None:
    assert farthest(loop / "iter_1" / "checkpoint", TINY) > 1e-3
    for number in (1, 2):
        assert steps(loop / f"iter_{number}")[0]["selfplay/log_prob_gap/max"] < 1e-4


def test_all_iterations_train_one_adapter_to_the_initial_model_which_is_the_reference(loop: Path) -> None:
    assert abs(steps(loop / "iter_1")[0]["actor/kl_loss"]) < 1e-7
    assert steps(loop / "iter_2")[0]["actor/kl_loss"] > 1e-5
    assert_low_rank(loop / "iter_2" / "checkpoint", TINY, 4)
    assert (loop / "iter_1" / "adapter").exists() and not (loop / "iter_1" / "trainer_state").exists()


def assert_low_rank(trained: Path, base: Path, rank: int) -> None:
    """All linear layers have moved, by matrices of at most this rank; nothing else has, bit by bit."""
    import torch

    before, after = weights(base), weights(trained)
    changed = {name for name in before if not torch.equal(before[name].float(), after[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}
    for name in changed:
        assert torch.linalg.svdvals(after[name] - before[name])[rank] < 1e-5, name
