"""The gate's rules, in virtual time."""

import asyncio

import pytest
from gate_virtual_time import Beat, Bench, in_virtual_time, ticket

from controlplane.core.estimators.prompt_size import PromptSize
from controlplane.core.model.commands import Admit, Discard, Pause, Refuse, SetWindow
from controlplane.core.model.errors import ConfigError, LocalEventError
from controlplane.core.model.events import (
    REFUSALS,
    ProgramArrived,
    ProgramEnded,
    TurnAbandoned,
    TurnQueued,
    TurnsRefused,
)
from controlplane.core.model.types import seconds
from controlplane.gate import GateLimits, Refused
from controlplane.gate.tickets import REFUSED


@in_virtual_time(governed=False)
async def test_before_any_daemon_everything_passes_and_nothing_is_asked(bench: Bench) -> None:
    for turn in range(50):
        assert (await bench.gate.enter(ticket(f"p{turn}/1"))).hold_ns == 0
    assert bench.sent == []
    assert bench.gate.health()["mode"] == "passive"


@in_virtual_time()
async def test_a_new_program_is_asked_for_at_once_and_held_until_its_grant(bench: Bench) -> None:
    waiting = bench.enter(
        "p/1", prompt=PromptSize(prompt_bytes=40, prompt_tokens=9, agent="a"), tenant="t", agent="a"
    )
    await asyncio.sleep(1.5)
    assert not waiting.done()
    assert bench.urgent == [
        TurnQueued(
            program_id="p",
            turn_id="p/1",
            prompt_bytes=40,
            prompt_tokens=9,
            tenant="t",
            agent="a",
            timeout_ns=seconds(600),
        )
    ]
    assert bench.gate.on_command(Admit(program_id="p", reason="a slot is free"))
    entered = await waiting
    assert entered.hold_ns == seconds(1.5)
    assert entered.reason == "a slot is free"


@in_virtual_time()
async def test_a_grant_lets_all_held_turns_go_and_later_ones_pass_unasked(bench: Bench) -> None:
    waiting = [bench.enter(f"p/{turn}") for turn in range(3)]
    other = bench.enter("q/1")
    await bench.settle()
    bench.gate.on_command(Admit(program_id="p"))
    await asyncio.gather(*waiting)
    asked = len(bench.sent)
    assert bench.gate.try_enter(ticket("p/9")) is not None
    assert len(bench.sent) == asked
    assert not other.done()
    other.cancel()


@in_virtual_time()
async def test_a_grant_for_one_request_is_taken_by_the_gate_that_holds_it_only(bench: Bench) -> None:
    """Each gate of a node hears it, and at another nobody would ever end that program."""
    assert not bench.gate.on_command(Admit(program_id="anonymous-of-another"))
    assert bench.granted == []
    waiting = bench.enter("anonymous-here/1", anonymous=True)
    await bench.settle()
    assert bench.gate.on_command(Admit(program_id="anonymous-here"))
    await waiting


@in_virtual_time()
async def test_families_have_no_cycles(bench: Bench) -> None:
    bench.gate.on_command(Admit(program_id="a"))
    assert bench.gate.try_enter(ticket("a/1")) is not None
    assert bench.gate.try_enter(ticket("b/1", parent_id="a", parent_turn="a/1")) is not None
    assert bench.gate.try_enter(ticket("a/2", parent_id="b", parent_turn="b/1")) is not None
    assert bench.gate.try_enter(ticket("a/3", parent_id="a", parent_turn="a/1")) is not None
    assert [event.program_id for event in bench.of(ProgramArrived)] == ["b"]


@in_virtual_time()
async def test_pause_holds_the_next_turn_and_leaves_the_running_one(bench: Bench) -> None:
    bench.gate.on_command(Admit(program_id="p"))
    running = ticket("p/1")
    assert bench.gate.try_enter(running) is not None
    assert bench.gate.on_command(Pause(program_id="p"))
    assert bench.gate.try_enter(ticket("p/2")) is None
    assert bench.gate.health()["running_turns"] == 1
    bench.gate.leave(running)
    waiting = bench.enter("p/2")
    await bench.settle()
    assert not waiting.done()
    bench.gate.on_command(Admit(program_id="p"))
    await waiting


@in_virtual_time()
async def test_a_held_turn_is_asked_for_again_under_the_same_id(bench: Bench) -> None:
    waiting = bench.enter("p/1")
    await bench.heartbeats_for(7)
    assert [event.turn_id for event in bench.of(TurnQueued)] == ["p/1"] * 4
    assert len(bench.urgent) == 1, "a retry can wait for the batch"
    waiting.cancel()


