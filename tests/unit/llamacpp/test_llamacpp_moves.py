"""Demote, Prefetch and Discard: the calls that are due, the files that are left, and ten thousand random steps."""

import random

import pytest

from controlplane.core.estimators.prompt_size import PromptSize
from controlplane.core.model.commands import Demote, Discard, Prefetch
from controlplane.gate.tickets import Ticket
from engine_hooks.llamacpp.moves import Call, Move, Moved, Moves
from engine_hooks.llamacpp.slots import SlotTable

NOW = 1000
COMMANDS = (Demote, Prefetch, Discard)


def turn_of(program: str, number: int) -> Ticket:
    """The program's turn of that number, which goes on with the one before."""
    before = f"{program}{number - 1}" if number else ""
    prompt = PromptSize(prompt_bytes=100 + number, continues=before, shared_ratio=1.0 if before else 0.0)
    return Ticket(program_id=program, turn_id=f"{program}{number}", prompt=prompt)


def moves(slots: int = 2, budget: int = 1000, *programs: str) -> Moves:
    made = Moves(SlotTable.of(slots), budget)
    for program in programs:
        ran(made, program, 0)
    return made


def ran(made: Moves, program: str, number: int) -> Move | Moved:
    """Its turn begins and ends: what had to be done first, which was."""
    ticket = turn_of(program, number)
    begun = made.table.begin(ticket, NOW + number)
    assert begun is not None
    due = made.before_turn(ticket, begun)
    if isinstance(due, Move):
        made.end(due, "", 0, NOW + number)
    made.table.end(ticket.turn_id, NOW + number)
    return due


def demoted(made: Moves, program: str, size: int = 100) -> Moved:
    due = made.due(Demote(program_id=program), NOW)
    assert isinstance(due, Move), due
    return made.end(due, "", size, NOW)


def test_a_demoted_context_is_saved_and_restored_into_the_slot_that_its_turn_gets() -> None:
    made = moves(2, 1000, "p")
    made.table.retain("p", 100, NOW)
    due = made.due(Demote(program_id="p"), NOW)
    assert isinstance(due, Move) and due.call.action == "save" and due.call.slot_id == 0
    assert made.due(Discard(program_id="p"), NOW) == Moved(problem="its context is being moved")
    assert made.table.begin(turn_of("p", 1), NOW) is None, "its turn waits for that"
    assert made.end(due, "", 100, NOW) == Moved()
    assert not list(made.table.pins(NOW))
    assert made.due(Demote(program_id="p"), NOW) == Moved(problem="it was demoted before")
    ran(made, "q", 0), ran(made, "r", 0)
    back = ran(made, "p", 1)
    assert isinstance(back, Move) and back.call.action == "restore" and back.call.filename == due.call.filename
    assert not made.saved


def test_a_demoted_context_that_still_lies_in_its_slot_is_not_restored() -> None:
    made = moves(2, 1000, "p", "q")
    demoted(made, "p")
    assert ran(made, "p", 1) == Moved(delete=(file_of("p"),))
    demoted(made, "q")
    assert made.due(Prefetch(program_id="q"), NOW) == Moved(delete=(file_of("q"),))
    assert made.due(Prefetch(program_id="q"), NOW) == Moved(problem="it is on the device")


def file_of(program: str) -> str:
    made = moves(1, 1000, program)
    due = made.due(Demote(program_id=program), NOW)
    assert isinstance(due, Move)
    return due.call.filename


def test_prefetch_takes_the_slot_that_is_missed_least_and_none_that_is_retained() -> None:
    made = moves(3, 1000, "p", "q", "r")
    demoted(made, "p")
    ran(made, "s", 0)  # in the slot of p
    made.table.retain("q", 100, NOW)
    due = made.due(Prefetch(program_id="p"), NOW)
    assert isinstance(due, Move) and due.lost == "s" and due.call == Call("restore", 0, file_of("p"))
    assert made.end(due, "", 0, NOW) == Moved(delete=(file_of("p"),), lost=("s",))
    assert made.table.main("p") is not None


