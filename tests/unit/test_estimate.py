"""What `iterate` does on 1 to 16 GPUs: the values that it uses, verl's view of them, and the estimated minutes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from command import selfplay

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.gpus import gpu_name
from selfplay_pipeline.core.model_sizes import KNOWN, ModelSizes, sizes_of
from selfplay_pipeline.doctor.estimate import Play, Stage, Work, exchanging, gpu_speed, iteration, playing, training
from selfplay_pipeline.doctor.examine import Examination, Machine, examine, work_of
from selfplay_pipeline.train.memory import Setup, gigabytes

GPU_MODEL = "Qwen/Qwen2.5-7B-Instruct"
PAGE = Path("docs/results/iteration-time.md")
MACHINES = {
    "1 GPU": (1, 1), "2 GPUs": (1, 2), "4 GPUs": (1, 4), "8 GPUs": (1, 8), "2 nodes of 8 GPUs": (2, 8),
}  # fmt: skip
"""Nodes, and GPUs of each."""
H100 = gpu_speed("NVIDIA H100 80GB HBM3")


def configured(nodes: int, gpus: int, **changes: object) -> Config:
    given = {"device": "cuda", "train.nodes": nodes, "generate.num_episodes": 512}
    return load_config(None, given | changes, gpus=gpus, command="iterate")


def examined(nodes: int, gpus: int, **changes: object) -> Examination:
    machine = Machine(gpus, 80 * 10**9, None, None, nodes, here=False)
    return examine(configured(nodes, gpus, **changes), sizes_of(GPU_MODEL), machine, H100)


def test_rows_longer_than_the_context_are_refused():
    machine = Machine(8, 80 * 10**9, None, None, 1, here=False)
    config = configured(1, 8, **{"engine.context_length": 8192})
    with pytest.raises(UserError, match="--row-tokens 8193: every row ends at the context of 8192 tokens"):
        examine(config, sizes_of(GPU_MODEL), machine, H100, row_tokens=8193)
    assert examine(config, sizes_of(GPU_MODEL), machine, H100, row_tokens=8192).setup.tokens >= 8192


def test_a_configuration_with_values_of_another_type_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "hidden_size": "a"}')
    with pytest.raises(UserError, match=r"cannot be loaded .*give a folder with a config\.json") as refused:
        sizes_of(str(tmp_path))
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def qwen() -> ModelSizes:
    return sizes_of(GPU_MODEL)


@pytest.mark.parametrize(("nodes", "gpus"), MACHINES.values(), ids=list(MACHINES))
def test_all_gpus_train_and_play_and_everything_fits(nodes: int, gpus: int) -> None:
    found = examined(nodes, gpus)
    used = found.used
    assert (used["train.nodes"], used["train.gpus_per_node"], used["engine.data_parallel"]) == (nodes, gpus, gpus)
    assert used["train.lora_rank"] == (32 if gpus == 1 else 0)
    assert used["train.offload"] == ("cpu" if gpus == 2 else "none"), "121.8 GB on two GPUs of 80 GB"
    assert used["generate.max_concurrency"] == 256 * gpus
    assert found.setup.processes == nodes * gpus
    assert found.faults == []


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "gpus"), MACHINES.values(), ids=list(MACHINES))
def test_verl_accepts_what_it_is_given_there(
    tmp_path: Path, nodes: int, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Composed as `iterate` does for a machine whose GPUs have 80 GB, and checked by verl's own function."""
    from hydra import compose, initialize_config_module
    from test_train_config import DATA
    from verl.utils.config import validate_config

    from selfplay_pipeline.train import memory_check
    from selfplay_pipeline.train.offline_stage import training_of
    from selfplay_pipeline.train.verl_overrides import verl_overrides

    monkeypatch.setattr(memory_check, "gpu_memory", lambda: 80 * 10**9)
    (tmp_path / "model").mkdir()
    shutil.copy(KNOWN[GPU_MODEL], tmp_path / "model" / "config.json")
    config, used = configured(nodes, gpus), examined(nodes, gpus).used
    job = training_of(
        config, tmp_path / "rows", tmp_path / "out", checkpoint=str(tmp_path / "model"), any_model=True, shares_gpu=True
    )
    with initialize_config_module("verl.trainer.config", version_base=None):
        composed = compose("ppo_trainer", verl_overrides(job, DATA, 64, "cuda"))
    validate_config(composed, use_critic=False, use_reference_policy=False)
    policy = composed.actor_rollout_ref
    assert (composed.trainer.nnodes, composed.trainer.n_gpus_per_node) == (nodes, gpus)
    assert policy.actor.fsdp_config.offload_policy == (used["train.offload"] == "cpu")
    assert policy.model.lora_rank == used["train.lora_rank"]
    assert policy.actor.ppo_max_token_len_per_gpu == used["train.max_tokens_per_pass"]
    assert policy.model.enable_gradient_checkpointing is used["train.gradient_checkpointing"] is True
    assert policy.model.use_remove_padding and policy.actor.use_dynamic_bsz


