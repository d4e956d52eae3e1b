"""The README stays short, and what the documents point to or tell to type is there."""

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from command import selfplay

from selfplay_pipeline.cli import app, reference
from selfplay_pipeline.config.fields import keys
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.games.registry import shipped_games
from selfplay_pipeline.generate.read_records import read_episodes

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
MODELS = [*(ROOT / "selfplay_pipeline").rglob("MODEL.md")]
OPTIONS = ROOT / "docs" / "options.md"
"""Page that `make docs` writes, which is no file of the repository."""
PAGES = [README, *sorted({*(ROOT / "docs").rglob("*.md"), *(ROOT / "studies").rglob("*.md"), *MODELS, OPTIONS})]
TRACKED = {
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    if name
}
"""Files of the repository; those that a command wrote are none, so a link to one is dead on a fresh checkout."""
LINKED = sorted({path for path in TRACKED if path.suffix == ".md"} | {OPTIONS})
ANY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
LINK = re.compile(r'\]\(([^)\s]+)\)|\bsrc="([^"]+)"')
CODE = re.compile(r"```.*?```|`[^`]+`|^    [^\n]+", re.DOTALL | re.MULTILINE)
KEY = re.compile(r"`(game|engine|generate|convert|imitate|train|evaluate|iterate|online|partner)\.([a-z_]+)\b")
FILES = {"json", "jsonl", "log", "md", "parquet", "py", "yaml"}
"""Endings by which `train.parquet` is no key."""


def text_of(page: Path) -> str:
    return reference.page() if page == OPTIONS else page.read_text()


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page without code that looks like one."""
    text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands(group, name: str = "") -> Iterator[tuple[str, set[str]]]:
    """Each command of the program, with its options."""
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{word} ")
        else:
            parameters = command.get_params(typer.Context(command))
            yield (
                name + word,
                {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)},
            )


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_the_readme_is_a_newcomers_five_minutes():
    assert len(README.read_bytes()) <= 8000


def dead_links(page: Path, text: str) -> list[str]:
    """Returns the links that lead to no file or folder of the repository, or to no heading of a page."""
    dead = []
    for link in filter(None, (match[1] or match[2] for match in LINK.finditer(text))):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            known = target in TRACKED or any(target in file.parents for file in TRACKED) or target == page == OPTIONS
            if not known or (anchor and anchor not in anchors(target)):
                dead.append(link)
    return dead


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_a_file_of_the_repository_and_a_heading(page):
    assert dead_links(page, text_of(page)) == []


@pytest.mark.parametrize("link", ["options.md", "options.md#section-imitate", "no.md", "data.md#missing", "../.venv"])
def test_a_link_to_a_written_page_or_to_nothing_is_dead(link):
    assert dead_links(ROOT / "docs" / "commands.md", f"[words]({link})") == [link]


def defined_in(path: Path) -> set[str]:
    """Names of the classes, functions and constants of a module, and of methods as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef():
                methods = (part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
                names |= {node.name, *(f"{node.name}.{method}" for method in methods)}
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_the_architecture_names_what_the_linked_file_defines():
    links = re.findall(r"\[`([\w.]+)`\]\(([^)\s]+\.py)\)", (ROOT / "docs" / "architecture.md").read_text())
    wrong = [f"{name} in {path}" for name, path in links if name not in defined_in(ROOT / "docs" / path)]
    assert len(links) > 30 and not wrong


@pytest.mark.usefixtures("no_game_named")
def test_the_game_of_the_readme_has_30_lines_at_most_and_passes_its_check(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    game = tmp_path / "addition.py"
    game.write_text(code)
    checked = selfplay("game", "check", str(game))
    assert checked.returncode == 0, checked.stdout
    played = tmp_path / "games.jsonl"
    options = f"--game {game} --player adding --num-episodes 8 --output {played}"
    done = selfplay("generate", *options.split())
    assert done.returncode == 0, done.stderr
    assert {record.outcome.normalized_reward for record in read_episodes(played)} == {1.0}


def test_every_page_is_found_from_the_readme():
    linked = {(match[1] or "").partition("#")[0] for match in LINK.finditer(README.read_text())}
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md") if page != OPTIONS} <= linked


def test_the_architecture_has_a_line_for_each_folder():
    package = ROOT / "selfplay_pipeline"
    text = (ROOT / "docs" / "architecture.md").read_text()
    (tree,) = re.findall(r"```\n(selfplay_pipeline/.*?)```", text, re.DOTALL)
    folders = {path.parent.name for path in package.glob("*/*")} - {"__pycache__"}
    assert set(re.findall(r"^  (\w+)/ ", tree, re.MULTILINE)) == folders
    assert all((ROOT / folder).is_dir() for folder in re.findall(r"^(\w+)/ ", tree, re.MULTILINE))


@ANY_PAGE
def test_a_command_and_its_options_are_there(page):
    found = CODE.findall(text_of(page))
    text = "\n".join(
        code if code[0] == " " or code[:3] == "```" else " ".join(code.strip("`").split()) for code in found
    )
    for line in re.findall(r"(?:^|[ /])selfplay ([a-z].*)", text, re.MULTILINE):
        words = shlex.split(line, comments=True)
        name = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), None)
        assert name, line
        given = {word for word in words[: words.index("--") if "--" in words else None] if word.startswith("--")}
        assert given <= COMMANDS[name], line


def test_the_page_of_commands_lists_each_command():
    page = (ROOT / "docs" / "commands.md").read_text()
    assert [name for name in COMMANDS if f"| `selfplay {name}" not in page] == []


@ANY_PAGE
def test_a_key_is_one_of_the_configuration(page):
    of_games = (key.name for game in shipped_games() for key in keys(game.settings, "game."))
    known = {key.name for key in keys(Config)}.union(of_games)
    for section, key in KEY.findall(text_of(page)):
        assert f"{section}.{key}" in known or key in FILES, f"{section}.{key}"


def test_the_example_of_a_configuration_can_be_used(tmp_path):
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "configuration.md").read_text(), re.DOTALL)
    (tmp_path / "my.yaml").write_text(example)
    assert load_config(str(tmp_path / "my.yaml"), {}).train.gpus_per_node == 8


# --- messages that the page on troubleshooting quotes -------------------------------------------------------------


TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text()
SCRIPTS = [ROOT / "Makefile", ROOT / "bin" / "install_browser.sh"]
NOT_OURS = "selfplay: command not found"


def quoted_messages() -> list[str]:
    """What is printed: quoted in bold, on one line or two; `…` stands for what differs."""
    bold = re.findall(r"\*\*(.+?)\*\*", TROUBLES, re.DOTALL)
    quoted = [" ".join(text.split()) for words in bold for text in re.findall(r"`([^`]+)`", words)]
    return [text for text in quoted if " " in text and text != NOT_OURS]


def printed() -> Iterator[str]:
    """All literal text of the program; of a formatted string the parts between what is put in."""
    for path in (ROOT / "selfplay_pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
    yield from (path.read_text() for path in SCRIPTS)


@pytest.fixture(scope="module")
def literals() -> list[str]:
    return list(printed())


def test_there_are_messages():
    assert len(quoted_messages()) >= 30


@pytest.mark.parametrize("message", quoted_messages())
def test_a_quoted_message_is_printed_somewhere(literals, message):
    # The program puts its lines together from parts, most often at a semicolon or beside what differs.
    parts = [part.strip(" :,.'()") for part in re.split("…|;", message)]
    missing = [part for part in parts if not any(part in literal for literal in literals)]
    assert not missing
