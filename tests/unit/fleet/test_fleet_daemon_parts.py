"""The small parts of a fleet daemon: its configuration, what it takes of engines' events, when Envoy may ask it."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from controlplane.config import load
from controlplane.core.ledger import Ledger
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.events import Event, PublisherState, TurnQueued, TurnSubmitted
from controlplane.core.policies.presets import PRESETS
from controlplane.core.policies.retention.beyond_window import BeyondWindow
from controlplane.core.policies.retention.lend import Lend
from controlplane.core.policies.retention.never import Never
from controlplane.core.policies.retention.tiers import Tiers
from controlplane.fleet import leader
from controlplane.fleet.leader import Leader, Parts
from controlplane.fleet.registry import _as_seen, parse_engine
from controlplane.fleet.roster import Engine, Roster, Standing
from controlplane.fleet.settings import FleetSource
from controlplane.fleet.stream import of_engines

ONE = Engine(place="a/engine-30000", address="10.0.0.1:30000")


# Configuration


def test_a_fleet_has_its_own_name_and_patience() -> None:
    config = FleetSource().read().config
    assert config.node == "fleet"
    assert config.control.silence.ask_publisher_after_s == 5


KEPT = {
    "fcfs": (Never(), 0),
    "autellix": (Never(), 1),
    "infercept": (Never(), 2),
    "continuum": (Never(), 2),
    "thunderagent": (PRESETS["thunderagent"].retention, 0),
    "mori": (Tiers(moves=False), 3),
    "concur": (BeyondWindow(), 0),
    "mars": (Lend(), 3),
    "penstock": (Lend(), 1),
    "mars-paper": (Never(), 3),
}
"""By preset: what of its retention a fleet does, and how much of it all is left to nodes."""


@pytest.mark.parametrize("name", PRESETS)
def test_a_fleet_takes_slots_back_as_its_preset_does_and_says_what_is_left_to_nodes(name: str) -> None:
    resolved = FleetSource(options={"preset": name}).read()
    assert (resolved.config.policies.retention, len(resolved.left_to_nodes)) == KEPT[name]


def test_a_shadow_in_a_fleet_decides_as_a_fleet(tmp_path: Any) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('[shadow]\npreset = "mori"\n')
    shadow = FleetSource(path=path).read().shadow
    assert shadow is not None
    assert shadow.policies.retention == Tiers(moves=False)


def test_what_is_said_holds_for_a_fleet_too(tmp_path: Any) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        'node = "west"\n[control.silence]\nask_publisher_after_s = 30.0\n[fleet]\nrank = 1\nlease_ttl_s = 6\n'
    )
    options = {"fleet.rank": 2, "fleet.listen": "127.0.0.1:1", "http.listen": None}
    resolved = FleetSource(path=path, options=options).read()
    config, fleet = resolved.config, resolved.config.fleet
    assert (config.node, fleet.rank, fleet.lease_ttl_s, fleet.listen) == ("west", 2, 6.0, "127.0.0.1:1")
    assert config.control.silence.ask_publisher_after_s == 30
    assert config.control.silence.ask_publisher_every_s == 1
    assert resolved.origins["fleet.listen"] == "--listen"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[fleet]\nlisten = "here"\n', r"\$\.fleet\.listen: expected HOST:PORT or unix:PATH"),
        ("[fleet]\nlease_ttl_s = 1.0\n", r"\$\.fleet\.lease_ttl_s"),
        ('[fleet]\ndomains = ["east"]\n', r"\$\.fleet\.domains: expected NODE=DOMAIN"),
        ("fleet = 3\n", r"\$\.fleet"),
    ],
)
def test_a_wrong_table_of_the_fleet_is_refused_with_its_path(tmp_path: Any, text: str, said: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load(path, {"fleet.rank": 1})


# Engines


def test_an_engine_is_written_as_its_place_and_its_address() -> None:
    assert parse_engine("a/engine-30000=10.0.0.1:30000") == ONE
    assert parse_engine("a/engine-30000=10.0.0.1:30000,plain") == replace(ONE, has_plugin=False)
    texts = ("", "a/engine", "a/engine=x", "a/engine=x:0", "engine=x:1", "a/gate=x:1", "a b/engine=x:1")
    for text in (*texts, "a/engine=x:1,odd"):
        with pytest.raises(ConfigError):
            parse_engine(text)


def test_an_engine_that_does_not_answer_stays_gone_until_it_is_told_of_as_another() -> None:
    gone = replace(ONE, standing=Standing.GONE)
    draining = replace(ONE, standing=Standing.DRAINING)
    moved = replace(ONE, address="10.0.0.2:30000")
    assert _as_seen(ONE, None) == _as_seen(ONE, draining) == ONE
    assert _as_seen(ONE, gone) == _as_seen(draining, gone) == gone
    assert _as_seen(moved, gone) == moved


def test_of_an_engine_that_is_its_own_gate_only_the_engine_counts() -> None:
    event_filter = of_engines("fleet")
    turn = TurnSubmitted(program_id="p", turn_id="t", projected_blocks=1)
    held = TurnQueued(program_id="p", turn_id="t")
    state = PublisherState(role="engine", held_turns=("h",), grants=("g",))  # type: ignore[arg-type]
    events: list[Event] = [held, turn, state]
    assert event_filter(events, "penstock.v1.a.event.engine") == [turn, PublisherState(role="engine")]
    assert event_filter(events, "penstock.v1.fleet.event.gate.fleet") == events


# Whom Envoy asks


@dataclass
class Seen:
    """What one daemon sees of its fleet. ``heard``: the boot id of a daemon that leads, if one is heard."""

    leads: bool = False
    governed: bool = True
    connected: bool = True
    taking_over: bool = False
    rank: int = 0
    leader_rank: int | None = 0
    heard: str = ""
    was_led: bool = True
    serving: bool = False

    def may_serve(self) -> bool:
        return Leader(self.parts(SimpleNamespace()))._may_serve(serving=self.serving)

    def parts(self, picker: object) -> Parts:
        """As it stands now. Who leads, and who is heard, may be changed here later."""
        parts: Any = SimpleNamespace(
            daemon=_Daemon(self),
            bus=SimpleNamespace(connected=self.connected),
            lease=SimpleNamespace(leading=self.taking_over, rank=self.rank, leader_rank=self.leader_rank),
            roster=Roster(),
            front=SimpleNamespace(
                is_governed=self.governed,
                was_led=self.was_led,
                led_by_other=lambda boot_id: self.heard not in ("", boot_id),
            ),
            picker=picker,
            pluginless=SimpleNamespace(stop=_nothing),
        )
        return cast(Parts, parts)


class _Daemon:
    """As far as a ``Leader`` looks at its daemon."""

    boot_id = "own"
    config = SimpleNamespace(node="fleet")

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self.on_change: list[object] = []

    @property
    def is_leader(self) -> bool:
        return self._seen.leads


async def _nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("seen", "may"),
    [
        (Seen(leads=True), True),
        (Seen(leads=True, governed=False), False),  # its gate would let everything pass
        (Seen(leads=True, governed=False, serving=True), True),  # a hiccup of the bus
        (Seen(rank=1, leader_rank=0, heard="other"), True),  # Envoy asks the leader, and this one if that is lost
        (Seen(rank=0, leader_rank=1, heard="other"), False),  # Envoy would ask it in the leader's place
        (Seen(rank=1, leader_rank=0, heard=""), True),  # the leader is lost: turns wait here
        (Seen(rank=0, leader_rank=1, heard=""), True),
        (Seen(rank=0, leader_rank=0, heard="own", serving=True), True),  # handed over, and nobody leads yet
        (Seen(rank=0, leader_rank=None, serving=True), True),
        (Seen(rank=0, leader_rank=1, heard="other", serving=True), False),  # the other one leads
        (Seen(taking_over=True, rank=1, leader_rank=1, serving=True), True),
        (Seen(was_led=False), False),  # there was never anybody who leads
        (Seen(rank=1, connected=False, heard="other", serving=True), False),  # cut off
    ],
)
def test_envoy_asks_the_leader_or_who_waits_for_one(seen: Seen, may: bool) -> None:
    assert seen.may_serve() is may


async def test_who_hands_the_lead_to_a_preferred_one_serves_until_envoy_has_found_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who is preferred serves only since it leads. Then what is held moves on, and this one stands behind it."""
    monkeypatch.setattr(leader, "_FOUND_S", found_s := 0.5)
    seen, said = Seen(leads=True, rank=1, leader_rank=0), list[tuple[float, bool]]()
    moved = anyio.Event()

    def set_serving(serving: bool) -> None:
        said.append((anyio.current_time(), serving))
        if len(said) == 3:
            moved.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Leader(seen.parts(SimpleNamespace(set_serving=set_serving))).serve)
        with anyio.fail_after(30):
            while not said:  # noqa: ASYNC110  its time runs, too
                await anyio.sleep(0.01)
        await anyio.sleep(0.2)  # it has seen that it serves
        seen.leads, seen.heard, lost_s = False, "other", anyio.current_time()
        with anyio.fail_after(30):
            await moved.wait()
        tasks.cancel_scope.cancel()
    (_, _), (moved_on_s, moved_on), (_, again) = said
    assert (moved_on, again) == (False, True)
    assert moved_on_s - lost_s >= found_s


