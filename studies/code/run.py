"""Counts how a code for scores is spoken in evaluated episodes: the words of each score, and the share that is right.

See `studies/code/README.md`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import command
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.games.matching.names import short_titles
from selfplay_pipeline.games.matching.rules import MatchingState
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes
from studies.common.planner import code_of


def main(
    files: Annotated[list[Path], typer.Argument(help="Files of episodes of a model of `studies.common.planner`.")],
    code: Annotated[int, typer.Option(help="Number of the code, as for `studies.common.planner --code`.")],
    config: Annotated[str, typer.Option(help="Built-in name or YAML file of the board.")] = "tiny_honest",
    output: Annotated[Path | None, typer.Option(help="Gets the counts as JSON.")] = None,
) -> None:
    """Print for each file how many cells are told, how many of them are true, and the words of each score."""
    game = make_game(load_config(config, {}).game)
    found = {}
    for file in files:
        messages = [(game.state_from_json(one.state), one.turns[0].text) for one in read_episodes(file)]
        found[str(file)] = told_in(messages, code)
        say(f"{file}: {json.dumps(found[str(file)])}")
    if output is not None:
        write_text(output, json.dumps({"config": config, "code": code, "files": found}, indent=1) + "\n")


def told_in(messages: Iterable[tuple[MatchingState, str]], code: int) -> dict[str, Any]:
    """Returns the number of told cells, the number of those that are true in the code, and the words of each score.

    A cell is told by three words: its reviewer, its paper and any other word. It is true if seat 0 sees the cell, and
    the last word is that of its score.

    Args:
        messages: Messages of seat 0 and their states; a turn that is no message counts as one that tells nothing.
        code: Number of the code.
    """
    words, told, true = code_of(code), 0, 0
    spoken: dict[int, Counter[str]] = defaultdict(Counter)
    for state, text in messages:
        places = [(name.split()[0], title) for name in state.reviewers for title in short_titles(state.papers)]
        scores = dict(zip(places, [score for row in state.view(0) for score in row], strict=True))
        tag, *said = text.split() or [""]
        for reviewer, paper, word in zip(said[::3], said[1::3], said[2::3], strict=False):
            if tag == "[message]" and (reviewer, paper) in scores:
                told += 1
                if (score := scores[reviewer, paper]) is not None:
                    spoken[score][word] += 1
                    true += word == words[score]
    return {"told": told, "true": true, "words": {score: dict(spoken[score]) for score in sorted(spoken)}}


if __name__ == "__main__":
    command.run(main)
