"""What the picker tells a front end that drops all headers but its own: whose turn it is, and for which rank."""

from collections.abc import Mapping

import pytest
from support.pickers import Picker, asking, chosen, picker

from controlplane.core.model.places import rank_of
from controlplane.fleet.roster import Engine
from controlplane.gate.request_ids import Carried, carried_by

RANKS = [Engine(place=f"n/engine-8000-dp{rank}", address="10.0.0.1:8000") for rank in range(2)]
OTHER = Engine(place="n/engine-8000", address="10.0.0.1:8000")


async def sent_on(it: Picker, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that come with the choice for a turn of ``p``, which has a slot."""
    async with asking(it.port) as ask:
        asked = ask()
        await asked.headers({"x-penstock-program-id": "p", **headers})
        return chosen(await asked.reply())[0]


@pytest.mark.parametrize("engine", RANKS)
async def test_a_turns_name_and_rank_ride_in_headers_that_the_front_end_knows(engine: Engine) -> None:
    async with picker(*RANKS, more={"names_in_request_id": lambda: True}) as it:
        it.admit("p", engine.place)
        headers = await sent_on(it, {"x-request-id": "mine"})
        assert headers["x-request-id"].startswith("mine:")
        turn_id = headers["x-penstock-turn-id"]
        assert carried_by(headers["x-request-id"]) == Carried(turn_id=turn_id, program_id="p")
        assert headers["x-data-parallel-rank"] == str(rank_of(engine.place))


@pytest.mark.parametrize(
    ("engines", "asked", "named"),
    [(RANKS, {"x-data-parallel-rank": "0"}, True), ([OTHER], {}, True), (RANKS, {}, False)],
)
async def test_a_client_that_names_its_rank_has_its_way_and_others_need_none(
    engines: list[Engine], asked: Mapping[str, str], named: bool
) -> None:
    async with picker(*engines, more={"names_in_request_id": lambda: named}) as it:
        it.admit("p", engines[-1].place)
        headers = await sent_on(it, asked)
        assert "x-data-parallel-rank" not in headers
        assert ("x-request-id" in headers) is named
