"""Can slime run the experiment here? Read from its source, because to import it takes Megatron and a GPU."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from selfplay_pipeline.config import gpu_visible
from selfplay_pipeline.errors import UserError
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.records import CHAT
from selfplay_pipeline.slime.config import DEFAULT, TRACKING, RolloutConfig
from selfplay_pipeline.slime.data import check_data

VERSION = "0.3.1"
"""Of slime, that this was written and tested with."""
SCRIPT = Path(__file__).parents[2] / "bin" / "run_slime_matching.sh"
SAMPLE_FIELDS = (
    "prompt", "tokens", "response", "response_length", "reward", "loss_mask", "weight_versions", "rollout_log_probs",
    "remove_sample", "status", "metadata", "group_index", "index", "session_id", "non_generation_time",
)  # fmt: skip
"""Of `slime.utils.types.Sample`, that the rollout and the hooks read or write."""
STATUSES = ("PENDING", "COMPLETED", "TRUNCATED", "ABORTED", "FAILED")
APPEND_PARAMETERS = ("args", "tokens", "log_probs", "trainable", "meta_info", "text", "update_terminal_info")
CALLS = (
    ("generate hook", "custom_generate_func", ("args", "sample", "sampling_params", "evaluation=")),
    ("reward hook", "custom_reward_post_process_func", ("self.args", "samples")),
    ("log hook", "custom_log_func", ("rollout_id", "args", "samples", "rollout_extra_metrics", "rollout_time")),
    ("log hook of evaluations", "custom_log_func", ("rollout_id", "args", "data", "extra_metrics")),
)
"""How slime calls the hooks: what it is, the function's name at the call, the arguments that ours take."""
EVALUATION_FIELDS = ("name", "path", "temperature", "n_samples_per_eval_prompt")
"""Of `slime.utils.eval_config.EvalDatasetConfig`, that `eval_config.yaml` sets."""


@dataclass(frozen=True)
class Item:
    """One thing that the experiment needs.

    Attributes:
        found: what is there.
        remedy: what to do when it is not.
    """

    ok: bool
    what: str
    found: str
    remedy: str = ""


def check_all(slime: Path | None, config: Path | None, data: Sequence[Path] = ()) -> list[Item]:
    """Everything, in the order in which to mend it.

    Args:
        slime: folder of slime's source; by default what Python would import.
        config: file for `--custom-config-path`; by default the package's own.
        data: files of prompt data; by default none is read.
    """
    source = Source.find(slime)
    items = [
        Item(
            source is not None,
            "slime",
            "not found" if source is None else f"{source.version} in {source.root}",
            f"install slime {VERSION} (its docs/en/get_started) or name its folder with --slime",
        )
    ]
    if source is not None:
        items += [*check_calls(source), *check_sample(source), check_stopping(source), *check_evaluations(source)]
        items += [check_flags(source)]
    items += [_module("megatron", "slime trains with Megatron-LM; take slime's image or set PYTHONPATH to its folder")]
    items += [_module("sglang", "slime plays with SGLang; take slime's image"), _module("ray", "pip install ray")]
    items += [Item(gpu_visible(), "GPU", "visible" if gpu_visible() else "none", "slime trains on GPUs only")]
    items += [_attempt("our hooks", _hooks), *check_config(config or DEFAULT)]
    return items + [item for path in data for item in check_rows(path, config or DEFAULT)]


@dataclass
class Source:
    """slime's source.

    Attributes:
        root: the folder that holds the package `slime`, and in a checkout `scripts` and `train.py`.
    """

    root: Path
    trees: dict[Path, ast.Module] = field(default_factory=dict)

    @classmethod
    def find(cls, folder: Path | None) -> Source | None:
        """slime in a folder, or where Python finds it; None if there is none."""
        if folder is None:
            spec = find_spec("slime")
            places = list(spec.submodule_search_locations or []) if spec is not None else []
            roots = [Path(place).parent for place in places]
        else:
            roots = [folder]
        return next((cls(root) for root in roots if (root / "slime" / "utils" / "types.py").is_file()), None)

    @property
    def version(self) -> str:
        setup = self.root / "setup.py"
        if setup.is_file() and (found := re.search(r"version=\"([^\"]+)\"", _text(setup))):
            return found[1]
        try:
            return importlib.metadata.version("slime")
        except importlib.metadata.PackageNotFoundError:
            return "of unknown version"

    def modules(self) -> Iterator[ast.Module]:
        """All modules that can be read, parsed."""
        for path in sorted((self.root / "slime").rglob("*.py")):
            yield self.module(path)

    def module(self, path: Path) -> ast.Module:
        """One module, parsed; an empty one where it is missing or cannot be read."""
        if path not in self.trees:
            try:
                self.trees[path] = ast.parse(path.read_bytes())
            except (OSError, SyntaxError, ValueError, RecursionError):
                self.trees[path] = ast.Module([], [])
        return self.trees[path]

    def calls(self, name: str) -> list[list[str]]:
        """The arguments of every call of a function or method, as written; keywords as `name=`."""
        return [
            [ast.unparse(argument) for argument in call.args] + [f"{keyword.arg}=" for keyword in call.keywords]
            for module in self.modules()
            for call in ast.walk(module)
            if isinstance(call, ast.Call) and ast.unparse(call.func).removeprefix("self.") == name
        ]

    def class_of(self, path: str, name: str) -> ast.ClassDef | None:
        """A class of a module, whose path is given from the package's folder."""
        tree = self.module(self.root / "slime" / path)
        return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)

    def options(self) -> set[str]:
        """Names of command-line options in the source."""
        return {
            node.value
            for module in self.modules()
            for node in ast.walk(module)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--")
        }

    def script_options(self) -> set[str]:
        """Options that slime's own launch scripts pass, to Megatron and SGLang too."""
        return {name for path in sorted(self.root.glob("scripts/**/*.sh")) for name in options_of(_text(path))}


