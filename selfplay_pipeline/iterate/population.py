"""`selfplay iterate --members`: several policies, trained round by round with each other.

Each member has an ordinary run folder, `FOLDER/member_N`, which holds all of its state. In iteration k a member plays
with itself and with the checkpoints that the other members made in iteration k - 1, so the order of the members does
not matter, and a killed population continues with the same partners.
"""

from __future__ import annotations

from pathlib import Path

from selfplay_pipeline.config.schema import MEMBERS, SELF, Config, PartnerShare
from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.iterate.loop import Loop, run_together
from selfplay_pipeline.iterate.partners import MEMBER
from selfplay_pipeline.iterate.preflight import check_begun_together, plan_run

BETWEEN_SEEDS = 1000
"""Difference of the seeds of successive members; a trainer adds the number of the iteration to the seed."""
ONE_PROCESS = ("console", "tensorboard")
"""Loggers of which one process can write several runs at a time."""


def member_name(number: int) -> str:
    """Returns the name of a member, counted from 1."""
    return f"member_{number}"


def member_folders(folder: Path, members: int) -> list[Path]:
    """Returns the run folder of each member."""
    return [folder / member_name(number) for number in range(1, members + 1)]


def member_configs(config: Config, members: int) -> list[Config]:
    """Returns the configuration of each member: a seed of its own, and the other members among its partners.

    The share of the partner `members` is divided equally among the others. Without `iterate.partners`, each member has
    itself and each other one with equal shares. The only member of a population of one has the given configuration.

    Raises:
        UserError: The configured partners do not fit a population.
    """
    given = config.iterate.partners
    named = [config.iterate.partner, *(one.player for one in given)]
    if refused := [name for name in named if MEMBER.fullmatch(name)]:
        raise UserError(
            f"iterate.partners: {refused[0]}: a population names its members itself; give all the others a share with "
            f"--set 'iterate.partners=[{MEMBERS}=0.5, …]', and write ./ before a folder of this name"
        )
    share = next((one.share for one in given if one.player == MEMBERS), None)
    if members == 1 and share is not None:
        raise UserError(f"iterate.partners: {MEMBERS}: the only member of a population has no others; give --members 2")
    if members == 1:
        return [config]
    if config.iterate.partner != SELF:
        raise UserError(
            f"iterate.partner: {config.iterate.partner}: the members are partners too; name all in iterate.partners, "
            f"such as --set 'iterate.partners=[{MEMBERS}=0.5, {config.iterate.partner}=0.5]'"
        )
    if given and share is None:
        raise UserError(f"iterate.partners: no share for the other members; give one, such as {MEMBERS}=0.5")
    if refused := [name for name in config.train.loggers if name not in ONE_PROCESS]:
        raise UserError(
            f"train.loggers: {refused[0]}: one process trains all members, and writes one run of it at a time; give "
            "tensorboard, or leave it out"
        )
    if config.seed + BETWEEN_SEEDS * (members - 1) > LARGEST:
        raise UserError(f"seed: {config.seed}: the last member's seed would be too large; give a smaller one")
    given = given or [
        PartnerShare(player=SELF, share=1 / members),
        PartnerShare(player=MEMBERS, share=(members - 1) / members),
    ]
    return [_member(config, given, number, members) for number in range(1, members + 1)]


def _member(config: Config, given: list[PartnerShare], own: int, members: int) -> Config:
    others = [member_name(number) for number in range(1, members + 1) if number != own]
    partners = [
        share.model_copy(update={"player": name, "share": share.share / len(names)})
        for share in given
        for names in [others if share.player == MEMBERS else [share.player]]
        for name in names
    ]
    iterate = config.iterate.model_copy(update={"partners": partners})
    return config.model_copy(update={"seed": config.seed + BETWEEN_SEEDS * (own - 1), "iterate": iterate})


async def run_population(
    config: Config, folder: Path, members: int, loop_type: type[Loop] | None = None
) -> list[RunDirectory]:
    """Run the missing stages of all members, and return their run folders.

    After a kill at any moment, the same call continues at the interrupted stage.

    Args:
        config: The configuration, as of `run_iterate`; `iterate.partners` may give the other members a share.
        folder: Folder of the run folders member_1, member_2, …
        members: Number of members.
        loop_type: Variant of the loop, for tests.

    Raises:
        UserError: A folder is in use or holds a run with another configuration, or a stage rejects its input.
    """
    check_folder(folder, "iterate --members")
    configs = member_configs(config, members)
    return await run_together([*zip(configs, member_folders(folder, members), strict=True)], folder, loop_type)


def plan_population(config: Config, folder: Path, members: int) -> list[str]:
    """Returns lines that describe the work on each member; writes nothing.

    Raises:
        UserError: The population would be rejected.
    """
    check_folder(folder, "iterate --members")
    configs, folders = member_configs(config, members), member_folders(folder, members)
    check_begun_together([*zip(configs, folders, strict=True)])
    return [
        f"{run_dir.name} (seed {own.seed}): {line}"
        for own, run_dir in zip(configs, folders, strict=True)
        for line in plan_run(own, run_dir)
    ]
