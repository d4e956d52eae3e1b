"""Finds the arguments that a chat template reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

GIVEN = ("messages", "tools", "documents", "add_generation_prompt")
"""Arguments that every chat template gets, beside its clock, functions and special tokens."""
ASKS = ("defined", "undefined", "default", "d")
"""Tests and filters by which a template asks whether it has got an argument."""


def arguments_of(tokenizer: Any, template: str) -> set[str]:
    """Returns the arguments that a chat template reads, without those that every template gets."""
    from jinja2 import nodes
    from jinja2.meta import find_undeclared_variables
    from transformers.utils.chat_template_utils import _compile_jinja_template

    environment = _compile_jinja_template(template).environment
    always = {*GIVEN, *environment.globals, *tokenizer.special_tokens_map}
    tree = environment.parse(template)
    # Jinja also finds variables that only some branch sets. An argument that is set somewhere has a default there.
    own = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    asked = set[str]()
    _read(tree.body, set(), asked)
    return set(find_undeclared_variables(tree)) - always - (own - asked)


def _read(body: Iterable[Any], known: set[str], asked: set[str]) -> None:
    """Add the names that a part of a template asks for before it has certainly set them.

    It asks by a test or a filter (`{% if effort is defined %}`), or gives a default after a look at the name:
    `{% set effort = effort or "low" %}`, `{% if not effort %}{% set effort = "low" %}{% endif %}`.

    Args:
        body: Nodes of the part, in order.
        known: Names that are set before it; those that it certainly sets are added.
        asked: The names found so far.
    """
    from jinja2 import nodes

    for node in body:
        if isinstance(node, nodes.Macro):
            _read(node.body, known | {argument.name for argument in node.args}, asked)
        elif isinstance(node, nodes.If):
            ends = list[set[str]]()
            for branch in (node, *node.elif_):
                inside = set[str]().union(*(_names(one.target) for one in branch.find_all(nodes.Assign)))
                asked |= (_names(branch.test) & inside) - known
                _read([branch.test], known, asked)
                ends.append(set(known))
                _read(branch.body, ends[-1], asked)
            ends.append(set(known))
            _read(node.else_, ends[-1], asked)
            known |= set.intersection(*ends)
        elif isinstance(node, nodes.For):
            _read([node.iter], known, asked)
            inner = known | _names(node.target)
            _read(filter(None, [node.test]), inner, asked)
            _read(node.body, inner, asked)
            _read(node.else_, set(known), asked)
        elif isinstance(node, nodes.Assign):
            asked |= (_names(node.node) & _names(node.target)) - known
            _read([node.node], known, asked)
            known |= _names(node.target)
        elif isinstance(node, nodes.AssignBlock):
            _read(node.body, set(known), asked)
            known |= _names(node.target)
        else:
            if isinstance(node, nodes.Test | nodes.Filter) and isinstance(node.node, nodes.Name) and node.name in ASKS:
                asked |= {node.node.name} - known
            _read(node.iter_child_nodes(), known, asked)


def _names(node: Any) -> set[str]:
    """Returns the names in a part of a template."""
    from jinja2 import nodes

    return {name.name for name in (node, *node.find_all(nodes.Name)) if isinstance(name, nodes.Name)}