@in_virtual_time()
async def test_a_turn_is_held_no_longer_than_the_deadline(bench: Bench) -> None:
    waiting = bench.enter("p/1")
    heart = asyncio.ensure_future(bench.heartbeats_for(601))
    with pytest.raises(Refused) as refusal:
        await waiting
    assert bench.loop.now_ns() == pytest.approx(seconds(600), abs=seconds(0.3))
    assert (refusal.value.status, refusal.value.code) == (503, "hold_deadline")
    assert refusal.value.retry_after_s == 5
    assert refusal.value.hold_ns >= seconds(600)
    assert [event.turn_id for event in bench.of(TurnAbandoned)] == ["p/1"]
    assert bench.gate.health()["held_turns"] == 0
    await heart


@in_virtual_time()
async def test_what_has_begun_waits_on_while_others_are_served(bench: Bench) -> None:
    heart = asyncio.ensure_future(bench.heartbeats_for(3000))
    for name in ("began", "serves"):
        first = bench.enter(f"{name}/1")
        await bench.settle()
        bench.gate.on_command(Admit(program_id=name, ttl_ns=seconds(5000)))
        await first
    bench.gate.leave(ticket("began/1"))
    bench.gate.on_command(Pause(program_id="began"))
    waiting = bench.enter("began/2")
    await asyncio.sleep(1500)
    assert not waiting.done()
    assert {event.timeout_ns for event in bench.of(TurnQueued) if event.turn_id == "began/2"} == {0}
    bench.gate.leave(ticket("serves/1"))
    with pytest.raises(Refused, match="no slot came free"):
        await waiting
    await heart


@in_virtual_time()
async def test_a_newcomer_that_would_wait_too_long_is_told_when_to_come_again(bench: Bench) -> None:
    waiting = bench.enter("p/1", timeout_s=30.0)
    await bench.settle()
    assert bench.gate.expected_wait_s(ticket("p/1")) is None
    bench.gate.on_heartbeat(Beat(end_interval_ns=seconds(20)))
    assert bench.gate.expected_wait_s(ticket("p/1")) == 20.0
    assert bench.of(TurnQueued)[0].timeout_ns == seconds(30), "the client's own deadline comes first"
    refuse = Refuse(program_id="p", ttl_ns=seconds(90), code="expected_wait", reason="about 120 s to wait")
    bench.gate.on_command(refuse)
    with pytest.raises(Refused) as refusal:
        await waiting
    told = refusal.value
    assert (told.status, told.code, told.message) == (429, "expected_wait", "about 120 s to wait")
    assert (told.retry_after_s, told.is_final) == (90, False)
    assert bench.gate.counters.refused_expected == 1
    with pytest.raises(Refused):
        bench.gate.try_enter(ticket("p/2"))


@in_virtual_time()
async def test_a_client_that_leaves_while_held_leaves_at_once(bench: Bench) -> None:
    waiting = bench.enter("p/1", held_bytes=10)
    await bench.settle()
    waiting.cancel()
    await bench.settle()
    assert waiting.cancelled()
    assert [event.turn_id for event in bench.of(TurnAbandoned)] == ["p/1"]
    assert (bench.gate.health()["held_turns"], bench.gate.health()["held_bytes"]) == (0, 0)


@in_virtual_time(max_held=3)
async def test_turns_that_leave_unserved_are_told_by_code_with_the_next_heartbeat(bench: Bench) -> None:
    """One event a code, however many they were: a flood of refusals is none of events."""
    assert tuple(REFUSED) == REFUSALS
    waiting = [bench.enter("a/1"), bench.enter("b/1"), bench.enter("b/2")]
    await bench.settle()
    for number in range(500):
        with pytest.raises(Refused):
            await bench.gate.enter(ticket(f"new{number}/1"))
    waiting[0].cancel()
    await bench.settle()
    bench.gate.on_command(Refuse(program_id="b", reason="its budget is spent"))
    assert bench.of(TurnsRefused) == []
    bench.gate.on_heartbeat(Beat())
    told = {event.code: event.turns for event in bench.of(TurnsRefused)}
    assert told == {"queue_full": 500, "client_left": 1, "budget_spent": 2}
    bench.gate.on_heartbeat(Beat())
    assert len(bench.of(TurnsRefused)) == 3, "once"
    last = bench.enter("c/1")
    await bench.settle()
    bench.gate.close()
    assert bench.of(TurnsRefused)[-1].code == "gate_closed"
    await asyncio.gather(*waiting, last, return_exceptions=True)


