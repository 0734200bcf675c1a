"""Where programs go that the daemon has said nothing of, and what a change of the roster moves."""

from collections import Counter

from controlplane.core.estimators.workload import Estimates
from controlplane.core.model.types import Program, Replica
from controlplane.core.policies.placement.hashing import Hash
from controlplane.core.policies.protocols import STATELESS, NextTurn
from controlplane.fleet.choice import Choice
from controlplane.fleet.roster import Engine, Roster, Standing
from controlplane.gate.places import Places


def engine(number: int, standing: Standing = Standing.SERVING) -> Engine:
    return Engine(place=f"node-{number}/engine-1", address=f"10.0.0.{number}:1", standing=standing)


def homes(choice: Choice) -> dict[str, str]:
    programs = (f"program-{number}" for number in range(300))
    return {program: choice.of_program(program, None)[0].place for program in programs}


def test_each_picker_sends_a_program_without_a_place_to_the_same_engine_and_spreads_them() -> None:
    here = homes(Choice(Roster(map(engine, range(3))), Places()))
    there = homes(Choice(Roster(map(engine, reversed(range(3)))), Places()))
    assert here == there
    assert min(Counter(here.values()).values()) > 60


def test_a_program_without_a_place_goes_where_the_policy_hash_places_it() -> None:
    engines = [Replica(name=engine(number).place) for number in range(3)]
    for program, place in homes(Choice(Roster(map(engine, range(3))), Places())).items():
        turn = NextTurn(program=Program(program_id=program), blocks=1)
        assert Hash().place(STATELESS, turn, engines, Estimates(), 0)[1].replica == place
    assert Choice(Roster(map(engine, range(3))), Places()).of_program("\udcff", None), "a name that is no text"


def test_an_engine_that_leaves_moves_its_own_programs_only_and_the_second_is_a_fixed_one_that_serves() -> None:
    roster = Roster(map(engine, range(3)))
    choice = Choice(roster, Places())
    before = homes(choice)
    roster.put(engine(1, Standing.GONE))
    after = homes(choice)
    assert {name for name in before if before[name] != after[name]} == {
        name for name, place in before.items() if place == engine(1).place
    }
    roster.put(engine(1))
    assert len({choice.of_program("p", None) for _ in range(5)}) == 1
    home, second = choice.of_program("p", None)
    roster.put(Engine(place=second.place, address=second.address, standing=Standing.DRAINING))
    assert choice.of_program("p", None)[0] == home
    assert choice.of_program("p", None)[1] not in (home, second)


def test_a_gate_that_chooses_by_itself_leaves_draining_engines_out() -> None:
    places = Places()
    places.chosen = True
    roster = Roster(map(engine, range(3)))
    choice = Choice(roster, places)
    assert places.assign("mine", engine(0).place)
    roster.put(engine(0, Standing.DRAINING))
    assert choice.of_program("mine", None)[0].place == engine(0).place
    assert all(choice.of_program(f"new-{number}", None)[0].place != engine(0).place for number in range(9))
    roster.remove(engine(0).place)
    assert choice.of_program("mine", None)[0].place != engine(0).place
    assert not places.assign("mine", engine(0).place)


def test_where_only_draining_engines_are_left_their_own_programs_still_go_there() -> None:
    places = Places()
    places.chosen = True
    roster = Roster([engine(0), engine(1)])
    choice = Choice(roster, places)
    places.assign("mine", engine(0).place)
    for number in (0, 1):
        roster.put(engine(number, Standing.DRAINING))
    assert choice.of_program("mine", None) == (engine(0, Standing.DRAINING),)
    assert choice.any(None) == () and choice.is_there_any(None)
    assert not choice.is_there_any({"10.9.9.9:1"})
