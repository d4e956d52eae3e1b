"""A trial of a model's chat template in a process of its own, since a template may run for ever or take all memory.

Jinja's sandbox keeps it from the program, but sets no bounds, and real templates use all of the language. The process
runs this file alone, so that it costs little more than an interpreter that starts.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

SECONDS = 3
"""Seconds of processor time that a trial may take; a template takes milliseconds."""
MOST_BYTES = 2**30
"""Bytes of memory that a trial may take."""
LONGEST_TEXT = 2**20
"""Characters of a rendered conversation of a few thousand."""
UNBOUNDED = 3
"""Exit code of a trial that came upon a bound itself."""

Conversations = Sequence[Sequence[Mapping[str, str]]]


def unbounded(template: str, conversations: Conversations, variables: Mapping[str, object]) -> str:
    """What a template takes too much of when it renders conversations; empty if nothing.

    Args:
        variables: what it is given beside the messages.

    Other mistakes of a template are not looked for.
    """
    return _unbounded(json.dumps([template, conversations, variables], default=str))


@lru_cache(maxsize=64)
def _unbounded(request: str) -> str:
    command = [sys.executable, "-P", __file__]
    trial = subprocess.run(
        command, input=request, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    if trial.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"more than {SECONDS} s of processor time"
    return trial.stdout if trial.returncode == UNBOUNDED else ""


def _render(template: str, conversations: Conversations, variables: Mapping[str, object]) -> str:
    """Render in an environment such as that of transformers, which would take seconds to import."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Marks what a model writes."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: object, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": time.strftime}
    compiled = environment.from_string(template)
    given = {"tools": None, "documents": None, "add_generation_prompt": True, **variables}
    for messages in conversations:
        length = 0
        for part in compiled.generate(messages=messages, **given):
            length += len(part)
            if length > LONGEST_TEXT:
                return f"more than {LONGEST_TEXT:,} characters"
    return ""


def _main() -> int:
    for kind, limit in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_AS, MOST_BYTES), (resource.RLIMIT_CORE, 0)):
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
    try:
        much = _render(*json.load(sys.stdin))
    except MemoryError:
        much = f"more than {MOST_BYTES / 2**30:g} GiB of memory"
    except Exception:  # a template may raise anything; the real rendering says what
        return 0
    print(much, end="")
    return UNBOUNDED if much else 0


if __name__ == "__main__":
    sys.exit(_main())