@in_virtual_time(max_held=2, hard_factor=2)
async def test_a_full_queue_refuses_new_programs_only(bench: Bench) -> None:
    bench.gate.on_command(Admit(program_id="known"))
    first = ticket("known/1")
    await bench.gate.enter(first)
    bench.gate.leave(first)
    bench.gate.on_command(Pause(program_id="known"))
    waiting = [bench.enter("a/1"), bench.enter("b/1")]
    await bench.settle()
    with pytest.raises(Refused) as refusal:
        await bench.gate.enter(ticket("new/1"))
    assert (refusal.value.status, refusal.value.code) == (429, "queue_full")
    assert refusal.value.retry_after_s >= 1
    waiting += [bench.enter("known/2"), bench.enter("a/2")]
    await bench.settle()
    assert not any(task.done() for task in waiting)
    with pytest.raises(Refused) as refusal:
        await bench.gate.enter(ticket("known/3"))
    assert refusal.value.status == 503, "a known program is told to come back, never that it is too much"
    for task in waiting:
        task.cancel()


@in_virtual_time(max_held_bytes=1000)
async def test_held_bodies_are_bounded_too(bench: Bench) -> None:
    waiting = bench.enter("a/1", held_bytes=800)
    await bench.settle()
    with pytest.raises(Refused):
        await bench.gate.enter(ticket("b/1", held_bytes=800))
    waiting.cancel()


@in_virtual_time()
async def test_a_grant_is_a_lease_that_use_renews(bench: Bench) -> None:
    bench.gate.on_command(Admit(program_id="p", ttl_ns=seconds(60)))
    heart = asyncio.ensure_future(bench.heartbeats_for(300))
    await asyncio.sleep(50)
    turn = ticket("p/1")
    assert bench.gate.try_enter(turn) is not None
    await asyncio.sleep(100)
    assert "p" in bench.granted, "a running turn keeps it"
    bench.gate.leave(turn)
    await asyncio.sleep(59)
    assert "p" in bench.granted
    await asyncio.sleep(2)
    assert bench.granted == []
    assert bench.gate.try_enter(ticket("p/2")) is None
    await heart


@in_virtual_time(max_programs=20)
async def test_forgotten_programs_do_not_pile_up(bench: Bench) -> None:
    for number in range(500):
        bench.gate.on_command(Admit(program_id=f"p{number}"))
        turn = ticket(f"p{number}/1", parent_id=f"p{number - 1}")
        await bench.gate.enter(turn)
        bench.gate.leave(turn)
    health = bench.gate.health()
    assert health["known_programs"] == 20
    assert bench.gate.try_enter(ticket("p0/2")) is None, "a forgotten program asks once more"
    assert bench.gate.try_enter(ticket("p499/2")) is not None


@in_virtual_time()
async def test_the_end_of_a_program_ends_its_grant(bench: Bench) -> None:
    bench.gate.on_command(Admit(program_id="p"))
    bench.gate.end_program("p")
    assert bench.gate.try_enter(ticket("p/1")) is None
    assert bench.gate.health()["known_programs"] == 0


@in_virtual_time()
async def test_a_turn_without_identity_is_a_program_that_ends_with_it(bench: Bench) -> None:
    waiting = bench.enter("nobody/1", anonymous=True)
    await bench.settle()
    bench.gate.on_command(Admit(program_id="nobody"))
    await waiting
    bench.gate.leave(ticket("nobody/1", anonymous=True))
    assert [event.program_id for event in bench.of(ProgramEnded)] == ["nobody"]
    assert bench.gate.health()["known_programs"] == 0


@pytest.mark.parametrize("how", ["cancel while held", "cancel as granted"])
@in_virtual_time()
async def test_a_turn_without_identity_that_leaves_ends_once(bench: Bench, how: str) -> None:
    waiting = bench.enter("nobody/1", anonymous=True)
    await bench.settle()
    if how == "cancel as granted":
        bench.gate.on_command(Admit(program_id="nobody"))
    waiting.cancel()
    await bench.settle()
    assert len(bench.of(ProgramEnded)) == len(bench.of(TurnAbandoned)) == 1
    assert bench.gate.health()["known_programs"] == 0


