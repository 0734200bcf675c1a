"""What clients ask for, from the request to what ``penstock explain`` says: one row a wish, within its bounds.

A real gate and a real controller with its decision log; the engine's events are the test's own.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate_virtual_time import Beat
from support.core_driver import fixed
from support.journalled import Journalled
from test_gate_middleware import CHAT, Bench, Exchange

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.hints import NO_HINTS, HintRules
from controlplane.core.model.types import QueuedProgram, seconds
from controlplane.core.policies.presets import PRESETS
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.core.scheduling.service_tiers import in_tiers
from controlplane.gate.hints import DEADLINES, UNREAD, WISHES
from controlplane.gate.identity import FAIRNESS_HEADERS
from controlplane.gate.kv_hints import RECEIPT_HEADER
from controlplane.operate.explain import lines, story
from controlplane.wire.decisions import read_decisions

SHARE, LITTLE = HintRules(priority_share=0.5), HintRules(priority_share=0.001)
NAMED = HintRules(priority_share=0.5, priority_objectives=("chat",), flex_objectives=("batch",))
KEEPS = HintRules(retain_most_s=400)
HOUR_NS = seconds(3600)


class Scene:
    """One slot and a pool of 1,000 blocks; ``busy`` is in, ``before`` waits, then ``p`` asks, then ``after``."""

    def __init__(
        self, path: Path, rules: HintRules, *, policy: str = "fcfs", higher_first: bool | None = None
    ) -> None:
        self.node = Journalled(1, path=path)
        self.driver, self.rules = self.node.driver, rules
        preset = replace(fixed(1), retention=PRESETS[policy].retention)
        self.driver.controller.reconfigure(preset, ControlRules(stall_s=60, hints=rules), self.driver.now_ns)
        self.driver.pool()
        self.bench = Bench(governed=False)
        self.bench.gate.hints.higher_first = higher_first
        self.bench.gate.on_heartbeat(
            Beat(retain_most_ns=seconds(rules.retain_most_s), host_tier=True, engine_obeys=True)
        )
        self.commands: list[cmd.Command] = []
        self.heard = 0

    def hear(self) -> None:
        """What the gate has sent since, as the daemon hears it."""
        for event in self.bench.events[self.heard :]:
            self.node.send(replace(event, publisher="node/gate/2", sequence=0))
        self.heard = len(self.bench.events)

    async def asks(self, headers: dict[str, str], body: dict[str, Any]) -> Exchange:
        exchange = self.bench.request(CHAT | body, **headers)
        for _ in range(20):
            await asyncio.sleep(0)
        self.hear()
        return exchange

    def tick(self, after_s: float = 1.0) -> None:
        decided = self.driver.tick(after_s)
        self.commands += decided
        for command in decided:
            self.node.told(command)
            self.bench.gate.on_command(command)

    def turn(self, name: str, turn_id: str, tokens: int = 100) -> None:
        """In the engine; the controller decides at its end."""
        self.node.engine(ev.TurnSubmitted, program_id=name, turn_id=turn_id, projected_blocks=tokens)
        self.node.engine(
            ev.FirstToken,
            program_id=name,
            turn_id=turn_id,
            launch_delay_ns=1,
            prefill_ns=10**9,
            prompt_tokens=tokens,
        )
        self.node.engine(ev.TurnEnded, program_id=name, turn_id=turn_id, prompt_tokens=tokens, output_tokens=0)

    @property
    def admitted(self) -> list[str]:
        return [each.program_id for each in self.commands if isinstance(each, cmd.Admit)]

    def of_p(self, kind: type[cmd.Command]) -> Any:
        return next((each for each in self.commands if isinstance(each, kind) and each.program_id == "p"), None)  # type: ignore[attr-defined]

    def explained(self) -> str:
        return "\n".join(lines(story(read_decisions(self.node.path), "p")))


Make = Callable[..., Scene]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes a scene, whose log is closed in the end."""
    made: list[Scene] = []

    def scene(rules: HintRules, **more: Any) -> Scene:
        made.append(Scene(tmp_path / f"log{len(made)}", rules, **more))
        return made[-1]

    yield scene
    for each in made:
        each.node.log.close()


