"""The names of data-parallel ranks."""

import pytest

from controlplane.core.model.events import stands_before
from controlplane.core.model.ranks import places, rank_of, role_of_rank


def test_a_rank_is_found_again_in_its_role() -> None:
    for rank in (0, 7, 12):
        assert rank_of(f"node/{role_of_rank('engine-30000', rank)}") == rank
    assert role_of_rank("engine-30000", None) == "engine-30000"


@pytest.mark.parametrize("place", ["", "node/engine-30000", "node/engine-30000-dp", "node/engine-dpx"])
def test_what_names_no_rank_is_none(place: str) -> None:
    assert rank_of(place) is None


def test_the_ranks_are_behind_their_servers_gate() -> None:
    found = places("node", "engine-30000", 2)
    assert found == ("node/engine-30000-dp0", "node/engine-30000-dp1")
    assert all(stands_before("node/gate-30000", place) for place in found)
    assert places("node", "engine-30000", 1) == ()