@in_virtual_time()
async def test_commands_that_are_not_the_gates_are_left_to_others(bench: Bench) -> None:
    assert not bench.gate.on_command(Discard(program_id="p"))
    assert bench.gate.on_command(SetWindow(limit=7, window=7.5))
    assert bench.gate.health()["limit"] == 7
    assert bench.gate.on_command(Pause(program_id="never seen"))


@in_virtual_time()
async def test_a_turn_cannot_be_at_the_gate_twice(bench: Bench) -> None:
    bench.gate.on_command(Admit(program_id="p"))
    bench.gate.try_enter(ticket("p/1"))
    with pytest.raises(LocalEventError):
        bench.gate.try_enter(ticket("p/1"))


@in_virtual_time()
async def test_leaving_twice_or_without_entering_changes_nothing(bench: Bench) -> None:
    bench.gate.on_command(Admit(program_id="p"))
    turn = ticket("p/1")
    bench.gate.leave(turn)
    bench.gate.try_enter(turn)
    bench.gate.leave(turn)
    bench.gate.leave(turn)
    assert (bench.gate.health()["running_turns"], bench.gate.health()["busy_programs"]) == (0, 0)


@in_virtual_time(governed=False, time_scale=20.0)
async def test_times_follow_a_clock_that_runs_faster_than_the_wall(bench: Bench) -> None:
    wall_ns = bench.loop.now_ns
    bench.gate._now_ns = lambda: 20 * wall_ns()  # the gate's clock: twenty times the loop's
    bench.gate.on_heartbeat(Beat(lease_ttl_ns=seconds(10_000)))
    with pytest.raises(Refused) as refusal:
        await bench.gate.enter(ticket("p/1"))
    assert wall_ns() == pytest.approx(seconds(30), abs=seconds(0.1))
    assert refusal.value.hold_ns == pytest.approx(seconds(600), abs=seconds(1))
    assert refusal.value.retry_after_s == 1, "clients wait in seconds of the wall"


@pytest.mark.parametrize(
    ("field", "value"), [("max_held", 0), ("hold_ns", 0), ("keep_ns", -1), ("time_scale", 0.0)]
)
def test_limits_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        GateLimits(**{field: value})  # type: ignore[arg-type]


@in_virtual_time()
async def test_a_draining_node_sends_new_programs_away_and_serves_the_known(bench: Bench) -> None:
    before = bench.enter("old/1")
    await bench.settle()
    bench.gate.on_command(Admit(program_id="old"))
    bench.gate.leave(ticket("old/1"))
    assert (await before).hold_ns == 0
    waiting = bench.enter("waiting/1")
    await bench.settle()
    bench.gate.on_heartbeat(Beat(draining=True))
    with pytest.raises(Refused) as refused:
        await bench.gate.enter(ticket("new/1"))
    assert (refused.value.status, refused.value.code) == (503, "draining")
    assert refused.value.retry_after_s >= 1
    assert (await bench.gate.enter(ticket("old/2"))).reason == "granted"
    assert not waiting.done()
    assert bench.gate.health()["draining"] is True
    bench.gate.on_heartbeat(Beat(draining=False))
    again = bench.enter("new/1")
    await bench.settle()
    assert not again.done()
    bench.gate.on_command(Admit(program_id="new"))
    await again
    waiting.cancel()


@in_virtual_time()
async def test_a_node_whose_daemon_was_lost_while_draining_takes_programs_again(bench: Bench) -> None:
    bench.gate.on_heartbeat(Beat(draining=True, limit=2))
    await asyncio.sleep(6)
    assert (await bench.gate.enter(ticket("new/1"))).reason.startswith("the daemon is lost")


@in_virtual_time()
async def test_a_turn_that_was_held_elsewhere_before_goes_first_and_has_less_time_left(bench: Bench) -> None:
    late, early = bench.enter("late/1"), bench.enter("early/1", waited_ns=seconds(590))
    await bench.settle()
    assert [turn.program_id for turn in bench.gate.state().held_turns] == ["early", "late"]
    await bench.heartbeats_for(11)
    with pytest.raises(Refused, match="600 s"):
        await early
    assert not late.done()
    late.cancel()


@in_virtual_time()
async def test_many_turns_come_and_go_under_one_that_stays(bench: Bench) -> None:
    stays = bench.enter("stays/1")
    for number in range(300):
        passing = bench.enter(f"passing-{number}/1")
        await bench.settle()
        passing.cancel()
        await bench.settle()
    assert len(bench.gate._holds._by_age) < 100
    assert [turn.program_id for turn in bench.gate.state().held_turns] == ["stays"]
    stays.cancel()
