"""The labels that carry a turn's identity to the scheduler, and the names that an engine's view makes of them."""

from typing import Any

import pytest
from support import strangers
from support.hooked import GATED, gated_scope

from controlplane.core.model.text import sanitize
from engine_hooks.engine.labels import gated_labels, ungated_labels
from engine_hooks.engine.view import is_unnamed, named


@pytest.mark.parametrize("name", strangers.NAMES.values(), ids=strangers.NAMES)
def test_a_routing_key_is_made_good_and_an_unnamed_request_is_known_as_such(name: str) -> None:
    assert named(name, "r") == sanitize(name.strip())
    for nothing in (None, "", "  "):
        unnamed = named(nothing, name)
        assert is_unnamed(unnamed)
        assert sanitize(unnamed) == unnamed, "the daemon's commands name it so"


def test_a_gated_turn_carries_program_turn_parent_and_its_clients_span() -> None:
    assert gated_labels(gated_scope()["penstock"]) == GATED


@pytest.mark.parametrize(
    ("headers", "body", "program"),
    [
        ({b"x-session-id": b"s"}, {}, "s"),
        ({}, {"session_id": "of the body"}, "of the body"),
        (
            {b"x-penstock-parent-id": b"root"},
            {"program_id": "mine"},
            "mine",
        ),  # nobody has checked whose child it is
        ({}, {}, None),
        ({b"x-penstock-program-id": b"x" * 300}, {}, None),
    ],
)
def test_without_a_gate_headers_and_body_name_the_program(
    headers: dict[bytes, bytes], body: dict[str, Any], program: str | None
) -> None:
    expected = {} if program is None else {"program_id": program}
    assert ungated_labels({"headers": list(headers.items())}, {"custom_params": {}, **body}) == expected
