"""A person who plays over HTTP without a browser, by the forms in the pages; keeps all that reaches it."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import aiohttp

ENDS = ("You agreed", "The end", "The other player failed")


@dataclass
class Form:
    """One form of a page: its hidden fields, and the values of its radio buttons and lists by name."""

    action: str
    hidden: dict[str, str] = field(default_factory=dict)
    options: dict[str, list[str]] = field(default_factory=dict)
    has_text: bool = False


class Reader(HTMLParser):
    """Reads the forms, the address of a refresh, and the heading of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.refresh, self.heading, self._tag, self._select = "", "", "", ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = {name: value or "" for name, value in attrs}
        self._tag = tag
        if tag == "form":
            self.forms.append(Form(of["action"]))
        elif tag == "meta" and of.get("http-equiv") == "refresh":
            self.refresh = of["content"].partition("url=")[2]
        elif tag == "input" and of.get("type") == "hidden":
            self.forms[-1].hidden[of["name"]] = of["value"]
        elif tag == "input" and of.get("type") == "radio":
            self.forms[-1].options.setdefault(of["name"], []).append(of["value"])
        elif tag == "select":
            self._select = of["name"]
        elif tag == "option" and of["value"]:
            self.forms[-1].options.setdefault(self._select, []).append(of["value"])
        elif tag == "textarea":
            self.forms[-1].has_text = True

    def handle_data(self, data: str) -> None:
        if self._tag == "h1" and not self.heading:
            self.heading = data.strip()


class PersonOverWeb:
    """One person with a cookie jar of its own.

    Attributes:
        received: All bodies and headers that reached the person, without pages of ended episodes.
        ends: Pages of ended episodes.
        said: Messages that the person has sent, each of which is unique.
        heard: Those of them that the server has confirmed.
    """

    def __init__(self, url: str, name: str, rng: random.Random) -> None:
        self.url, self.name, self.rng = url.rstrip("/"), name, rng
        self.received: list[str] = []
        self.ends: list[str] = []
        self.said: list[str] = []
        self.heard: list[str] = []
        self.ended: list[str] = []
        self.page, self.at, self.status = "", "", 0
        self.http = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def __aenter__(self) -> PersonOverWeb:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.http.close()

    @property
    def cookies(self) -> dict[str, str]:
        return {cookie.key: cookie.value for cookie in self.http.cookie_jar}

    async def get(self, path: str) -> Reader:
        return await self._take(self.http.get(self.url + path))

    async def post(self, path: str, data: Any, **more: Any) -> Reader:
        return await self._take(self.http.post(self.url + path, data=data, **more))

    async def _take(self, request: Any) -> Reader:
        async with request as response:
            body = await response.text()
            chain = [*response.history, response]
            self.received += [f"{one.url}\n{one.headers}" for one in chain]
            self.page, self.at, self.status = body, response.url.path, response.status
        reader = Reader(body)
        (self.ends if reader.heading in ENDS else self.received).append(body)
        return reader

    async def send(self, reader: Reader, action: str, **fields: str) -> Reader:
        """Send the form of an action, with any values of its options."""
        form = next(form for form in reader.forms if form.hidden.get("action") == action)
        chosen = {name: self.rng.choice(values) for name, values in form.options.items()}
        if "propose" in action and len({*map(tuple, form.options.values())}) == 1 and len(chosen) > 1:
            values = [*next(iter(form.options.values()))]  # each value once, as in a matching
            self.rng.shuffle(values)
            chosen = dict(zip(form.options, values, strict=True)) if len(values) == len(chosen) else chosen
        return await self.post(form.action, {**form.hidden, **chosen, **fields})

    def actions(self, reader: Reader) -> list[str]:
        return [form.hidden["action"] for form in reader.forms if "action" in form.hidden]

    async def begin(self) -> Reader:
        """Begin the next episode, unless one runs or has an end that was not seen yet; consents to a study."""
        reader = await self.get("/")
        if reader.heading in ENDS and self.at.rpartition("/")[2] not in self.ended:
            return reader
        form = next((form for form in reader.forms if form.action == "/begin"), None)
        return reader if form is None else await self.post("/begin", {**form.hidden, "consent": "yes"})

    async def play_on(self, words: str = "") -> str:
        """Play the episode on to its end; returns its id. Speaks once, then proposes; accepts whatever is proposed."""
        reader, spoken, illegal = await self.get("/"), False, 0
        while reader.heading not in ENDS:
            actions = self.actions(reader)
            if not actions:
                assert reader.refresh, self.page
                reader = await self.get(reader.refresh)
            elif "accept" in actions:
                reader = await self.send(reader, "accept")
            elif "propose" in actions and (spoken or "message" not in actions):
                reader = await self.send(reader, "propose")
            else:
                spoken = True
                self.said.append(words or f"{self.name} says {self.rng.random()}")
                reader = await self.send(reader, "message", text=self.said[-1])
                self.heard += self.said[-1:] * (self.status == 200)
            illegal += self.status == 422
            assert illegal < 20, re.sub(r"\s+", " ", self.page)
        self.ended.append(self.at.rpartition("/")[2])
        return self.ended[-1]