def check_calls(source: Source) -> list[Item]:
    """Whether slime calls the hooks with the arguments that ours take."""
    items: list[Item] = []
    for what, name, expected in CALLS:
        found, wanted = [", ".join(call) for call in source.calls(name)], ", ".join(expected)
        text = f"called with ({wanted})" if wanted in found else f"called with {found}" if found else "never called"
        items.append(Item(wanted in found, what, text, f"slime {VERSION} calls it with ({wanted}); use that version"))
    return items


def check_sample(source: Source) -> list[Item]:
    """Whether `Sample` has what the rollout reads and writes."""
    sample = source.class_of("utils/types.py", "Sample")
    body = sample.body if sample is not None else []
    statuses = {
        target.id
        for node in body
        if isinstance(node, ast.ClassDef) and node.name == "Status"
        for assign in node.body
        if isinstance(assign, ast.Assign)
        for target in assign.targets
        if isinstance(target, ast.Name)
    }
    remedy = f"these are of slime {VERSION}; use that version"
    items = [_all_there("fields of Sample", SAMPLE_FIELDS, _fields(sample), remedy)]
    items.append(_all_there("statuses of Sample", STATUSES, statuses, remedy))
    methods = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == "append_response_tokens"]
    if methods:
        arguments = {argument.arg for argument in [*methods[0].args.args, *methods[0].args.kwonlyargs]}
        items.append(_all_there("Sample.append_response_tokens", APPEND_PARAMETERS, arguments, remedy))
    else:
        items.append(Item(True, "Sample.append_response_tokens", "not in this version: the fields are set one by one"))
    return items


def check_stopping(source: Source) -> Item:
    """Whether a dialogue can see that slime wants its step to end, which `rollout` reads off `GenerateState`."""
    names: set[str] = set()
    for path, name in (("rollout/sglang_rollout.py", "GenerateState"), ("utils/misc.py", "SingletonMeta")):
        found = source.class_of(path, name)
        nodes = ast.walk(found) if found is not None else iter(())
        assigned = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
        names |= {f"{name}.{ast.unparse(target).removeprefix('self.')}" for target in assigned}
    remedy = f"slime {VERSION} has them; without them a dialogue is not broken off while its partner thinks"
    return _all_there("end of a step", ("GenerateState.aborted", "SingletonMeta._instances"), names, remedy)


def check_evaluations(source: Source) -> list[Item]:
    """Whether a dataset of slime's evaluations has a temperature of its own, and its figures reach slime's metrics."""
    dataset = source.class_of("utils/eval_config.py", "EvalDatasetConfig")
    remedy = f"slime {VERSION} has them; eval_config.yaml needs them to evaluate greedily too"
    found = next((package for package in TRACKING if _tracks(source, package)), None)
    return [
        _all_there("evaluation sets", EVALUATION_FIELDS, _fields(dataset), remedy),
        Item(
            found is not None,
            "figures of evaluations",
            f"logged by {found}.logging_utils" if found else f"no logging_utils in {' or '.join(TRACKING)}",
            f"use slime {VERSION}; else TensorBoard and wandb hold no figures of how evaluation dialogues went",
        ),
    ]


def _fields(dataclass: ast.ClassDef | None) -> set[str]:
    body = dataclass.body if dataclass is not None else []
    return {node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}