def test_what_the_server_refuses_is_told_and_leaves_nothing_behind() -> None:
    made = moves(2, 1000, "p", "q")
    due = made.due(Demote(program_id="p"), NOW)
    assert isinstance(due, Move)
    assert made.end(due, "no space", 0, NOW) == Moved(problem="no space", delete=(file_of("p"),))
    assert made.table.main("p") is not None and not made.saved, "it stays where it was"
    demoted(made, "p")
    ran(made, "r", 0), ran(made, "s", 0)
    back = made.due(Prefetch(program_id="p"), NOW)
    assert isinstance(back, Move)
    gone = made.end(back, "no such file", 0, NOW)
    assert gone.problem == "no such file" and gone.lost == ("s", "p") and gone.delete == (file_of("p"),)
    assert made.due(Discard(program_id="p"), NOW).problem.startswith("no slot has a context of it")  # type: ignore[union-attr]


def test_the_oldest_files_go_for_a_new_one_and_none_that_is_larger_than_all_may_be() -> None:
    made = moves(4, 250, "a", "b", "c", "d")
    assert (made.room, demoted(made, "a"), made.room) == (4, Moved(), 1)
    assert demoted(made, "b") == Moved()
    assert demoted(made, "c") == Moved(delete=(file_of("a"),), lost=("a",))
    told = demoted(made, "d", 251)
    assert told.problem == "it takes 251 bytes, and saved slots may take 250" and told.delete == (file_of("d"),)
    assert made.table.main("d") is not None and made.table.main("a") is None


def test_without_a_place_for_files_nothing_is_demoted() -> None:
    told = moves(2, 0, "p").due(Demote(program_id="p"), NOW)
    assert isinstance(told, Moved) and "--slot-save-path" in told.problem


def test_discard_frees_every_context_of_a_program_but_none_that_runs() -> None:
    made = moves(3, 1000, "p")
    title = Ticket(program_id="p", turn_id="title", prompt=PromptSize(prompt_bytes=10))
    made.table.begin(title, NOW)
    made.table.end("title", NOW)
    assert made.due(Discard(program_id="p"), NOW) == Moved()
    assert made.table.main("p") is None
    back = made.table.begin(turn_of("p", 1), NOW)
    assert back is not None and back.continues, "nobody has overwritten it"
    made.table.begin(turn_of("q", 0), NOW)
    for kind in COMMANDS:
        told = made.due(kind(program_id="q"), NOW)
        assert isinstance(told, Moved) and told.problem == "a turn of it runs and holds its context"


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_each_context_is_in_one_place_and_no_busy_slot_is_touched(seed: int) -> None:
    """Turns, commands, failures in any order: 2,000 steps of a server of four slots."""
    source, made = random.Random(seed), moves(4, 500)
    turns, running, moving, files = dict.fromkeys("abcdefgh", 0), {}, [], set()

    def finish(due: Move | Moved) -> None:
        done = due
        if isinstance(due, Move):
            failed = source.random() < 0.1
            if due.call.action == "save":
                files.add(due.call.filename)  # the server may have begun it
            else:
                assert due.call.filename in files
            done = made.end(due, "no" if failed else "", source.randrange(50, 300), NOW)
        assert isinstance(done, Moved)
        assert files >= set(done.delete)
        files.difference_update(done.delete)

    for step in range(2000):
        program, now_ns = source.choice("abcdefgh"), NOW + step
        match source.randrange(6):
            case 0 | 1 if program not in running:
                ticket = turn_of(program, turns[program])
                begun = made.table.begin(ticket, now_ns)
                if begun is None:
                    continue
                assert begun.slot.slot_id not in [slot for slot, _ in running.values()]
                turns[program] += 1
                running[program] = (begun.slot.slot_id, ticket.turn_id)
                finish(made.before_turn(ticket, begun))
            case 2 if running:
                ends = source.choice(sorted(running))
                assert made.table.end(running.pop(ends)[1], now_ns)
            case 3:
                made.table.retain(program, source.randrange(1, 100), now_ns)
            case 4:
                due = made.due(source.choice(COMMANDS)(program_id=program), now_ns)
                if isinstance(due, Move):
                    assert due.call.slot_id not in [slot for slot, _ in running.values()]
                    moving.append(due)
                else:
                    finish(due)
            case 5 if moving:
                finish(moving.pop(source.randrange(len(moving))))
        assert len(files) <= len(made.saved) + len(moving) and made.saved_bytes <= 500
        assert {each.filename for each in made.saved.values()} <= files
        assert sum(1 for _ in made.table.pins(now_ns)) <= 2
    for due in moving:
        finish(due)
    assert {each.filename for each in made.saved.values()} == files
