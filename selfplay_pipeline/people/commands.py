"""The command `play`, and the figures of `evaluate --people`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfplay_pipeline.command_parts.options import given, load, taking
from selfplay_pipeline.command_parts.shared import OTHERS, output_file, suggest
from selfplay_pipeline.core import reporting
from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.core.stopping import run
from selfplay_pipeline.core.terminal import say

if TYPE_CHECKING:
    from selfplay_pipeline.config.schema import Config
    from selfplay_pipeline.people.web.start_server import Place

app = typer.Typer()


@app.command(cls=taking("model"))
def play(
    context: typer.Context,
    player: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Who holds the seats: person (somebody at this terminal or, with --web, in a browser), policy, "
            f"{OTHERS}. One name holds all, or give one for each seat "
            "[default: person in seat 0, policy in all others]."
        ),
    ] = None,
    first_state: Annotated[int, typer.Option(min=0, max=LARGEST, help="Number of the first game state.")] = 0,
    num_episodes: Annotated[
        int,
        typer.Option(
            min=0, max=LARGEST, help="Episodes to play now; 0 asks after each one. With --web: of the file, 0 for any."
        ),
    ] = 0,
    output: Annotated[
        Path | None,
        output_file(
            "JSONL file; one episode a line [default: data/played/PLAYERS/selfplay_games.jsonl, with --study "
            "data/studies/NAME/selfplay_games.jsonl]."
        ),
    ] = None,
    web: Annotated[
        bool, typer.Option("--web", help="Let people play in their browsers; each has a page of their own.")
    ] = False,
    study: Annotated[
        Path | None,
        typer.Option(
            help="YAML file of a study, with --web: each person plays a list of states and partners in a balanced "
            "order, after consent (docs/studies.md)."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the pages, with --web.")] = 8230,
    listen: Annotated[
        str,
        typer.Option(
            help="Address of the pages, with --web. Any other than the default can be reached from other machines, and "
            "needs a key in SELFPLAY_PLAY_KEY, which people type once."
        ),
    ] = "127.0.0.1",
    patience: Annotated[
        float, typer.Option(min=0.01, max=10_000, help="Minutes after which somebody silent has left, with --web.")
    ] = 30,
) -> None:
    """Hold a seat yourself: you see that seat's view, talk, and see the result beside the optimum.

    Type a turn and press Enter: the game checks it and shows how it reads it; Enter again sends it, and until then it
    can be edited. Tab fills in a form of each turn that is possible now, ? shows the rules and your view, Ctrl-D leaves
    the episode. Two people may share the terminal, which is cleared between their turns.

    With --web, any number of people play at once in their browsers, each in an episode of their own, or together if
    several seats are held by people. A server that was killed goes on where it stopped if the command is repeated. With
    --study, each person plays a fixed list of episodes, and is not told who the partners are.

    Each state is played once. An episode that is left is stored too, with the status `abandoned`. The same command
    continues with the next state. `show`, `report` and `imitate` take the file.
    """
    settings = load(context)
    from selfplay_pipeline.games.registry import make_game
    from selfplay_pipeline.generate.records import PERSON, POLICY
    from selfplay_pipeline.generate.seats import check_players, seats_for
    from selfplay_pipeline.people.play import check_play_together, default_output, play_episodes
    from selfplay_pipeline.people.terminal_screen import TerminalScreen, check_terminal
    from selfplay_pipeline.people.web.start_server import Place

    place = Place(listen, port, patience)
    if study is not None:
        if not web or player or first_state or num_episodes or given(context, "seed") is not None:
            raise UserError(
                "--study: needs --web, and takes players, states, number of episodes and seed from its file; leave out "
                "--player, --first-state, --num-episodes and the key seed"
            )
        play_study(settings, study, output, place)
        return
    game = make_game(settings.game)
    named = player or [PERSON, *[POLICY] * (len(game.roles) - 1)]
    check_players(game, [shipped(name) for name in named if name != PERSON])  # a misspelt one before their number
    seats = seats_for(game, named)
    output = output or default_output(seats)
    if not web and place != Place():
        raise UserError("--port, --listen and --patience are about pages in browsers; give --web too")
    if web:
        serve(settings, output, seats, place, first_state, num_episodes)
        return
    check_play_together(settings, output, first_state, seats)  # a misspelt player is said before a missing terminal
    check_terminal()
    reporting.begin()
    stored = run(play_episodes(settings, output, seats, TerminalScreen(), first_state=first_state, limit=num_episodes))
    if stored:
        suggest("show", output)


def play_study(config: Config, file: Path, output: Path | None, place: Place) -> None:
    """Serve the pages of a study until a signal stops the command."""
    from selfplay_pipeline.people.web.start_server import serve_study
    from selfplay_pipeline.people.web.study import read_study

    study = read_study(file, config)
    output = output or Path("data/studies") / file.stem / "selfplay_games.jsonl"
    reporting.begin()
    run(serve_study(config, output, study, place, lambda url: say(f"play at {url} (Ctrl-C stops)")))


def serve(config: Config, output: Path, seats: list[str], place: Place, first_state: int, limit: int) -> None:
    """Serve the pages until a signal stops the command."""
    from selfplay_pipeline.people.web.start_server import serve_people

    reporting.begin()
    run(
        serve_people(
            config, output, seats, place, lambda url: say(f"play at {url} (Ctrl-C stops)"),
            first_state=first_state, limit=limit,
        )
    )  # fmt: skip


def show_figures(config: Config, place: Path) -> None:
    """Measure the people of a file of episodes, or of the folder of a study, and show the figures."""
    from selfplay_pipeline.people.figures_table import show_people
    from selfplay_pipeline.people.people_figures import evaluation_path, games_at, run_people

    games = games_at(place)
    show_people(run_people(config, place), evaluation_path(games))
