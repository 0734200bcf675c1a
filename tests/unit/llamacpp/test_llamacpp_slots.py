"""Which slot a turn gets, and what a table of slots believes lies in each."""

import pytest

from controlplane.core.estimators.prompt_size import PromptSize
from controlplane.core.model.events import Pin
from controlplane.gate.tickets import Ticket
from engine_hooks.llamacpp.slots import SlotSeen, SlotTable

NOW = 1000


def ticket(
    program: str, turn: str, continues: str = "", *, ratio: float = 1.0, size: int = 9, agent: str = ""
) -> Ticket:
    shared = ratio if continues else 0.0
    prompt = PromptSize(prompt_bytes=size, continues=continues, shared_ratio=shared, agent=agent)
    return Ticket(program_id=program, turn_id=turn, prompt=prompt)


def ran(table: SlotTable, *tickets: Ticket, now_ns: int = NOW) -> list[int]:
    """Each turn begins and ends: the slots that they had."""
    numbers = []
    for count, each in enumerate(tickets):
        begun = table.begin(each, now_ns + count)
        assert begun is not None
        assert table.end(each.turn_id, now_ns + count)
        numbers.append(begun.slot.slot_id)
    return numbers


def seen(table: SlotTable, **changes: SlotSeen) -> list[SlotSeen]:
    """What the server says where all is as the table has it, but for slots ``sN``."""
    return [
        changes.get(
            f"s{slot.slot_id}",
            SlotSeen(slot_id=slot.slot_id, busy=bool(slot.turn_id), task=slot.task, tokens=10),
        )
        for slot in table.slots
    ]


def test_a_turn_goes_where_the_context_lies_that_it_continues() -> None:
    table = SlotTable.of(3)
    assert ran(table, ticket("p", "1"), ticket("q", "2"), ticket("p", "3", "1"), ticket("q", "4", "2")) == [
        0,
        1,
        0,
        1,
    ]


@pytest.mark.parametrize(
    "other",
    [ticket("p", "title"), ticket("p", "title", "1", ratio=0.1), ticket("q", "title", "1")],
    ids=["shares nothing", "shares little", "another program's"],
)
def test_another_conversation_leaves_the_context_alone(other: Ticket) -> None:
    table = SlotTable.of(2)
    assert ran(table, ticket("p", "1", size=100), other, ticket("p", "3", "1", size=120)) == [0, 1, 0]
    main = table.main("p")
    assert main is not None and main.context == "3"


def test_a_turn_that_nobody_measured_goes_to_its_programs_last_slot() -> None:
    table = SlotTable.of(3)
    unmeasured = Ticket(program_id="p", turn_id="3")
    assert ran(table, ticket("p", "1"), ticket("q", "2"), unmeasured) == [0, 1, 0]


def test_two_turns_that_continue_the_same_one_run_side_by_side() -> None:
    table = SlotTable.of(2)
    ran(table, ticket("p", "1"))
    first, second = table.begin(ticket("p", "2", "1"), NOW), table.begin(ticket("p", "3", "1"), NOW)
    assert first is not None and second is not None
    assert (first.slot.slot_id, second.slot.slot_id) == (0, 1) and first.continues and not second.continues
    assert table.begin(ticket("q", "4"), NOW) is None, "every slot is busy"


def test_what_is_missed_least_goes_first_and_what_is_retained_last() -> None:
    table = SlotTable.of(4)
    ran(table, ticket("soon", "1"), ticket("late", "2"), ticket("paused", "3"), ticket("plain", "4"))
    assert table.retain("soon", 50, NOW) == table.retain("late", 90, NOW) == ""
    table.unwanted.add("paused")
    goes = [table.begin(ticket(f"new{number}", f"n{number}"), NOW + 10) for number in range(4)]
    assert [(each.lost, each.reclaimed) for each in goes if each] == [
        ("paused", False),
        ("plain", False),
        ("soon", True),
        ("late", True),
    ]