def tier(name: str, by: str) -> dict[str, Any]:
    return {"service_tier": name, "tier_by": by}


def kept(least_ns: int, most_ns: int, by: str) -> dict[str, Any]:
    return {"retain_least_ns": least_ns, "retain_most_ns": most_ns, "retain_by": by}


DYNAMO = "nvext.agent_hints.priority"
THIRD = {"nvext": {"agent_hints": {"priority": 3}}}
FIRST, MIDDLE, LAST = ["p", "before", "after"], ["before", "p", "after"], ["before", "after", "p"]
FIVE = {"type": "ephemeral", "ttl": "5m"}
ASKED: list[tuple[dict[str, str], dict[str, Any], bool | None, HintRules, dict[str, Any], list[str]]] = [
    # headers, body, which the engine takes first, what the operator allows -> the record, the order
    ({}, {"service_tier": "priority"}, None, SHARE, tier("priority", "service_tier"), FIRST),
    ({}, {"service_tier": "priority"}, None, HintRules(), tier("priority", "service_tier"), MIDDLE),
    ({}, {"service_tier": "priority"}, None, LITTLE, tier("priority", "service_tier"), MIDDLE),
    ({}, {"service_tier": "flex"}, None, HintRules(), tier("flex", "service_tier"), LAST),
    ({}, {"service_tier": "auto"}, None, SHARE, {}, MIDDLE),
    ({}, {"service_tier": {"a": 1}}, None, SHARE, {}, MIDDLE),
    ({}, {"priority": 5}, True, SHARE, tier("priority", "priority"), FIRST),
    ({}, {"priority": 5}, False, SHARE, tier("flex", "priority"), LAST),
    ({}, {"priority": -5}, False, SHARE, tier("priority", "priority"), FIRST),
    ({}, {"priority": -5}, True, SHARE, tier("flex", "priority"), LAST),
    ({}, {"priority": 5}, None, SHARE, {}, MIDDLE),
    ({}, {"priority": 0}, True, SHARE, {}, MIDDLE),
    ({"x_vllm_priority": "-1"}, {}, None, SHARE, tier("priority", "x-vllm-priority"), FIRST),
    ({"x_vllm_priority": "1"}, {}, None, SHARE, tier("flex", "x-vllm-priority"), LAST),
    ({"x_vllm_priority": "urgent"}, {}, None, SHARE, {}, MIDDLE),
    ({}, THIRD, False, SHARE, tier("priority", DYNAMO), FIRST),
    ({}, THIRD | {"service_tier": "flex"}, None, SHARE, tier("flex", "service_tier"), LAST),
    *(
        ({name.replace("-", "_"): objective}, {}, None, NAMED, {"objective": objective, "tier_by": name}, order)
        for name in ("x-llm-d-inference-objective", "x-gateway-inference-objective")
        for objective, order in (("chat", FIRST), ("batch", LAST), ("other", MIDDLE))
    ),
]


@pytest.mark.parametrize(("headers", "body", "higher_first", "rules", "record", "order"), ASKED)
async def test_who_asks_to_go_first_or_last_does_within_the_operators_bounds(
    make: Make,
    headers: dict[str, str],
    body: dict[str, Any],
    higher_first: bool | None,
    rules: HintRules,
    record: dict[str, Any],
    order: list[str],
) -> None:
    scene = make(rules, higher_first=higher_first)
    scene.node.ask("busy", prompt_tokens=10)
    scene.tick()
    scene.node.ask("before", prompt_tokens=10)
    await scene.asks(headers, body)
    scene.node.ask("after", prompt_tokens=10)
    assert scene.driver.program("p").hints == replace(NO_HINTS, **record)
    for name in ("busy", *order):
        scene.turn(name, scene.bench.of(ev.TurnQueued)[0].turn_id if name == "p" else f"{name}.1")
        scene.node.end(name)
        scene.tick()
        scene.tick()
    assert scene.admitted == ["busy", *order]
    assert (f"by {record.get('tier_by')}" in scene.explained()) == (order != MIDDLE)


