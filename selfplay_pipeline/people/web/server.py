"""The web server of `selfplay play --web`: forms and pages without a script, for people who each hold a key.

A person's key is in a cookie. It is made of a token in the first form, so that a form that is sent twice makes one
person. A page of an episode answers only the people who sit in the episode; everybody else gets 404, as for an episode
that does not exist. A POST must also bring the form key, which stands in that person's pages alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.reporting import logger
from selfplay_pipeline.core.terminal.harmless import LONGEST_TEXT, harmless
from selfplay_pipeline.games.base import Choice
from selfplay_pipeline.people.logged_episode import LoggedEpisode
from selfplay_pipeline.people.web.lobby import Lobby, Someone
from selfplay_pipeline.people.web.pages import Draft, Pages, of_end, of_turn, turn_of
from selfplay_pipeline.people.web.study import Study

MOST_BYTES = 64 * 1024
"""Largest body of a request."""
BODY_SECONDS = 20.0
"""Seconds within which the body of a request must arrive."""
NEWS_SECONDS = 20.0
"""Longest time for which a request for news is held."""
SOON_SECONDS = 0.5
"""Seconds to wait for a quick partner, so that the person sees its turn at once."""
COOKIE_SECONDS = 30 * 24 * 3600
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
POLICY = (
    "default-src 'none'; style-src 'sha256-{}'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Handlers of all pages.

    Attributes:
        lobby: The people and their episodes.
        about: Short description of the game and its players, and the texts of a study (`study`).
        door_key: Key that everybody must type once; "" if none is needed.
        hosts: Names by which a browser may call the server; empty for any name.
        cookie: Name of the cookie with a person's key.
    """

    def __init__(self, lobby: Lobby, about: Mapping[str, Any], door_key: str, hosts: frozenset[str], name: str) -> None:
        """Make the handlers; `name` distinguishes the cookies of several servers."""
        self.lobby, self.about, self.door_key, self.hosts = lobby, {"study": None, **about}, door_key, hosts
        self.cookie = f"selfplay-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        self.pages = Pages()
        self._secret = secrets.token_bytes()

    def app(self) -> web.Application:
        """Returns the application."""
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_BYTES)
        app.add_routes(
            [
                web.get("/", self.front),
                web.get("/wait", self.wait_for_others),
                web.post("/begin", self.begin),
                web.get("/episode/{id}", self.episode),
                web.get("/episode/{id}/wait", self.wait_for_turn),
                web.post("/episode/{id}/turn", self.turn),
                web.post("/episode/{id}/leave", self.leave),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._check_origin(request)
            response = await handler(request)
        except web.HTTPRedirection as found:
            response = web.Response(status=found.status, headers={"Location": found.headers["Location"]})
        except web.HTTPException as error:
            response = self._page("error", status=error.status, what=WORDS.get(error.status, error.reason))
        except ConnectionError:
            raise
        except (UserError, OSError) as error:  # the disk is full, say: who sits in an episode goes on
            with suppress(OSError):  # stderr may be on the same disk
                logger.warning(f"a page could not be given: {error}")
            response = self._page("error", status=503, what=WORDS[503])
        except Exception:
            with suppress(OSError):
                logger.exception("a page could not be given")
            response = self._page("error", status=500, what=WORDS[500])
        response.headers.update(HEADERS)
        response.headers["Content-Security-Policy"] = POLICY.format(self.pages.style_hash)
        return response

    def _check_origin(self, request: web.Request) -> None:
        """Refuse other names of this machine, and forms of other sites."""
        if self.hosts and request.host not in self.hosts:
            raise web.HTTPMisdirectedRequest
        origin = request.headers.get("Origin")
        own = {f"{scheme}://{request.host}" for scheme in ("http", "https")}
        if request.method == "POST" and origin is not None and origin not in own:
            raise web.HTTPForbidden

    async def front(self, request: web.Request) -> web.Response:
        """Returns the first page, or leads a known person to its newest episode."""
        person = self._person(request)
        if person is not None and (person.waits or person.starts):
            return self._page("lobby", person)
        if person is not None and person.episode_id:
            raise web.HTTPSeeOther(f"/episode/{person.episode_id}")
        if person is None and "welcome" in request.query:
            return self._page("error", status=400, what=NO_COOKIE)
        return self._front(person, form_key=self._form_key(request))

    async def wait_for_others(self, request: web.Request) -> web.Response:
        """Hold the request until the person's episode begins."""
        person = self._known(request)
        if person.waits:
            await self.lobby.ask_for_episode(person)
        if person.waits or person.starts:
            await _at_most(NEWS_SECONDS, person.begun.wait())
        raise web.HTTPSeeOther("/")

    async def begin(self, request: web.Request) -> web.Response:
        """Welcome a new person, and seat a person in its next episode."""
        person, data = self._person(request), await _form(request)
        key = self._key_of(data.get("token") or secrets.token_urlsafe())
        if person is None:
            if self.lobby.is_over(None):
                return self._front(None, status=403)
            if not hmac.compare_digest(data.get("key", "").strip().encode("utf-8", "replace"), self.door_key.encode()):
                return self._front(None, status=403, wrong_key=True)
            if self.study is not None and data.get("consent") != "yes":
                return self._front(None, status=422, no_consent=True)
            person = self.lobby.person(key) or self.lobby.welcome(key, self.study.agreed_to if self.study else None)
        elif self.lobby.person(key) is not person:
            self._check_form(request, data)
        await self.lobby.ask_for_episode(person)
        response = web.Response(status=303, headers={"Location": "/?welcome"})
        if self.lobby.person(key) is person:
            response.set_cookie(self.cookie, key, max_age=COOKIE_SECONDS, httponly=True, samesite="Lax")
        return response

    async def episode(self, request: web.Request) -> web.Response:
        """Returns the page of an episode: the person's turn, the wait for others, or the end."""
        person, seat, kept = self._place(request)
        if kept is not None and not kept.waits:
            await kept.news(kept.version, SOON_SECONDS)
        return self._episode_page(request, person, seat)

    async def wait_for_turn(self, request: web.Request) -> web.Response:
        """Hold the request until something has changed since the version that the page shows."""
        _person, _seat, kept = self._place(request)
        if kept is not None:
            await kept.news(_number(request.query.get("version", "")), NEWS_SECONDS)
        raise web.HTTPSeeOther(f"/episode/{request.match_info['id']}")

    async def turn(self, request: web.Request) -> web.Response:
        """Take a person's turn; an illegal one is shown again with the reason."""
        person, seat, kept = self._place(request)
        data = await _form(request)
        self._check_form(request, data)
        action, text = data.get("action", ""), data.get("text", "").replace("\r\n", "\n").strip()
        chosen = _selected(data)
        draft = Draft("", action, harmless(text[:LONGEST_TEXT], lines=True), chosen)
        now = len(kept.episode.turns) if kept is not None else -1
        if kept is None or not kept.desks[seat].waits or _number(data.get("turn", "")) != now:
            return self._episode_page(request, person, seat, 409, _because(draft, "the episode has gone on since"))
        if len(text) > LONGEST_TEXT:
            return self._episode_page(
                request, person, seat, 422, _because(draft, f"a turn has at most {LONGEST_TEXT:,} characters")
            )
        choice = next((choice for choice in kept.seat_of_person(seat).choices() if choice.action == action), None)
        if choice is None:
            raise web.HTTPBadRequest
        if not _are_complete(choice, chosen):
            return self._episode_page(request, person, seat, 422, _because(draft, "select a value of each part"))
        selected = [chosen[part] for part in range(len(choice.parts))]
        said, step = kept.seat_of_person(seat).read_turn(turn_of(choice, draft.text, selected))
        if step.error is not None:
            return self._episode_page(request, person, seat, 422, _because(draft, step.error))
        version = kept.version
        kept.desks[seat].give(said)
        while len(kept.episode.turns) == now and kept.episode_id in self.lobby.running:
            await kept.news(version, NEWS_SECONDS)
            version = kept.version
        raise web.HTTPSeeOther(f"/episode/{kept.episode_id}")

    async def leave(self, request: web.Request) -> web.Response:
        """End the episode, since the person leaves it."""
        _person, _seat, kept = self._place(request)
        self._check_form(request, await _form(request))
        if kept is not None:
            kept.left.set()
            while kept.episode_id in self.lobby.running:
                await kept.news(kept.version, NEWS_SECONDS)
        raise web.HTTPSeeOther(f"/episode/{request.match_info['id']}")

    @property
    def study(self) -> Study | None:
        """The study; None if people just play."""
        found: Study | None = self.about["study"]
        return found

    def _front(self, person: Someone | None, *, status: int = 200, **content: Any) -> web.Response:
        """Returns the first page; in a study, a new person agrees to the text of its consent there."""
        name = "front" if self.study is None or person is not None or self.lobby.is_over(None) else "consent"
        new = {"wrong_key": False, "no_consent": False, "token": secrets.token_urlsafe()}
        return self._page(name, person, status=status, **{**new, **content})

    def _person(self, request: web.Request) -> Someone | None:
        key = request.cookies.get(self.cookie, "")
        return self.lobby.person(key) if key else None

    def _known(self, request: web.Request) -> Someone:
        person = self._person(request)
        if person is None:
            raise web.HTTPNotFound
        return person

    def _place(self, request: web.Request) -> tuple[Someone, int, LoggedEpisode | None]:
        """Returns the person, its seat in the episode of the address, and the episode if it is running."""
        person, episode_id = self._known(request), request.match_info["id"]
        seat = self.lobby.seat_of(person, episode_id)
        if seat is None:
            raise web.HTTPNotFound
        return person, seat, self.lobby.running.get(episode_id)

    def _key_of(self, token: str) -> str:
        """Returns the key of the person who comes with a token."""
        return hmac.new(self._secret, token.encode("utf-8", "replace"), "sha256").hexdigest()

    def _form_key(self, request: web.Request) -> str:
        return hashlib.sha256(b"form " + request.cookies.get(self.cookie, "").encode("utf-8", "replace")).hexdigest()

    def _check_form(self, request: web.Request, data: Mapping[str, str]) -> None:
        if not hmac.compare_digest(data.get("form", "").encode("utf-8", "replace"), self._form_key(request).encode()):
            raise web.HTTPForbidden

    def _episode_page(
        self, request: web.Request, person: Someone, seat: int, status: int = 200, draft: Draft | None = None
    ) -> web.Response:
        episode_id = request.match_info["id"]
        kept, record = self.lobby.running.get(episode_id), self.lobby.ended.get(episode_id)
        shared = {"episode_id": episode_id, "draft": draft, "form_key": self._form_key(request), "seat": seat}
        if kept is not None:
            may_act = kept.desks[seat].waits
            content = of_turn(kept.seat_of_person(seat), may_act=may_act)
            numbers = {"turn": len(kept.episode.turns), "version": kept.version}
            return self._page("turn", person, status=status, may_act=may_act, **numbers, **shared, **content)
        if record is not None:
            content = of_end(self.lobby.for_people, record, seat, blind=self.study is not None)
            return self._page("end", person, status=status, **shared, **content)
        return self._page("lost", person, status=status, **shared)

    def _page(self, name: str, person: Someone | None = None, *, status: int = 200, **content: Any) -> web.Response:
        known = {
            "person": person,
            "progress": person and self.lobby.progress_of(person),
            "asks_key": bool(self.door_key),
            "full": self.lobby.is_over(person),
            "form_key": "",
        }
        text = self.pages.render(name, **{**self.about, **known, **content})
        return web.Response(text=text, status=status, content_type="text/html")


NO_COOKIE = "Your browser did not keep the cookie by which this page knows you. Allow cookies here, and begin again."
WORDS = {
    400: "This form cannot be read.",
    403: "This form is not one of your pages. Open the page again and send it from there.",
    404: "There is no such page for you.",
    413: "This is too long. A turn has at most a few thousand characters.",
    415: "This form cannot be read.",
    408: "This form did not arrive in time. Send it again.",
    421: "This server answers only under its own address.",
    500: "This did not work, because of a mistake in this program.",
    503: "This cannot be stored now. Try again later.",
}


async def _form(request: web.Request) -> dict[str, str]:
    """Returns the fields of a form; refuses files, and text that is not UTF-8."""
    plain = request.headers.get("Content-Encoding", "identity").lower() == "identity"
    if request.content_type != "application/x-www-form-urlencoded" or not plain:
        raise web.HTTPUnsupportedMediaType
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await request.post()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    except (LookupError, ValueError, web.RequestPayloadError, HttpProcessingError):
        raise web.HTTPBadRequest from None
    return {name: value for name, value in data.items() if isinstance(value, str)}


def _selected(data: Mapping[str, str]) -> dict[int, int]:
    """Returns the number of the selected option of each part."""
    found = ((re.fullmatch(r"part(\d{1,3})", name, re.ASCII), value) for name, value in data.items())
    return {int(name[1]): _number(value) for name, value in found if name}


def _are_complete(choice: Choice, selected: Mapping[int, int]) -> bool:
    """Whether each part of a choice has one of its options."""
    return all(0 <= selected.get(number, -1) < len(part.options) for number, part in enumerate(choice.parts))


def _number(text: str) -> int:
    """Returns a number in a request; -1 for any other text."""
    return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else -1


def _because(draft: Draft, note: str) -> Draft:
    return replace(draft, note=note)


async def _at_most(seconds: float, work: Awaitable[Any]) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(work, seconds)
