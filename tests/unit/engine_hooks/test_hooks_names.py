"""The names that an engine's hooks give programs are those that gate and daemon give them."""

import pytest
from support import strangers

from controlplane.core.text import made_good
from engine_hooks.engine.view import is_unnamed, named


@pytest.mark.parametrize("name", strangers.NAMES.values(), ids=strangers.NAMES)
def test_a_routing_key_is_made_good_and_an_unnamed_request_is_known_as_such(name: str) -> None:
    assert named(name, "r") == made_good(name.strip())
    for nothing in (None, "", "  "):
        unnamed = named(nothing, name)
        assert is_unnamed(unnamed)
        assert made_good(unnamed) == unnamed, "the daemon's commands name it so"
