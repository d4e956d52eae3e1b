"""Cache of chat-model answers for repeated runs: one SQLite file that any number of processes may share."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.small_files import check_regular
from selfplay_pipeline.generate.episode import Reply

FILE_NAME = "chat_answers.sqlite3"
TABLES = {
    "answers": "key TEXT PRIMARY KEY, text TEXT NOT NULL, reason TEXT NOT NULL",
    # A table of its own, because files of earlier versions have answers without it, and some servers report no tokens.
    "tokens": "key TEXT PRIMARY KEY, prompt INTEGER NOT NULL, completion INTEGER NOT NULL",
}


def cache_key(**decides: Any) -> str:
    """Returns a hash of the settings that decide an answer; the hash reveals none of them."""
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


class AnswerCache:
    """Stored answers of a chat model, by a hash of everything that determines the answer.

    Once `put` returns, the answer is stored completely, even if the process is killed.

    Raises:
        UserError: The file cannot be used. Every method may raise it.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the database.

        Args:
            path: The file, or its folder: an existing folder or a path without a suffix.
        """
        self.path = path if path.suffix and not path.is_dir() else path / FILE_NAME
        if self.path.exists():
            check_regular(self.path, "name another file for partner.cache")
            with self._explained():
                _check_ours(self.path)
        with self._explained():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=60, isolation_level=None)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            for table, columns in TABLES.items():
                self._database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")

    def get(self, key: str) -> Reply | None:
        """Returns the answer stored under a key; None if there is none."""
        with self._explained():
            row = self._database.execute("SELECT text, reason FROM answers WHERE key = ?", (key,)).fetchone()
            if row and not all(isinstance(value, str) for value in row):
                raise sqlite3.DataError("an answer is not text")
        return Reply(row[0], row[1] == "length", row[1]) if row else None

    def tokens(self, key: str) -> tuple[int, int] | None:
        """Returns the tokens of the prompt and of the answer that a key's answer was billed for; None if unknown."""
        with self._explained():
            row = self._database.execute("SELECT prompt, completion FROM tokens WHERE key = ?", (key,)).fetchone()
            if row and not all(isinstance(value, int) for value in row):
                raise sqlite3.DataError("a number of tokens is not a number")
        return (row[0], row[1]) if row else None

    def put(self, key: str, answer: Reply, tokens: tuple[int, int] | None = None) -> Reply:
        """Store an answer with its tokens, and return the first answer of the key, which all processes use."""
        with self._explained(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            added = self._database.execute(
                "INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", (key, answer.text, answer.finish_reason)
            )
            if added.rowcount and tokens is not None:
                self._database.execute("INSERT OR REPLACE INTO tokens VALUES (?, ?, ?)", (key, *tokens))
        return self.get(key) or answer

    def close(self) -> None:
        """Close the database, which also empties its write-ahead log."""
        self._database.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise UserError(f"partner.cache: {self.path}: {error}; remove it or name another file") from None


def _check_ours(path: Path) -> None:
    """Check an existing file before it is opened for writing.

    Raises:
        sqlite3.Error: The file is not a database.
        UserError: The database is not a cache of answers.
    """
    # Without a write-ahead log, the file is opened as immutable: another kind of reader may leave a log behind.
    quiet = "" if Path(f"{path}-wal").exists() else "&immutable=1"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{quiet}", timeout=60, uri=True)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type != 'index'")}
        columns = [name for _, name, *_ in database.execute("PRAGMA table_info(answers)")]
    if tables and (not {"answers"} <= tables <= TABLES.keys() or columns != ["key", "text", "reason"]):
        raise UserError(f"partner.cache: {path}: a database of something else; name another file")
