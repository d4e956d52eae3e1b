"""Commands that show results and settings: report, show, export and config."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfplay_pipeline.command_parts.options import OfGames, given, load, taking
from selfplay_pipeline.command_parts.shared import DATA, RUNS, file_path
from selfplay_pipeline.core import reporting, stopping, terminal
from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.reporting import announce
from selfplay_pipeline.core.terminal.harmless import one_line

if TYPE_CHECKING:
    from selfplay_pipeline.generate.records import EpisodeRecord

app = typer.Typer()


@app.command(cls=OfGames)
def report(
    path: Annotated[
        Path, typer.Argument(help="Run directory, iteration, evaluation, or a JSONL file of episodes.")
    ] = RUNS,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="<path>",
            help="HTML file [default: report.html in the run, or next to a JSONL file]; or the folder of plots.",
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="Either html, or one or more of png, svg, pdf joined by commas.")
    ] = "html",
    max_megabytes: Annotated[
        float, typer.Option(min=0.5, max=LARGEST, help="Largest size of the HTML file; episodes beyond it are sampled.")
    ] = 5.0,
) -> None:
    """Write one HTML file: curves with intervals, time and tokens, and episodes to read, filter and compare.

    The page needs no network, and the run may still be in progress. Curves and figures count every episode. Above about
    400 episodes, the page contains a sample of them to read, and says how it was drawn. `--format png,svg` writes the
    curves as image files instead.
    """
    from selfplay_pipeline.core.files import check_is_folder
    from selfplay_pipeline.core.folders import check_file
    from selfplay_pipeline.report.draw import formats_in
    from selfplay_pipeline.report.sources import discover

    as_page = form.strip().lower() == "html"
    formats = [] if as_page else formats_in(form, also="html, or ")
    source = discover(path)
    folder = path.parent if path.is_file() else path
    plots = Path(output or folder / "plots")
    page = file_path(output or folder / "report.html") if as_page else plots
    if as_page:  # before the episodes are read, which is slow
        check_file(page, "report")
    else:
        check_is_folder(plots)
    from selfplay_pipeline.report.run import scan_all, write_page, write_plots

    scans = scan_all(source)
    if as_page:
        shown, total = write_page(source, scans, page, max_megabytes=max_megabytes)
        sampled = f" with {shown:,} of {total:,} episodes (--max-megabytes takes more)" if shown < total else ""
        terminal.result(one_line(f"{page}: {page.stat().st_size / 1e6:.1f} MB{sampled}; open it in a browser"))
        return
    for plot in write_plots(source, scans, formats, plots):
        terminal.result(one_line(str(plot)))


@app.command(cls=OfGames)
def show(
    file: Annotated[Path, typer.Argument(help="JSONL file of episodes.")] = DATA / "selfplay_games.jsonl",
    episode: Annotated[str | None, typer.Option(help="Id of the episode, as in its line or in the report.")] = None,
    worst: Annotated[bool, typer.Option("--worst", help="Show the episode with the lowest reward.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Show the episode with the highest reward.")] = False,
    random: Annotated[bool, typer.Option("--random", help="Show an episode drawn at random.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of --random.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show the trajectories too, token by token.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the newest episode again and again, until Ctrl-C.")
    ] = False,
) -> None:
    """Show one episode in the terminal: each player's view, the dialogue, and the proposal next to an optimal one.

    Without options, it is the last episode of the file, which may still be growing.
    """
    exclusive = {
        "--episode": episode is not None,
        "--worst": worst,
        "--best": best,
        "--random": random,
        "--follow": follow,
    }
    given = [name for name, on in exclusive.items() if on]
    if len(given) > 1:
        raise UserError(f"show: {' and '.join(given)} exclude each other; give one of them")
    if seed is not None and not random:
        raise UserError("show: --seed is the seed of --random; give both, or leave it out")
    from selfplay_pipeline.report import terminal as episode_view
    from selfplay_pipeline.report.reading import NO_TOKENS, find_decoder, nearby_checkpoints
    from selfplay_pipeline.report.sources import EpisodesFile

    console, played = terminal.Terminal(), EpisodesFile(file, "other", file.stem)

    def show(record: EpisodeRecord) -> None:
        decoder = find_decoder([*record.checkpoints, *nearby_checkpoints(file)]) if tokens else None
        episode_view.show_episode(record, console, decoder, played.game_of(record))
        if tokens and decoder is None:
            console.print(NO_TOKENS, style="dim")

    if follow:
        if not file.exists():
            terminal.say(f"waiting for {file}")
        with stopping.until_stopped():
            for record, count in episode_view.follow(file):
                if count > 1:
                    console.print(f"… {count - 1} episodes before this one", style="dim")
                show(record)
        return
    pick: episode_view.Pick = "worst" if worst else "best" if best else "random" if random else "last"
    show(episode_view.find_episode(file, episode) if episode is not None else episode_view.choose(file, pick, seed))


@app.command(cls=OfGames)
def export(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="JSONL files of episodes, all of one game and configuration.")],
    output: Annotated[Path, typer.Option(help="Folder of the dataset.")],
    config: Annotated[
        str | None,
        typer.Option(
            help="YAML file, or name of a built-in configuration, whose game was played [default: as stored beside the "
            "first of FILES]."
        ),
    ] = None,
    license: Annotated[str, typer.Option(help="Licence of the dataset for its card, such as apache-2.0.")] = "",
    push: Annotated[str | None, typer.Option(metavar="<name>", help="Upload the folder to this dataset.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Let only its owner see a new dataset of --push.")] = False,
) -> None:
    """Write episodes as a Hugging Face dataset folder: one row per seat with its messages, and a dataset card.

    `datasets.load_dataset(FOLDER)` loads it, TRL's SFTTrainer trains on it as it is, and `selfplay imitate FOLDER`
    reads it back. Any player may have held the seats.
    """
    from selfplay_pipeline.config.load import load_config
    from selfplay_pipeline.dataset import export_episodes
    from selfplay_pipeline.dataset import push as upload
    from selfplay_pipeline.games.registry import make_game
    from selfplay_pipeline.generate.read_records import read_episodes
    from selfplay_pipeline.report.sources import EpisodesFile

    if private and push is None:
        raise UserError("export: --private is for a dataset on the hub; give --push, its name there")
    if config is not None:
        game = make_game(load_config(config, {"game": given(context, "game")}, announce).game)
    else:
        first = next(read_episodes(files[0]), None)
        if first is None:
            raise UserError(f"{files[0]}: no episodes; `selfplay generate` writes them")
        game = EpisodesFile(files[0], "other", "").game_of(first)
    done = export_episodes(files, game, output, license)
    terminal.result(one_line(f"{output}: {done.to_text()}"))
    if push is not None:
        terminal.result(one_line(upload(output, push, private=private)))


@app.command(name="config", cls=taking("model"))
def show_config(context: typer.Context) -> None:
    """Print the whole configuration as YAML: every key with its meaning and the value that a command would use."""
    settings = load(context)
    from selfplay_pipeline.config.fields import as_yaml

    reporting.begin()
    terminal.result(as_yaml(settings))