FLEX = {"service_tier": "flex"}
PRIORITY = {"service_tier": "priority"}


@pytest.mark.parametrize("later", [{}, FLEX, PRIORITY])
async def test_who_came_in_by_priority_takes_of_its_share_whatever_it_asks_for_later(
    make: Make, later: Any
) -> None:
    scene = make(HintRules(priority_share=0.05))
    await scene.asks({}, PRIORITY)
    scene.tick()
    assert scene.admitted == ["p"]
    scene.turn("p", scene.bench.of(ev.TurnQueued)[0].turn_id, tokens=40)
    await scene.asks({}, later)
    scene.node.send(scene.node.driver.gate(ev.TurnHinted, program_id="q", turn_id="q.1", **tier("priority", "by")))
    waits = QueuedProgram(program_id="q", blocks=40, arrived_at_ns=1, queued_at_ns=1)
    assert in_tiers([waits], scene.driver.ledger, scene.rules, 1000)[1] == {}
    assert in_tiers([replace(waits, blocks=5)], scene.driver.ledger, scene.rules, 1000)[1]


async def test_flex_gives_its_slot_back_between_two_turns_to_who_waits(make: Make) -> None:
    scene = make(HintRules())
    await scene.asks({}, FLEX)
    scene.tick()
    turn_id = scene.bench.of(ev.TurnQueued)[0].turn_id
    scene.node.engine(ev.TurnSubmitted, program_id="p", turn_id=turn_id, projected_blocks=10)
    scene.node.ask("other", prompt_tokens=10)
    scene.tick()
    assert scene.admitted == ["p"], "a turn that runs is not disturbed"
    scene.node.engine(ev.TurnEnded, program_id="p", turn_id=turn_id, prompt_tokens=10, output_tokens=0)
    scene.tick()
    scene.tick()
    assert scene.admitted == ["p", "other"]
    assert "pause" in scene.explained()
    assert "it gives way to other by service_tier" in scene.explained()


FIVE_NS = seconds(300)
FOR_FIVE = kept(FIVE_NS, FIVE_NS, "cache_control.ttl")
FOR_AN_HOUR = kept(HOUR_NS, HOUR_NS, "cache_control.ttl")
FOR_A_DAY = kept(24 * HOUR_NS, 24 * HOUR_NS, "prompt_cache_retention")
LONG = {"system": [{"text": "a", "cache_control": {"ttl": "1h"}}], "cache_control": FIVE}
BOUND = "control.hints.retain_most_s allows 400s"
RETAINED: list[tuple[dict[str, Any], str, HintRules, dict[str, Any], float, str]] = [
    # body, the preset whose retention it is, what the operator allows -> record, seconds pinned, what explain says
    ({"cache_control": FIVE}, "fcfs", KEEPS, FOR_FIVE, 300, "asks for 300s by cache_control.ttl"),
    (LONG, "fcfs", KEEPS, FOR_AN_HOUR, 400, BOUND),
    ({"cache_control": FIVE}, "fcfs", HintRules(), FOR_FIVE, 0, ""),
    ({"cache_control": {"ttl": "2m"}}, "fcfs", KEEPS, {}, 0, ""),
    ({"prompt_cache_retention": "24h"}, "fcfs", KEEPS, FOR_A_DAY, 400, BOUND),
    ({"prompt_cache_retention": "in_memory"}, "fcfs", KEEPS, kept(0, HOUR_NS, "prompt_cache_retention"), 0, ""),
    ({"cache_control": FIVE}, "static", HintRules(), FOR_FIVE, 300, "no longer than 300s by cache_control.ttl"),
    ({}, "static", HintRules(), {}, 600, "static"),
]


