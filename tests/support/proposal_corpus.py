"""Proposals as language models write them, and turns that a reader must not take for one.

Nothing was taken from the logs of a model. A proposal is put together of five parts, and a style varies one of them,
so every full proposal here says one matching and only one; those of `TELLS_MORE` say something else too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS

Pair = tuple[str, str, int]
"""Paper, reviewer (both in full) and a score to show beside them."""
Line = Callable[["Board", Pair], str]
Layout = Callable[[list[str]], str]
Whole = Callable[["Board", list[Pair]], str]


@dataclass(frozen=True)
class Board:
    """The names of a state."""

    papers: tuple[str, ...]
    reviewers: tuple[str, ...]

    def abbreviate(self, name: str) -> str:
        """The shortest beginning of a first name or title, of three letters or more, that no other name has."""
        word = short(name).split()[0]
        words = [other for one in (*self.papers, *self.reviewers) for other in short(one).split()]
        for length in range(3, len(word)):
            if sum(other.casefold().startswith(word[:length].casefold()) for other in words) == 1:
                return word[:length]
        return word


BOARDS = {
    "2": Board(PAPERS[:2], REVIEWERS[:2]),
    "3": Board(PAPERS[:3], REVIEWERS[:3]),
    "8": Board(PAPERS[:8], REVIEWERS[:8]),
    "16": Board(PAPERS, REVIEWERS),
    "other names": Board(
        ("FlashAttention-2: Faster Attention", "T5: Text-to-Text Transfer", "word2vec: Vectors", "Mamba"),
        ("María García", "Jean-Luc O'Brien", "Wei Chen", "Anna-Lena Müller"),
    ),
}


def short(title: str) -> str:
    return title.split(":")[0]


def first(name: str) -> str:
    return name.split()[0]


def last(name: str) -> str:
    return name.split()[-1]


TAGS = {
    "tag": "[propose]",
    "capital tag": "[Propose]",
    "proposal tag": "[proposal]",
    "spaces in the tag": "[ propose ]",
    "bold tag": "**[propose]**",
    "bold inside the tag": "[**propose**]",
    "code tag": "`[propose]`",
    "heading tag": "### [propose]",
    "quoted tag": '"[propose]"',
    "escaped tag": "\\[propose\\]",
    "colon after the tag": "[propose]:",
    "break after the tag": "[propose] <br/>",
    "lines after the tag": "[propose]\n\n",
    "block quote tag": "> [propose]",
    "full-width brackets": "［propose］",
    "action word before the tag": "Action: [propose]",
    "speaker before the tag": "Player 1: [propose]",
    "bullet before the tag": "- [propose]",
}  # fmt: skip

BEFORES = {
    "thought before": "I know enough now, so let me write down the plan.\n",
    "thought in the same line": "That settles it. ",
    "thought about scores before": "Ava has 40 on BLEU, which is good, but Daniel has 50 there.\n\n",
    "long thought before": "Let me think step by step.\n1. The scores differ.\n2. Some are hidden.\nSo:\n\n",
    "thinking in italics": "*thinks about it for a while*\n\n",
    "answer heading": "### My answer\n\n",
}

OPENINGS = {
    "opening": " Proposal:\n",
    "no opening": "\n",
    "no opening and no line": " ",
    "bold opening": " **Proposal:**\n",
    "heading opening": "\n## Proposal\n",
    "my proposal": " My proposal:\n",
    "here is my proposal": " Here is my proposal for the matching:\n",
    "a sentence": " I suggest the following assignment of reviewers to papers.\n",
    "a hedging sentence": " This may not be perfect, but it is the best I found:\n",
    "full-width colon": " Proposal：\n",
    "final assignment": " Final Assignment:\n\n",
    "opening twice": " Proposal:\nProposal:\n",
}

LINES: dict[str, Line] = {
    "colon": lambda b, x: f"{short(x[0])}: {x[1]}",
    "full titles": lambda b, x: f"{x[0]}: {x[1]}",
    "first names": lambda b, x: f"{short(x[0])}: {first(x[1])}",
    "last names": lambda b, x: f"{short(x[0])}: {last(x[1])}",
    "reviewer first": lambda b, x: f"{x[1]}: {short(x[0])}",
    "abbreviations": lambda b, x: f"{b.abbreviate(x[0])}: {b.abbreviate(x[1])}",
    "abbreviations with points": lambda b, x: f"{short(x[0])}: {b.abbreviate(x[1])}.",
    "initial and last name": lambda b, x: f"{short(x[0])}: {x[1][0]}. {last(x[1])}",
    "last name first": lambda b, x: f"{short(x[0])}: {last(x[1])}, {first(x[1])}",
    "lower case": lambda b, x: f"{short(x[0])}: {x[1]}".lower(),
    "arrow": lambda b, x: f"{short(x[0])} -> {x[1]}",
    "arrow from the reviewer": lambda b, x: f"{x[1]} → {short(x[0])}",
    "html arrow": lambda b, x: f"{short(x[0])} &rarr; {x[1]}",
    "latex arrow": lambda b, x: f"{short(x[0])} $\\rightarrow$ {x[1]}",
    "dash": lambda b, x: f"{short(x[0])} - {x[1]}",
    "points": lambda b, x: f"{short(x[0])} ..... {x[1]}",
    "tab": lambda b, x: f"{short(x[0])}\t{x[1]}",
    "comma": lambda b, x: f"{short(x[0])}, {x[1]}",
    "bar": lambda b, x: f"{short(x[0])} | {x[1]}",
    "full-width colon in lines": lambda b, x: f"{short(x[0])}：{x[1]}",
    "bold paper": lambda b, x: f"**{short(x[0])}**: {x[1]}",
    "bold both": lambda b, x: f"**{short(x[0])}**: **{x[1]}**",
    "code": lambda b, x: f"`{short(x[0])}`: `{x[1]}`",
    "straight quotes": lambda b, x: f'"{short(x[0])}": "{x[1]}"',
    "brackets": lambda b, x: f"[{short(x[0])}]: [{x[1]}]",
    "round brackets": lambda b, x: f"({short(x[0])}, {x[1]})",
    "value in brackets": lambda b, x: f"{short(x[0])}: {x[1]} ({x[2]})",
    "unknown score in brackets": lambda b, x: f"{short(x[0])}: {x[1]} (score not visible to me)",
    "question marks for a score": lambda b, x: f"{short(x[0])}: {x[1]} (??)",
    "value after a comma": lambda b, x: f"{short(x[0])}: {x[1]}, {x[2]}",
    "value between": lambda b, x: f"{short(x[0])} ({x[2]}): {x[1]}",
    "reviewer in brackets": lambda b, x: f"{short(x[0])} ({x[1]})",
    "full title in brackets": lambda b, x: f"{short(x[0])} ({x[0]}): {x[1]}",
    "reason behind a dash": lambda b, x: f"{short(x[0])}: {x[1]} – highest score that I see",
    "reason in brackets": lambda b, x: f"{short(x[0])}: {x[1]} (strong match)",
    "labels": lambda b, x: f"Paper: {short(x[0])}, Reviewer: {x[1]}",
    "labels, reviewer first": lambda b, x: f"Reviewer: {x[1]} | Paper: {short(x[0])}",
    "labels in two lines": lambda b, x: f"Paper: {short(x[0])}\nReviewer: {x[1]}",
    "nested bullets": lambda b, x: f"{short(x[0])}\n  - {x[1]}",
    "is assigned to": lambda b, x: f"{x[1]} is assigned to {short(x[0])}.",
    "assign to": lambda b, x: f"Assign {x[1]} to {short(x[0])}",
    "goes to": lambda b, x: f"{short(x[0])} goes to {x[1]}",
    "reviews": lambda b, x: f"{x[1]} reviews {short(x[0])}",
    "for": lambda b, x: f"{first(x[1])} for {short(x[0])}",
    "white space": lambda b, x: f"   {short(x[0])}  :   {x[1].replace(' ', '  ')}   ",
    "underscores": lambda b, x: f"{short(x[0])}: {x[1].replace(' ', '_')}",
    "no-break spaces": lambda b, x: f"{short(x[0])}:\u00a0{x[1].replace(' ', chr(0xA0))}",
    "full stop": lambda b, x: f"{short(x[0])}: {x[1]}.",
}


def _numbered(form: str) -> Layout:
    return lambda lines: "\n".join(form.format(number + 1, line) for number, line in enumerate(lines))


LAYOUTS: dict[str, Layout] = {
    "lines": "\n".join,
    "dashes": lambda lines: "\n".join(f"- {line}" for line in lines),
    "stars": lambda lines: "\n".join(f"* {line}" for line in lines),
    "indented dashes": lambda lines: "\n".join(f"    - {line}" for line in lines),
    "numbers": _numbered("{}. {}"),
    "numbers in brackets": _numbered("({}) {}"),
    "bold numbers": _numbered("**{}.** {}"),
    "letters": lambda lines: "\n".join(f"{'abcdefghijklmnopqrstuvwxyz'[n]}) {line}" for n, line in enumerate(lines)),
    "check boxes": lambda lines: "\n".join(f"- [x] {line}" for line in lines),
    "block quote": lambda lines: "\n".join(f"> {line}" for line in lines),
    "empty lines": "\n\n".join,
    "windows lines": "\r\n".join,
    "breaks": "<br/>".join,
    "written-out line breaks": "\\n".join,
    "one line, commas": ", ".join,
    "one line, semicolons": "; ".join,
    "one line, bars": " | ".join,
    "one line, and": lambda lines: ", ".join(lines[:-1]) + ", and " + lines[-1],
    "html list": lambda lines: "<ul>" + "".join(f"<li>{line}</li>" for line in lines) + "</ul>",
    "code fence": lambda lines: "```\n" + "\n".join(lines) + "\n```",
    "in square brackets": lambda lines: "[" + ", ".join(lines) + "]",
}

CLOSINGS = {
    "closing question": "\nWhat do you think?",
    "closing sentence": "\n\nThis gives us the highest total that I can see.",
    "closing sentence in the last line": ". I hope that you agree!",
    "closing total": "\nTotal: 512",
    "closing condition": "\n\nIf you see something better, please reject and tell me.",
    "closing mention of answers": "\nPlease [accept] or [reject].",
    "closing rule": "\n\n---\n",
    "closing bold": "\n\n**Let me know if this works for you.**",
}


def _json(**options: object) -> Callable[[object], str]:
    return lambda value: json.dumps(value, ensure_ascii=False, **options)  # type: ignore[arg-type]


def _objects(pairs: list[Pair]) -> list[dict[str, str]]:
    return [{"paper": short(paper), "reviewer": reviewer} for paper, reviewer, _ in pairs]


def _table(header: Sequence[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines)


WHOLES: dict[str, Whole] = {
    "json": lambda b, p: _json()({short(x[0]): x[1] for x in p}),
    "json, reviewer first": lambda b, p: _json()({x[1]: short(x[0]) for x in p}),
    "fenced json": lambda b, p: f"```json\n{_json(indent=2)({short(x[0]): x[1] for x in p})}\n```",
    "json objects": lambda b, p: _json()(_objects(p)),
    "json pairs": lambda b, p: _json()([[short(x[0]), x[1]] for x in p]),
    "json with lists": lambda b, p: _json()({x[1]: [short(x[0])] for x in p}),
    "python tuples": lambda b, p: repr([(short(x[0]), x[1]) for x in p]),
    "python dictionary": lambda b, p: repr({short(x[0]): x[1] for x in p}),
    "yaml": lambda b, p: "assignments:\n" + "\n".join(f"  - paper: {short(x[0])}\n    reviewer: {x[1]}" for x in p),
    "table": lambda b, p: _table(["Paper", "Reviewer"], [[short(x[0]), x[1]] for x in p]),
    "table, reviewer first": lambda b, p: _table(["Reviewer", "Paper"], [[x[1], short(x[0])] for x in p]),
    "table, full titles": lambda b, p: _table(["Paper", "Reviewer"], [[x[0], x[1]] for x in p]),
    "table with numbers": lambda b, p: _table(
        ["No.", "Paper", "Reviewer"], [[str(n + 1), short(x[0]), x[1]] for n, x in enumerate(p)]
    ),
    "table with scores": lambda b, p: _table(
        ["Paper", "Reviewer", "Score"], [[short(x[0]), x[1], str(x[2])] for x in p]
    ),
    "bold table": lambda b, p: _table(["**Paper**", "**Reviewer**"], [[f"**{short(x[0])}**", x[1]] for x in p]),
    "table without a head": lambda b, p: "\n".join(f"| {short(x[0])} | {x[1]} |" for x in p),
    "table turned round": lambda b, p: _table(
        ["Paper", *(short(x[0]) for x in p)], [["Reviewer", *(x[1] for x in p)]]
    ),
    "html table": lambda b, p: (
        "<table><tr><th>Paper</th><th>Reviewer</th></tr>"
        + "".join(f"<tr><td>{short(x[0])}</td><td>{x[1]}</td></tr>" for x in p)
        + "</table>"
    ),
    "csv": lambda b, p: "paper,reviewer\n" + "\n".join(f"{short(x[0])},{x[1]}" for x in p),
    "xml": lambda b, p: "\n".join(f'<assign paper="{short(x[0])}" reviewer="{x[1]}"/>' for x in p),
    "numbered records": lambda b, p: "\n".join(
        f"{n + 1}. Paper {n + 1} ({short(x[0])}): Reviewer {x[1]}" for n, x in enumerate(p)
    ),
    "headings": lambda b, p: "\n\n".join(f"### {short(x[0])}\n{x[1]}" for x in p),
    "a sentence of all": lambda b, p: (
        f"I suggest {', '.join(f'{x[1]} for {short(x[0])}' for x in p[:-1])} and {p[-1][1]} for {short(p[-1][0])}."
    ),
    "both orders": lambda b, p: "\n".join(
        f"{x[1]}: {short(x[0])}" if n % 2 else f"{short(x[0])}: {x[1]}" for n, x in enumerate(p)
    ),
    "said twice": lambda b, p: "\n".join(f"{short(x[0])}: {x[1]}" for x in [*p, *p]),
    "respectively": lambda b, p: (
        ", ".join(short(x[0]) for x in p) + " go to " + ", ".join(x[1] for x in p) + ", respectively."
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Style:
    """The parts of a written proposal."""

    tag: str = TAGS["tag"]
    before: str = ""
    opening: str = OPENINGS["opening"]
    line: Line = LINES["colon"]
    layout: Layout = LAYOUTS["lines"]
    closing: str = ""
    whole: Whole | None = None

    def write(self, board: Board, pairs: list[Pair]) -> str:
        body = self.whole(board, pairs) if self.whole else self.layout([self.line(board, pair) for pair in pairs])
        return self.before + self.tag + self.opening + body + self.closing


STYLES: dict[str, Style] = {
    **{name: Style(tag=tag) for name, tag in TAGS.items()},
    "closed code fence": Style(tag="```\n[propose]", closing="\n```"),
    **{name: Style(before=before) for name, before in BEFORES.items()},
    **{name: Style(opening=opening) for name, opening in OPENINGS.items()},
    **{name: Style(line=line) for name, line in LINES.items()},
    **{name: Style(layout=layout) for name, layout in LAYOUTS.items()},
    **{name: Style(closing=closing) for name, closing in CLOSINGS.items()},
    **{name: Style(whole=whole) for name, whole in WHOLES.items()},
}


TELLS_MORE = {
    "value in brackets", "unknown score in brackets", "question marks for a score",
    "value after a comma", "value between", "reason behind a dash", "reason in brackets",
    "table with scores", "closing sentence", "closing total", "closing condition", "closing mention of answers",
    "a hedging sentence",
}  # fmt: skip
"""Styles that tell scores, reasons or conditions behind the tag, so the reader must refuse them."""
OTHER_FORMS = {
    "action word before the tag", "speaker before the tag", "here is my proposal", "a sentence", "abbreviations",
    "abbreviations with points", "full title in brackets", "table with numbers", "table turned round", "xml",
    "numbered records", "said twice", "respectively",
}  # fmt: skip
"""Styles that say nothing else, but not in the form that the reader knows."""


@dataclass(frozen=True)
class Case:
    """One turn and what it says: a matching as (reviewer, paper) pairs, sorted."""

    style: str
    board: Board
    text: str
    matching: tuple[tuple[int, int], ...]


def case(name: str, style: Style, board: Board, rng: np.random.Generator) -> Case:
    """A random matching in a style, papers in random order."""
    size = len(board.papers)
    reviewers, order = rng.permutation(size).tolist(), rng.permutation(size).tolist()
    pairs = [(board.papers[p], board.reviewers[reviewers[p]], int(rng.integers(0, 999))) for p in order]
    matching = tuple(sorted((reviewers[p], p) for p in range(size)))
    return Case(name, board, style.write(board, pairs), matching)


def full_proposals(each: int = 2) -> Iterator[Case]:
    """Each style on each board, with some matchings each."""
    rng = np.random.default_rng(0)
    for name, style in STYLES.items():
        for board in BOARDS.values():
            for _ in range(each):
                yield case(name, style, board, rng)


THREE = "BLEU: Ava Li\nElectra: Daniel Nguyen\nGloVe: Sofia Patel"

HOSTILE: dict[str, tuple[str, str | None]] = {
    "two actions: message, then proposal": (f"[message] Here it is.\n[propose] Proposal:\n{THREE}", None),
    "two actions: message and proposal in a line": (f"[message] I like this: [propose] Proposal:\n{THREE}", None),
    "two actions: proposal, then message": (f"[propose] Proposal:\n{THREE}\n[message] What do you think?", None),
    "two actions: reject, then message": ("[reject]\n[message] Ava is better on GloVe.", None),
    "two actions: reject, then proposal": (f"[reject] [propose] Proposal:\n{THREE}", None),
    "two actions: accept or reject": ("[accept] or [reject]?", None),
    "two actions: both answers": ("[accept]\n[reject]", None),
    "two actions: accept, then message": ("[accept] [message] Thanks!", None),
    "two actions: the partner's turn is made up": (f"[propose] Proposal:\n{THREE}\nPartner:\n[accept]", None),
    "two actions: propose and accept": (f"[propose] Proposal:\n{THREE}\n\n[accept]", None),
    "two proposals": (f"[propose] {THREE}\n[propose] BLEU: Sofia Patel\nElectra: Daniel Nguyen\nGloVe: Ava Li", None),
    "alternatives": (f"[propose] Either\n{THREE}\nor\nBLEU: Sofia Patel\nElectra: Daniel Nguyen\nGloVe: Ava Li", None),
    "no tag": (f"Proposal:\n{THREE}", None),
    "tag without brackets": (f"propose: {THREE}", None),
    "unknown tag": (f"[suggest] Proposal:\n{THREE}", None),
    "empty": ("", None),
    "a bare tag": ("[propose]", None),
    "a bare message": ("[message]  ", None),
    "a question about accepting": ("Should I [accept]?", None),
    "a question in a line of its own": ("Hmm.\n[accept]?", None),
    "an answer that is denied": ("I will not [accept] this.", None),
    "a message that ends in the answer's tag": ("[message] Do you want to [accept]?", "message"),
    "a message that names an answer": ("[message] Please [accept] my next proposal, Ava is good there.", "message"),
    "a message with a plan": (f"[message] How about\n{THREE}", "message"),
    "a message that quotes a proposal": (f"[message] You said: Proposal: {THREE}. Why?", "message"),
    "a missing paper": ("[propose] Proposal:\nBLEU: Ava Li\nElectra: Daniel Nguyen", None),
    "an empty place": ("[propose] Proposal:\nBLEU: Ava Li\nElectra: Daniel Nguyen\nGloVe:", None),
    "an open place": ("[propose] Proposal:\nBLEU: Ava Li\nElectra: Daniel Nguyen\nGloVe: TBD", None),
    "a repeated paper": ("[propose] Proposal:\nBLEU: Ava Li\nBLEU: Daniel Nguyen\nGloVe: Sofia Patel", None),
    "a repeated reviewer": ("[propose] Proposal:\nBLEU: Ava Li\nElectra: Ava Li\nGloVe: Sofia Patel", None),
    "a paper said twice": (f"[propose] Proposal:\n{THREE}\nGloVe: Ava Li", None),
    "an unknown reviewer": ("[propose] Proposal:\nBLEU: Ava Li\nElectra: Daniel Nguyen\nGloVe: Peter Lustig", None),
    "a reviewer of another family": ("[propose]\nBLEU: Ava Thompson\nElectra: Daniel Nguyen\nGloVe: Sofia Patel", None),
    "two reviewers' names mixed": ("[propose]\nBLEU: Ava Nguyen\nElectra: Daniel Li\nGloVe: Sofia Patel", None),
    "another initial": ("[propose]\nBLEU: S. Li\nElectra: Daniel Nguyen\nGloVe: Sofia Patel", None),
    "an unknown paper": ("[propose] Proposal:\nBLEU: Ava Li\nBERT: Daniel Nguyen\nGloVe: Sofia Patel", None),
    "a longer title": ("[propose]\nSuper BLEU: Ava Li\nElectra: Daniel Nguyen\nGloVe: Sofia Patel", None),
    "two papers, then two reviewers": ("[propose]\nBLEU Electra: Ava Li Daniel Nguyen\nGloVe: Sofia Patel", None),
    "a reviewer of two papers": ("[propose]\nAva Li: BLEU, Electra\nDaniel Nguyen: GloVe\nSofia Patel", None),
    "names shifted by a line": ("[propose]\nBLEU\nAva Li: Electra\nDaniel Nguyen: GloVe\nSofia Patel", None),
    "names shifted by a line without marks": ("[propose]\nBLEU\nAva Electra\nDaniel GloVe\nSofia", None),
    "names shifted by a comma": ("[propose] BLEU, Ava Electra, Daniel GloVe, Sofia", None),
    "shifted separators": ("[propose] BLEU, Ava Li: Electra, Daniel Nguyen: GloVe, Sofia Patel", None),
    "a paper without a reviewer between": (
        "[propose]\nBLEU:\nElectra: Ava Li\nGloVe: Daniel Nguyen\nSofia Patel",
        None,
    ),
    "two reviewers to choose from": (
        "[propose]\nBLEU: Ava Li or Sofia Patel\nElectra: Daniel Nguyen\nGloVe: Sofia",
        None,
    ),
    "someone or other": ("[propose]\nBLEU: Ava Li or whoever\nElectra: Daniel Nguyen\nGloVe: Sofia Patel", None),
    "a pair that is denied": ("[propose]\nBLEU: not Ava Li\nElectra: Daniel Nguyen\nGloVe: Sofia Patel", None),
    "a plan that is denied": (
        "[propose] I would not take BLEU: Ava Li, Electra: Daniel Nguyen, GloVe: Sofia Patel",
        None,
    ),
    "a plan that is changed afterwards": (f"[propose] Proposal:\n{THREE}\nbut swap Ava and Daniel.", None),
    "a pair that is put back": (f"[propose] Proposal:\n{THREE}\nActually, don't put Ava Li on BLEU.", None),
    "a question": ("[propose] BLEU: Ava Li? Electra: Daniel Nguyen? GloVe: Sofia Patel?", None),
    "a plan in doubt": ("[propose] BLEU: Ava Li, Electra: maybe Daniel Nguyen, GloVe: Sofia Patel", None),
    "numbers for names": ("[propose]\nPaper 1: Reviewer 1\nPaper 2: Reviewer 2\nPaper 3: Reviewer 3", None),
    "an ambiguous beginning": ("[propose]\nBLEU: Ava Li\nElectra: Da\nGloVe: Sofia Patel", None),
    "a cell of both": ("[propose]\nBLEU: Ava Li / Daniel Nguyen\nElectra: Daniel Nguyen\nGloVe: Sofia Patel", None),
}
"""Turns on the board of three, and the action that is in them; None where the reader must refuse."""

DENYING_LEADS = (
    "Your last proposal was:",
    "Should I propose the following?",
    "Never:",
    "Anything but:",
    "I don't want your plan, which was as follows.\n",
    "Take this, but with the first two reviewers exchanged:",
    "My scores:",
    "It is false that",
)
"""Each makes no proposal of the pairs that stand behind it."""
WITHDRAWING_TAILS = (
    "Actually swap the first two.",
    "(or vice versa)",
    "The first line is a mistake.",
    "Never mind.",
    "No!",
    "- not!",
)
"""Each takes back the pairs that stand before it, or one of them."""
DENYING_MARKS = (
    "{} != {}",
    "{} ≠ {}",
    "~~{}: {}~~",
    "<s>{}: {}</s>",
    "<!-- {}: {} -->",
    "❌ {}: {}",
    "{}: {} ✗",
    "{}: {} (not)",
    "{} (no!): {}",
    "{}: {} (?)",
    "{}: {} [do not use]",
    "{}: {} = false",
    "- [ ] {}: {}",
    "take {} from {}",
)
"""Each denies a pair, or leaves it open."""
TALK_OF_TAGS = (
    "I do not want to [propose] this yet:\n{}",
    "Could you [propose] {}",
    'Player 2 said: "[propose] Proposal:\n{}" and I hate it.',
    "For example, a turn looks like [propose] {}",
    "I don't want to\n[accept]",
    "I won't: [accept]",
    "Could I choose this?\n[accept] is an option.",
    '"[accept]" is what you want me to say, I guess.',
    "Hmm... [accept] looks risky.",
    "I can either (a) [accept] or (b) keep going",
    "Please [accept]",
    "[reject] is what I would say if you proposed Ava for BLEU.",
    "[accept] only if you change BLEU to Sofia Patel.",
    "[accept]... no wait, I don't accept.",
    "[accept] Not yet! First tell me what Sofia scores on GloVe.",
)
"""Turns without an action: they only speak of one."""


def denied_turns() -> list[str]:
    """Turns on the board of three that deny, quote, withdraw or only mention an action."""
    pairs = [line.split(": ") for line in THREE.splitlines()]
    marked = ["\n".join(mark.format(*pair) for pair in pairs) for mark in DENYING_MARKS]
    marked += [f"{DENYING_MARKS[at].format(*pairs[0])}\n{THREE.partition(chr(10))[2]}" for at in (2, 5, 9)]
    return [
        *(f"[propose] {lead}\n{THREE}" for lead in DENYING_LEADS),
        *(f"[propose] Proposal:\n{THREE}\n{tail}" for tail in WITHDRAWING_TAILS),
        *(f"[propose]\n{lines}" for lines in marked),
        "[propose]\nBLEU: Ava Li\nElectra: Daniel Nguyen\nTell me the score of Sofia on GloVe.",
        "[propose] BLEU: Ava Li, Electra: Daniel Nguyen. My score for GloVe with Sofia Patel is 4.",
        *(talk.format(THREE) for talk in TALK_OF_TAGS),
    ]


DECISIONS = (
    "Great!\n[accept]",
    "**[accept]**",
    "I think this is fair.\n\n[accept]",
    "My answer\n\n**[accept]**",
    "[accept] Thanks!",
    "I cannot find a better one, so this is it.\n[accept]",
)
"""Turns that accept, whatever stands before the tag."""
UNFINISHED = (
    "Sounds good, [accept]",
    "I agree with this [accept]",
    "My answer is [accept]",
    "My decision: [accept]",
    "Answer:\n**[accept]**",
)
"""Turns whose tag stands in a sentence, which only its words could tell from one that denies it."""

SHARED = Board(PAPERS[:3], ("Ava Li", "Ava Thompson", "Noah Li"))
HOSTILE_SHARED = {
    "a first name of two": "[propose]\nBLEU: Ava\nElectra: Ava Thompson\nGloVe: Noah",
    "a last name of two": "[propose]\nBLEU: Li\nElectra: Ava Thompson\nGloVe: Noah",
    "what is left over": "[propose]\nBLEU: Thompson\nElectra: Noah\nGloVe: Ava",
}
"""Proposals on `SHARED` that name nobody in particular."""