def _tracks(source: Source, package: str) -> bool:
    folder = source.root / package.replace(".", "/")
    functions = {
        (node.name, *(argument.arg for argument in node.args.args))
        for name in ("logging_utils.py", "metric_utils.py")
        for node in source.module(folder / name).body
        if isinstance(node, ast.FunctionDef)
    }
    return {("log", "args", "metrics", "step_key"), ("compute_rollout_step", "args", "rollout_id")} <= functions


def check_flags(source: Source, script: Path = SCRIPT) -> Item:
    """Whether slime knows every option that the launch script passes.

    Megatron's and SGLang's are looked for in their own sources where they are installed, and in slime's scripts.
    """
    passed = options_of(script.read_text()) if script.is_file() else set()
    known = source.options() | source.script_options() | _options_in("megatron") | _sglang_options()
    unknown = sorted(passed - known)
    return Item(
        bool(passed) and not unknown,
        script.name,
        f"{len(passed)} options" + (f"; unknown: {', '.join(unknown)}" if unknown else ""),
        "take the options out that this slime no longer has" if passed else "run this from the project's folder",
    )


def options_of(text: str) -> set[str]:
    """The options that lines of a launch script pass to slime's train.py: those inside arrays of arguments."""
    arrays = re.findall(r"^\w*ARGS=\(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL)
    lines = [line.split("#")[0] for array in arrays for line in array.splitlines()]
    return {name for line in lines for name in re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", line)}


def check_config(path: Path) -> list[Item]:
    """Whether the configuration can be read, and its partner be reached."""
    try:
        config = RolloutConfig.read(path)
    except UserError as error:
        return [Item(False, "configuration", str(error), "mend the file")]
    found = f"{path.name}: max_turns {config.max_turns}, partner {config.selfplay.partner}"
    return [Item(True, "configuration", found), _attempt("partner", lambda: _partner(config))]


def _hooks() -> str:
    for name in ("rollout", "hooks"):
        import_module(f"selfplay_pipeline.slime.{name}")
    return "can be imported"


def _partner(config: RolloutConfig) -> str:
    section = config.selfplay
    if section.partner == CHAT:
        import_module("openai")
    # Without its cache, whose file would be made here.
    looked_at = section.model_copy(update={"chat": section.chat.model_copy(update={"cache": None})})
    return f"{config.model_copy(update={'selfplay': looked_at}).player().name} can be called"


def check_rows(path: Path, config: Path) -> list[Item]:
    """Whether the rows can be played, and promise no more turns than a dialogue of this configuration gets."""
    try:
        rules = check_data(path)
    except UserError as error:
        return [Item(False, "prompt data", str(error), "mend what it says")]
    games = ", ".join(sorted({make_game(rule).describe() for rule in rules}))
    items = [Item(True, "prompt data", f"{path}: {games}")]
    with suppress(UserError):  # said of the configuration already
        turns, promised = 2 * RolloutConfig.read(config).max_turns, max(rule.max_length for rule in rules)
        if promised > turns:
            found = f"{path}: the rows promise {promised} turns, a dialogue gets {turns}"
            remedy = f"write them with --max-length {turns}, or raise max_turns of {config.name}"
            items.append(Item(False, "turns", found, remedy))
    return items


def _attempt(what: str, find: Callable[[], str]) -> Item:
    try:
        return Item(True, what, find())
    except UserError as error:
        return Item(False, what, str(error), "mend what it says")
    except ModuleNotFoundError as error:
        return Item(False, what, f"needs the module {error.name}", f"pip install {error.name}")
    except ImportError as error:
        return Item(False, what, f"cannot be imported: {' '.join(str(error).split())}", "mend the installation")


def _all_there(what: str, needed: Sequence[str], names: set[str], remedy: str) -> Item:
    missing = [name for name in needed if name not in names]
    return Item(not missing, what, f"without {', '.join(missing)}" if missing else f"all {len(needed)}", remedy)


def _module(name: str, remedy: str) -> Item:
    found = find_spec(name) is not None
    return Item(found, name, "found" if found else "not found", remedy)


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


def _options_in(package: str) -> set[str]:
    spec = find_spec(package)
    folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec is not None else []
    files = [path for folder in folders for path in folder.glob("training/arguments.py")]
    return {name for path in files for name in re.findall(r"--[a-z][a-z0-9-]*", _text(path))}


def _sglang_options() -> set[str]:
    """slime passes SGLang's options on under `--sglang-`."""
    spec = find_spec("sglang")
    folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec is not None else []
    files = [path for folder in folders for path in folder.glob("srt/server_args.py")]
    names = {name for path in files for name in re.findall(r"\"--([a-z][a-z0-9-]*)\"", _text(path))}
    return {f"--sglang-{name}" for name in names}
