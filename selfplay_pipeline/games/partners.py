"""The scripted partners by the name that options take."""

from __future__ import annotations

from collections.abc import Mapping

from selfplay_pipeline.games.scripted import OwnView, Random, ScriptedPlayer, Sharing, Silent
from selfplay_pipeline.games.shy import Asker, Quiet, Shy

SCRIPTED: Mapping[str, ScriptedPlayer] = {
    "random": Random(),
    "own-view": OwnView(),
    "sharing": Sharing(),
    "silent": Silent(),
    "shy": Shy(),
    "asker": Asker(),
    "quiet": Quiet(),
}
