"""Start SGLang's server with the replacements of `sglang_patches.py`.

Run as a module. Workers are forked on a CPU. Spawned workers import this module again, so they get the stand-ins too.
"""

from __future__ import annotations

import os
import sys

from selfplay_pipeline.core.garbage import collect_seldom
from selfplay_pipeline.core.loopback import keep_torch_local
from selfplay_pipeline.core.processes import name_semaphores
from selfplay_pipeline.core.server_keys import SERVER_KEY
from selfplay_pipeline.engines import sglang_patches

ON_CPU = os.environ.get("SGLANG_USE_CPU_ENGINE") == "1"
collect_seldom()
if ON_CPU:
    sglang_patches.install_stand_ins()
if ON_CPU and __name__ in ("__main__", "__mp_main__"):
    sglang_patches.replace_attention()
    sglang_patches.replace_sampling()
keep_torch_local()


class Unprinted(str):
    """A key that is hidden in the list of arguments that SGLang writes to its log."""

    def __repr__(self) -> str:
        return "'(not shown)'"


def main(arguments: list[str]) -> None:
    """Serve until stopped, with the arguments of `python -m sglang.launch_server` and the key from the environment."""
    from sglang.srt.entrypoints import http_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    name_semaphores()
    sglang_patches.hold_ports()
    sglang_patches.let_controller_sleep()
    server_args = prepare_server_args(arguments)
    sglang_patches.end_at_once()
    if ON_CPU:
        sglang_patches.fork_workers()
        http_server.app.add_middleware(sglang_patches.Direct)
    key = os.environ.pop(SERVER_KEY, "")
    if key and server_args.tokenizer_worker_num == 1:  # with more workers SGLang checks no key
        server_args.api_key = Unprinted(key)
    try:
        http_server.launch_server(server_args, run_scheduler_process_func=sglang_patches.run_scheduler)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