def test_of_what_is_nobodys_the_context_of_such_an_agent_is_taken_as_it_begins_alike() -> None:
    table = SlotTable.of(3)
    ran(table, ticket("a", "1", agent="coder"), ticket("b", "2", agent="writer"))
    for slot in table.slots:
        slot.give_up()
    assert ran(table, ticket("c", "3", agent="writer")) == [1]


def test_pins_have_a_budget_and_an_end_and_are_no_more_once_the_program_goes_on() -> None:
    table = SlotTable.of(4)
    ran(table, *(ticket(name, name) for name in "abc"))
    assert [table.retain(name, 100, NOW) for name in "abc"] == ["", "", "the pin budget (0.5 of 4 slots) is spent"]
    assert table.retain("a", 200, NOW) == "", "it may be renewed"
    assert list(table.pins(NOW + 150)) == [Pin(program_id="a", ttl_ns=50)]
    assert table.retain("nobody", 1, NOW).startswith("no slot has a context of it")
    table.begin(ticket("a", "a2", "a"), NOW)
    assert table.retain("a", 1, NOW) == "a turn of it runs and holds its context"
    assert not list(table.pins(NOW + 150))


def test_what_the_server_says_is_believed_of_idle_slots_and_of_now() -> None:
    table = SlotTable.of(4)
    ran(table, *(ticket(name, name) for name in "abcd"))
    told = [SlotSeen(slot_id=number, busy=False, task=10 + number, tokens=10) for number in range(4)]
    assert table.observe(told, NOW + 100) == [], "they are ours"
    table.begin(ticket("a", "a2", "a"), NOW + 200)
    busy, other = (
        SlotSeen(slot_id=1, busy=True, task=20, tokens=5),
        SlotSeen(slot_id=2, busy=False, task=21, tokens=5),
    )
    assert table.observe(seen(table, s1=busy, s2=other), NOW + 150) == ["b", "c"]
    assert [slot.is_idle for slot in table.slots] == [False, False, True, True], "one is not ours"
    assert table.observe([SlotSeen(slot_id=0, busy=False, task=None, tokens=0)], NOW + 180) == [], "it ran since"
    assert not table.clears


def test_a_server_that_empties_idle_slots_is_found_out_and_one_that_restarted_is_not_it() -> None:
    table = SlotTable.of(2)
    ran(table, ticket("a", "1"), ticket("b", "2"))
    restarted = [SlotSeen(slot_id=number, busy=False, task=None, tokens=0) for number in range(2)]
    assert table.observe(restarted, NOW + 100) == ["a", "b"] and not table.clears
    ran(table, ticket("a", "3"))
    assert table.observe([SlotSeen(slot_id=0, busy=False, task=7, tokens=0)], NOW + 200) == ["a"] and table.clears


@pytest.mark.parametrize("ended", [False, True])
def test_a_turn_that_cannot_be_told_its_slot_is_found_and_nobody_begins_meanwhile(ended: bool) -> None:
    table = SlotTable.of(2)
    ran(table, ticket("a", "1"), ticket("b", "2"))
    table.observe(seen(table), NOW + 50)
    assert table.begin_unplaced(ticket("c", "3"))
    assert table.begin(ticket("d", "4"), NOW) is None and not table.begin_unplaced(ticket("e", "5"))
    if ended:
        table.end("3", NOW + 60)
    there = SlotSeen(slot_id=1, busy=not ended, task=77, tokens=9)
    assert table.observe(seen(table, s1=there), NOW + 70) == ["b"]
    main = table.main("c")
    assert main is not None and (main.slot_id, main.turn_id) == (1, "" if ended else "3")
    assert table.begin(ticket("d", "4"), NOW) is not None
    assert table.end("3", NOW + 80) is not ended


def test_a_turn_that_the_server_refused_takes_no_slot() -> None:
    table = SlotTable.of(2)
    assert table.begin_unplaced(ticket("c", "3"))
    table.end("3", NOW)
    table.observe(seen(table), NOW)
    assert table.unplaced is not None, "it was asked before the end"
    table.observe(seen(table), NOW + 1)
    assert table.unplaced is None