@pytest.mark.parametrize(("body", "policy", "rules", "record", "pinned_s", "said"), RETAINED)
async def test_contexts_are_kept_as_long_as_clients_and_the_operator_say(
    make: Make,
    body: dict[str, Any],
    policy: str,
    rules: HintRules,
    record: dict[str, Any],
    pinned_s: float,
    said: str,
) -> None:
    scene = make(rules, policy="continuum" if policy == "static" else policy)
    if policy == "static":
        preset = scene.driver.controller.preset
        scene.driver.controller.preset = replace(preset, retention=replace(preset.retention, static_s=600.0))
    await scene.asks({}, body)
    scene.tick()
    assert scene.driver.program("p").hints == replace(NO_HINTS, **record)
    scene.turn("p", scene.bench.of(ev.TurnQueued)[0].turn_id)
    scene.tick(0)
    pin = scene.of_p(cmd.Retain)
    assert (pin.ttl_ns if pin is not None else 0) == seconds(pinned_s)
    assert said in scene.explained()
    scene.tick()
    assert len([each for each in scene.commands if isinstance(each, cmd.Retain)]) <= 1, "it is asked for once"


def action(kind: str, **payload: Any) -> dict[str, Any]:
    return {"action_id": kind, "action_type": kind, "action_version": "1.0", "payload": payload}


ACTIONS: list[tuple[Any, HintRules, str, str, type[cmd.Command] | None]] = [
    # the action, what the operator allows -> the receipt's outcome and reason, what the engine is told
    (action("kv.retain", ttl_seconds=60), KEEPS, "accepted", "", cmd.Retain),
    (action("kv.retain", directives=[{"priority": 50, "duration": 60}]), KEEPS, "accepted", "", cmd.Retain),
    (action("kv.retain", ttl_seconds=9000), KEEPS, "clipped", "hints.retain_most_s allows 400 s", cmd.Retain),
    (action("kv.retain", directives=[{"end": 20, "duration": 9}]), KEEPS, "clipped", "not a range", cmd.Retain),
    (action("kv.retain", directives=[{"priority": 0}]), KEEPS, "accepted", "", None),
    (action("kv.retain", ttl_seconds=60), HintRules(), "rejected", "retain_most_s allows none", None),
    (action("kv.retain", ttl_seconds="x"), KEEPS, "rejected", "expected 0 to", None),
    (action("kv.retain", directives=3), KEEPS, "rejected", "expected ttl_seconds", None),
    (action("kv.deref"), HintRules(), "accepted", "", cmd.Discard),
    (action("kv.demote", session_id="p"), HintRules(), "accepted", "", cmd.Demote),
    (action("kv.demote", session_id="q"), KEEPS, "rejected", "another session", None),
    (action("kv.fetch"), KEEPS, "rejected", "expected kv.retain", None),
    (action("kv.deref") | {"action_version": "2.0"}, KEEPS, "rejected", "action_version 1.x", None),
    (action("kv.deref") | {"payload": [1]}, KEEPS, "rejected", "expected an object as payload", None),
    ("no action", KEEPS, "rejected", "expected an object", None),
]


@pytest.mark.parametrize("field", ["kv_hints", "kv_transfer_params"])
@pytest.mark.parametrize(("asked", "rules", "outcome", "reason", "told"), ACTIONS)
async def test_kv_hints_are_carried_out_within_bounds_and_answered(
    make: Make,
    asked: Any,
    rules: HintRules,
    outcome: str,
    reason: str,
    told: type[cmd.Command] | None,
    field: str,
) -> None:
    envelope = {"protocol_version": "0.1", "message_id": "m", "actions": [asked]}
    scene = make(rules)
    scene.node.engine(ev.PoolSampled, total_blocks=1000, free_blocks=1000, block_tokens=1, host_total_blocks=1000)
    body = {field: envelope if field == "kv_hints" else {"kv_hint": envelope}}
    exchange = await scene.asks({}, body)
    scene.tick()
    await exchange.task
    receipt = json.loads(exchange.headers[RECEIPT_HEADER])
    assert receipt["message_id"] == "m"
    (answer,) = receipt["actions"]
    assert answer["outcome"] == outcome
    assert reason in answer.get("reason", "")
    scene.turn("p", scene.bench.of(ev.TurnQueued)[0].turn_id)
    scene.tick(0)
    engine = [type(each) for each in scene.commands if isinstance(each, cmd.Retain | cmd.Demote | cmd.Discard)]
    assert engine == [told] * (told is not None)
    if told is not None:
        assert f"by kv_hints {asked['action_type']}" in scene.explained()
    scene.tick()
    assert len(scene.commands) == len(set(map(str, scene.commands))), "it is done once"


