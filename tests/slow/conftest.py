"""One SGLang server for the whole test run."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.sglang_server import ServerSpec, SGLangServer

TINY = Path("data/tiny_model")


@dataclass
class Server:
    """A running server. It serves `data/tiny_model` at the start of each test that asks for it."""

    url: str
    log: Path

    def restore(self) -> None:
        async def reload() -> None:
            engine = SGLangEngine([self.url])
            if await engine.served_models() != [str(TINY.resolve())]:
                await engine.reload(TINY)
            await engine.close()

        asyncio.run(reload())


@pytest.fixture(scope="session")
def _session_server(tmp_path_factory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "server.log"
    server = SGLangServer(ServerSpec(model=str(TINY.resolve()), device="cpu", log_path=log))
    asyncio.run(server.start())
    yield Server(server.url, log)
    server.stop()


@pytest.fixture
def sglang_server(_session_server: Server) -> Server:
    _session_server.restore()
    return _session_server