async def test_the_stream_is_told_of_the_engines_until_that_has_come_back() -> None:
    """A server takes it while the stream has no leader, and nothing keeps it: an engine was missing for good."""
    engines, told = Ledger().engines, list[str]()
    engines.list_all(("b/engine-30000",), ())

    async def relay_events(role: str, batch: bytes) -> bool:
        told.append(role)
        return True

    parts: Any = SimpleNamespace(
        daemon=SimpleNamespace(
            is_leader=True,
            on_change=[],
            config=SimpleNamespace(node="fleet"),
            clock=SimpleNamespace(now_ns=lambda: 1),
            controller=SimpleNamespace(ledger=SimpleNamespace(engines=engines)),
        ),
        bus=SimpleNamespace(join=_joined, relay_events=relay_events, missing=set()),
        roster=Roster((ONE,)),
        endpoints=None,
        lease=SimpleNamespace(fence=1),
    )
    tells = Leader(parts)
    assert not await tells._publish()
    assert not await tells._publish()
    assert len(told) == 2, "it was lost, and is told again"
    engines.list_all((ONE.place,), ())
    assert await tells._publish()
    assert len(told) == 2, "it came back, and all is told"


async def _joined(nodes: set[str]) -> None:
    assert nodes == {"a"}


def test_who_leads_no_more_forgets_which_engines_it_found_gone() -> None:
    gone, draining = (
        replace(ONE, standing=Standing.GONE),
        replace(ONE, place="b/engine-30000", standing=Standing.DRAINING),
    )
    daemon = SimpleNamespace(on_change=[], config=SimpleNamespace(node="fleet"))
    parts: Any = SimpleNamespace(daemon=daemon, roster=Roster((gone, draining)))
    Leader(parts)
    for told in daemon.on_change:
        told(False)
    assert list(parts.roster) == [ONE, draining]