def in_a_table() -> str:
    """The table of the documents."""
    found = [examined(nodes, gpus) for nodes, gpus in MACHINES.values()]
    lines = [["", *MACHINES], ["---"] * (1 + len(found))]
    lines += [["trained", *(f"LoRA {one.setup.lora_rank}" if one.setup.lora_rank else "all weights" for one in found)]]
    lines += [["state", *("host memory" if one.setup.offload else "on the GPUs" for one in found)]]
    lines += [["copies that play", *(str(one.used["engine.data_parallel"]) for one in found)]]
    lines += [["each GPU", *(gigabytes(one.device_total) for one in found)]]
    lines += [["host memory of a node", *(gigabytes(one.host_total) for one in found)]]
    stages = {stage.what: None for one in found for stage in one.stages}
    for what in stages:
        seconds = [sum(stage.seconds for stage in one.stages if stage.what == what) for one in found]
        lines += [[f"{what}, min", *(f"{one / 60:.1f}" for one in seconds)]]
    lines += [["together, min", *(f"{sum(stage.seconds for stage in one.stages) / 60:.1f}" for one in found)]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- ", "|---").replace("|--- |", "|---|")


def test_the_table_of_the_documents_is_what_is_counted() -> None:
    assert in_a_table() in PAGE.read_text(), in_a_table()


class TestArithmetic:
    WORK = Work(episodes=512, seats=2, rows=1024, row=3072, sampled=2048, updates=16, forward_only=0)

    def test_episodes_that_do_not_fit_the_cache_wait(self, qwen: ModelSizes) -> None:
        def seconds(cached: int | None) -> float:
            return playing(qwen, Play(copies=1, cached=cached), self.WORK, H100, 512)

        assert seconds(None) == seconds(256 * 3072) < seconds(64 * 3072) < seconds(1)

    def test_copies_and_gpus_of_a_copy_make_play_faster(self, qwen: ModelSizes) -> None:
        alone = playing(qwen, Play(copies=1, at_once=512), self.WORK, H100, 512)
        for faster in (Play(copies=4, at_once=512), Play(copies=1, gpus_per_copy=4, at_once=512)):
            assert alone / 4 < playing(qwen, faster, self.WORK, H100, 512) < alone

    def test_what_is_moved_counts_where_it_takes_longer_than_the_pass(self, qwen: ModelSizes) -> None:
        def seconds(**changes: object) -> float:
            return training(
                qwen, replace(Setup(processes=1, tokens=8192, checkpointing=True), **changes), self.WORK, H100
            )

        assert seconds(processes=8, processes_per_node=8) == pytest.approx(seconds() / 8), "the link is fast enough"
        slow = seconds(processes=16, processes_per_node=8)
        moved = (4 * qwen.parameters + 4 * qwen.parameters) / H100.network
        assert slow == pytest.approx(max(seconds() / 16, moved * 1024 * 3072 / 16 / 8192))
        assert seconds(offload=True) > seconds()

    def test_only_a_trainer_that_shares_gpus_leaves_them(self, qwen: ModelSizes) -> None:
        setup = Setup(processes=8, processes_per_node=8, tokens=1)
        assert exchanging(qwen, setup, H100) == 0
        shares = replace(setup, shares_gpu=True)
        assert exchanging(qwen, shares, H100) == pytest.approx(2 * 12 * qwen.parameters / 8 / H100.bus)
        assert exchanging(qwen, replace(shares, offload=True), H100) == 0

    def test_a_state_is_shared_by_the_iterations_between_two_and_a_kill_repeats_them(self, qwen: ModelSizes) -> None:
        def save(**options: object) -> Stage:
            config = configured(1, 8, **{f"iterate.{name}": value for name, value in options.items()})
            work = work_of(config, 3072)
            stages = iteration(qwen, Setup(processes=8, tokens=8192), Play(copies=8), work, H100)
            return next(stage for stage in stages if stage.what == "train: save")

        state, checkpoint = 12 * qwen.parameters, 2 * qwen.parameters
        every, seldom = save(state_every=1, num_iterations=8), save(state_every=4, num_iterations=8)
        assert every.seconds == pytest.approx((state + checkpoint) / H100.disk)
        assert seldom.seconds == pytest.approx((state / 4 + checkpoint) / H100.disk)
        assert "repeats" not in every.why and "a kill repeats at most 3 trainings of" in seldom.why
        assert save(state_every=4, num_iterations=8, keep_processes=False) == every

    def test_an_evaluation_is_shared_by_the_iterations_between_two(self, qwen: ModelSizes) -> None:
        def seconds(evaluations: float) -> float:
            work = replace(self.WORK, evaluated=200 if evaluations else 0, evaluations=evaluations)
            stages = iteration(qwen, Setup(processes=1, tokens=8192), Play(copies=1), work, H100)
            return sum(stage.seconds for stage in stages if stage.what == "evaluate")

        assert seconds(1) == pytest.approx(playing(qwen, Play(copies=1), self.WORK, H100, 200))
        assert seconds(0.25) == pytest.approx(seconds(1) / 4)
        assert seconds(0) == 0


@pytest.mark.parametrize(
    ("further", "episodes"), [({}, 2), ({"evaluate.swap_messages": True}, 6), ({"iterate.foreign": "own-view"}, 4)]
)
def test_an_evaluation_has_episodes_with_swapped_messages_and_with_the_foreign_player(
    further: dict[str, object], episodes: int
) -> None:
    config = load_config("tiny_honest", {"iterate.evaluate_every": 1, "evaluate.monitor_states": 50, **further})
    assert work_of(config, 300).evaluated == 50 * episodes


def test_a_gpu_is_known_by_its_name_and_another_is_said_to_be_guessed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a100, h200 = gpu_speed("NVIDIA A100-SXM4-80GB"), gpu_speed("NVIDIA H200")
    assert a100.training < H100.training == h200.training and a100.memory < H100.memory < h200.memory
    assert gpu_speed("NVIDIA L4") == replace(H100, name="NVIDIA L4 (as an H100)")
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA H200\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpu_name() == "NVIDIA H200"


def test_doctor_says_what_iterate_uses_and_how_long_it_takes() -> None:
    done = selfplay("doctor", "--gpus", "8", "--nodes", "2", "--num-episodes", "512", "--json")
    found, expected = json.loads(done.stdout), examined(2, 8)
    assert found["configuration"] == expected.used
    assert found["seconds"] == pytest.approx({stage.what: stage.seconds for stage in expected.stages})
    assert found["assumed"]["name"] == "H100 (assumed)"


@pytest.mark.long
def test_doctor_measures_the_cpu_that_it_is_on() -> None:
    done = selfplay("doctor", "--config", "tiny", "--device", "cpu")
    (assumed,) = [line for line in done.stdout.splitlines() if line.startswith("assumed: this CPU, ")]
    assert "TFLOP/s" in assumed
    assert any(line.split()[:1] == ["together"] for line in done.stdout.partition("an iteration")[2].splitlines())
