"""Where turns go that one gate lets run on several engines."""

import pytest
from gate_virtual_time import Beat, Bench, in_virtual_time, ticket

from controlplane.core.model.commands import Admit, Place
from controlplane.gate import GateLink
from controlplane.gate import places as module
from controlplane.gate.places import Places

RANKS = ("node/engine-1-dp0", "node/engine-1-dp1")


def behind() -> Places:
    places = Places()
    places.chosen = True
    places.behind(RANKS)
    return places


def test_a_program_goes_where_the_daemon_said_last() -> None:
    places = behind()
    for place in (RANKS[1], RANKS[0], RANKS[1]):
        assert places.assign("p", place)
        assert places.of("p") == place
    assert places.programs() == {RANKS[0]: 0, RANKS[1]: 1}


def test_an_engine_that_is_not_behind_this_gate_is_not_meant() -> None:
    places = behind()
    assert not places.assign("p", "node/engine-2-dp1")
    assert places.programs() == dict.fromkeys(RANKS, 0)


def test_of_whom_nothing_was_said_the_gate_chooses_where_fewest_are_and_stays_with_that() -> None:
    places = behind()
    places.assign("told", RANKS[0])
    assert places.of("first") == RANKS[1]
    for _ in range(2):
        assert [places.of(name) for name in ("second", "third", "first")] == [RANKS[0], RANKS[1], RANKS[1]]
    places.forget("first")
    assert places.of("fourth") == RANKS[1]


@pytest.mark.parametrize("ranks", [(), RANKS[:1]])
def test_with_one_engine_there_is_nothing_to_choose(ranks: tuple[str, ...]) -> None:
    places = Places()
    places.chosen = True
    places.behind(ranks)
    assert places.of("p") == ""


def test_the_longest_unused_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PROGRAMS", 2)
    places = behind()
    for name in ("a", "b", "a", "c"):
        places.of(name)
    assert sum(places.programs().values()) == 2
    places.assign("b", RANKS[1])
    assert places.of("b") == RANKS[1]


@in_virtual_time(governed=False)
async def test_without_a_daemon_the_server_chooses_as_without_the_plugin(bench: Bench) -> None:
    link = GateLink(bench.gate, send=lambda event, urgent: None, publisher=lambda: "node/gate-1/x")
    bench.gate.places.behind(RANKS)
    assert bench.gate.places.of("p") == ""
    link.receive(Beat(), bench.loop.now_ns())
    assert bench.gate.places.of("p") == RANKS[0]
    link.receive(Place(command_id=1, program_id="p", replica=RANKS[1]), bench.loop.now_ns())
    assert bench.gate.places.of("p") == RANKS[1]


@in_virtual_time()
async def test_a_turn_without_an_identity_takes_no_place_when_it_is_over(bench: Bench) -> None:
    bench.gate.places.behind(RANKS)
    bench.gate.places.chosen = True
    bench.gate.on_command(Admit(program_id="p"))
    turn = ticket("p/1", anonymous=True)
    assert bench.gate.try_enter(turn) is not None
    assert bench.gate.places.of("p") == RANKS[0]
    bench.gate.leave(turn)
    assert bench.gate.places.programs() == dict.fromkeys(RANKS, 0)