async def test_a_prefetch_brings_back_what_lies_below_while_its_turn_waits_and_there_is_room(make: Make) -> None:
    scene = make(HintRules())
    scene.driver.run_turn("p", "p.0")
    scene.tick()
    scene.driver.program("p").kv_tier = scene.driver.program("p").kv_tier.HOST
    scene.node.ask("busy", prompt_tokens=10)
    scene.tick()
    await scene.asks({}, {"kv_hints": {"message_id": "m", "actions": [action("kv.prefetch")]}})
    scene.tick(0)
    assert "by kv_hints" not in scene.explained()
    assert scene.of_p(cmd.Prefetch).reason == "its client asks for it: kv_hints kv.prefetch"


@pytest.mark.parametrize(
    ("governed", "obeys", "body", "why"),
    [
        (False, False, {}, "no daemon decides here now"),
        (True, False, {}, "no engine here keeps or frees contexts as it is told"),
        (True, True, {"program_id": "", "messages": []}, "the request names no program"),
    ],
)
async def test_what_nobody_carries_out_is_rejected(
    governed: bool, obeys: bool, body: dict[str, Any], why: str
) -> None:
    bench = Bench(governed=False, options={"continuity": False})
    if governed:
        bench.gate.on_heartbeat(Beat(engine_obeys=obeys))
    exchange = bench.request(CHAT | body | {"kv_hints": {"actions": [action("kv.deref")]}})
    for _ in range(20):
        await asyncio.sleep(0)
    for held in bench.of(ev.TurnQueued):
        bench.gate.on_command(cmd.Admit(program_id=held.program_id))
    await exchange.task
    assert json.loads(exchange.headers[RECEIPT_HEADER])["actions"][0]["reason"] == why


async def test_the_length_of_a_reply_counts_in_what_its_turn_needs(make: Make) -> None:
    scene = make(HintRules())
    await scene.asks({}, {})
    plain = scene.driver.program("p").queued_blocks
    await scene.asks({}, {"program_id": "q", "nvext": {"agent_hints": {"osl": 500}}})
    assert scene.driver.program("q").hints == replace(NO_HINTS, output_tokens=500)
    assert scene.driver.program("q").queued_blocks == plain + 500
    await scene.asks({}, {"program_id": "r", "nvext": {"agent_hints": {"osl": 5_000_000}}})
    assert scene.driver.program("r").queued_blocks == 1000, "nothing is larger than the pool"


@pytest.mark.parametrize("header", FAIRNESS_HEADERS)
async def test_llm_ds_fairness_id_is_a_tenant_that_is_claimed(make: Make, header: str) -> None:
    scene = make(HintRules())
    await scene.asks({header.replace("-", "_"): "team"}, {})
    assert scene.driver.program("p").tenant == "team"
    assert scene.driver.program("p").account == ""


async def test_the_daemon_is_told_of_what_has_changed_and_of_no_more() -> None:
    bench = Bench(governed=False)
    told = []
    for asked in ({}, FLEX, FLEX, {}, {}, {"kv_hints": {"actions": []}}):
        await bench.answered(CHAT | asked)
        told.append([event.service_tier for event in bench.of(ev.TurnHinted)])
        bench.events.clear()
    assert told == [[], ["flex"], [], [""], [], []]


@pytest.mark.parametrize(("header", "part"), DEADLINES.items())
async def test_each_deadline_is_when_its_client_leaves(header: str, part: float) -> None:
    bench = Bench()
    bench.request(CHAT, **{header.replace("-", "_"): "3000"})
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.of(ev.TurnQueued)[0].timeout_ns == min(seconds(600), seconds(3000 * part))


async def test_the_tables_name_each_wish_once() -> None:
    names = [name for wish in WISHES for name in (*wish.headers, *wish.fields)]
    names += [*DEADLINES, *FAIRNESS_HEADERS, *UNREAD]
    assert len(names) == len(set(names))
