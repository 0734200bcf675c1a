"""What is wrong on a node: one table, from which status, doctor, top, page, metrics, log and alerts are made.

A rule reads the status and says what it finds, or nothing. A new finding is one rule here: no view names any.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from controlplane.core.experiment import LOSS, MOST_CENSORED
from controlplane.core.model.text import printable
from controlplane.core.model.types import FEWEST_TO_JUDGE
from controlplane.core.policies.presets import STOCK
from controlplane.daemon.experiment import MEASURES

if TYPE_CHECKING:
    from controlplane.daemon.status.status import Status

_MOST_FOUND = 1000  # characters
_LEAST_BYTES = 256 << 20  # of the disk: below it snapshots and the stream soon fail
_MOST_FILES = 0.8  # of those that the process may have open
_WAITS_S = 60.0  # with no program active
_FEWEST_TURNS, _LEAST_UNNAMED = 20, 0.01  # of which it is told that clients name no program
_LOOK_AT = 10.0  # seconds: a disk that takes longer hangs
_FEW_BLOCKS = 2  # of an experiment
_DECIDING = ("decisions", "ticks")  # of what may fail
_OVERLOAD = {
    "queue_full": 429,
    "expected_wait": 429,
    "overloaded": 503,
    "hold_deadline": 503,
}  # refusals that more room would spare


class Level(StrEnum):
    """How serious a finding is."""

    BAD = "bad"  # it does not work
    LOOK = "look"  # it works, but somebody should look
    NOTE = "note"  # it is as somebody wants it, and they may have forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, and what to do about it."""

    name: str
    level: Level
    found: str
    advice: str

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")


@dataclass(slots=True)
class TurnCounts:
    """Of the turns of the last half hour or so: of those that named their program, and of those that did not."""

    turns: list[int] = field(default_factory=lambda: [0, 0])
    prompt_tokens: list[int] = field(default_factory=lambda: [0, 0])
    computed_tokens: list[int] = field(default_factory=lambda: [0, 0])  # of these: no cache had them

    def add(self, prompt_tokens: int, cached_tokens: int, *, is_unnamed: bool) -> None:
        self.turns[is_unnamed] += 1
        self.prompt_tokens[is_unnamed] += prompt_tokens
        self.computed_tokens[is_unnamed] += max(0, prompt_tokens - cached_tokens)

    def halve(self) -> None:
        """What was long ago counts little."""
        for counts in (self.turns, self.prompt_tokens, self.computed_tokens):
            counts[:] = (count // 2 for count in counts)


@dataclass(slots=True, kw_only=True)
class DaemonHealth:
    """What the daemon knows of itself and its host. A negative number is not known.

    ``lately``: of what only grows, how much came within the last ten minutes or so.
    """

    is_behind: bool = False  # it reads what happened while it was frozen or cut off
    frozen_s: float = 0.0  # lately
    jumped_s: float = 0.0  # lately: what the wall clock has on the time that passed here
    unsaved: str = ""  # why the last snapshot was not written
    free_bytes: int = -1
    disk_silent_s: float = 0.0  # for so long the disk has not taken a write, or said how full it is
    left_out: dict[str, int] = field(default_factory=dict)  # writes that the disk was too slow for, by file
    unreadable: str = ""  # what of the fleet's list of engines was not understood when it was last read
    recomputing: str = ""  # which clients have much of their prefill computed again, and why
    files: int = -1
    most_files: int = -1
    lately: dict[str, int] = field(default_factory=dict)
    named: TurnCounts = field(default_factory=TurnCounts)

    def recompute(self, found: str) -> None:
        """Note which clients have much of their prefill computed again; empty: none."""
        self.recomputing = found

    def cannot_read(self, what: str) -> None:
        """Note what of the fleet's list of engines cannot be read; empty: nothing."""
        self.unreadable = what


@dataclass(frozen=True, slots=True)
class Rule:
    """When a finding is made: ``read`` says what is wrong, empty for nothing."""

    name: str
    level: Level
    read: Callable[["Status"], str]
    advice: str


def findings(status: "Status") -> tuple[Finding, ...]:
    """All that is wrong, the worst first."""
    return tuple(
        Finding(name=rule.name, level=rule.level, found=printable(found[:_MOST_FOUND]), advice=rule.advice)
        for rule in RULES
        if (found := rule.read(status))
    )


def _engines_down(s: "Status") -> str:
    if not s.bus_connected or s.own.is_behind:
        return ""  # whoever hears nothing judges nobody's silence
    counts = s.engines
    parts = [f"{counts.silent} of {counts.known} engines do not answer"] * bool(counts.silent)
    parts += [f"{counts.gone} of {counts.known} engines are gone"] * bool(counts.gone)
    return f"{', '.join(parts)}: {', '.join(counts.down)}" if parts else ""


def _gates_down(s: "Status") -> str:
    if not s.silent_gates or not s.bus_connected or s.own.is_behind:
        return ""
    return f"gates do not answer: {', '.join(s.silent_gates)}"


def _gateless(s: "Status") -> str:
    if not s.gateless_engines:
        return ""
    return f"no gate is before {', '.join(s.gateless_engines)}: turns begin there unasked, whatever the window"


def _window_closed(s: "Status") -> str:
    waiting = s.pressure.queue_length
    if not waiting or s.pressure.programs_active or s.orders.draining or s.held.longest_s < _WAITS_S:
        return ""
    return f"{waiting} programs wait for a slot, up to {s.held.longest_s:.0f} s, and none has one"


def _turns_refused(s: "Status") -> str:
    lately = {code: s.own.lately.get(code, 0) for code in _OVERLOAD}
    parts = [f"{turns:,} {code} ({_OVERLOAD[code]})" for code, turns in lately.items() if turns]
    return f"the gate refused turns lately: {', '.join(parts)}" if parts else ""


def _disk_hangs(s: "Status") -> str:
    silent_s = s.own.disk_silent_s
    return f"the disk of the state directory has not answered for {silent_s:.0f} s" if silent_s > _LOOK_AT else ""


def _left_out(s: "Status") -> str:
    count = s.own.lately.get("left_out", 0)
    return f"{count:,} writes were left out lately, of {', '.join(s.own.left_out)}" if count else ""


def _disk_full(s: "Status") -> str:
    free = s.own.free_bytes
    return f"the state directory has {free / 1e6:,.0f} MB free" if 0 <= free < _LEAST_BYTES else ""


def _files(s: "Status") -> str:
    files, most = s.own.files, s.own.most_files
    return f"{files:,} of {most:,} files are open" if files > _MOST_FILES * most > 0 else ""


def _connections(s: "Status") -> str:
    full = [f"{row.name} ({row.open} of {row.most} open)" for row in s.listeners if row.refused]
    count = s.own.lately.get("connections", 0)
    return f"{count:,} connections were refused or ended lately: {', '.join(full)}" if count else ""


def _failing(s: "Status", *, decides: bool) -> str:
    rows = [r for r in s.failures if r.failing and (r.what in _DECIDING) == decides]
    return "; ".join(f"{row.what}: {row.count:,} errors, the last one {row.error}" for row in rows)


def _set_aside(s: "Status") -> str:
    last = f", the last one on {s.last_set_aside}" * bool(s.last_set_aside)
    return f"{s.set_aside:,} messages could not be applied{last}" if s.set_aside else ""


def _frozen(s: "Status") -> str:
    own = s.own
    if own.frozen_s:
        return f"the daemon was frozen for {own.frozen_s:.1f} s" + "; it reads what it missed" * own.is_behind
    return "the daemon reads what it missed; gates admit on their own" if own.is_behind and not s.stands_by else ""


def _clock_jumped(s: "Status") -> str:
    jumped_s = s.own.jumped_s
    way = "back" if jumped_s < 0 else "ahead"
    return f"the wall clock was set {way} by {abs(jumped_s):,.1f} s, or the machine slept" if jumped_s else ""


def _turns_unnamed(s: "Status") -> str:
    counts = s.own.named
    turns, unnamed = sum(counts.turns), counts.turns[True]
    if turns < _FEWEST_TURNS or unnamed < _LEAST_UNNAMED * turns:
        return ""
    computed = [
        computed / max(1, prompt)
        for computed, prompt in zip(counts.computed_tokens, counts.prompt_tokens, strict=True)
    ]
    others = f", {computed[False]:.0%} of the others'" * bool(counts.turns[False])
    found = f"{unnamed / turns:.0%} of the last {turns:,} turns named no program"
    return f"{found}; {computed[True]:.0%} of their prompts had to be computed{others}"


def _preset_loses(s: "Status") -> str:
    if (e := s.experiment) is None or e.standing != LOSS:
        return ""
    found = next(each for each in e.changes if each.name == "completion")
    longer = f"{100 * found.value:.0f}% longer [{100 * found.low:.0f}, {100 * found.high:.0f}]"
    return f"under {e.preset} programs took {longer} than under {STOCK}, which is in force now"


def _gain_unclear(s: "Status") -> str:
    if (e := s.experiment) is None or e.standing != MEASURES:
        return ""
    if e.left_out > max(_FEW_BLOCKS, e.blocks):
        why = [f"of {e.absent} no daemon decided for a while"] if e.absent else []
        if few := e.left_out - e.absent:
            why.append(f"{few} had fewer than {FEWEST_TO_JUDGE} programs in a slice")
        return f"{e.left_out} of {e.left_out + e.blocks} blocks of slices do not count: {', '.join(why)}"
    if e.censored > MOST_CENSORED * e.programs:
        share = f"{e.censored / e.programs:.0%} of programs took longer than washout_s or failed"
        return f"{share}, and count as that long: slices carry queues over to each other"
    return ""


def _lately(name: str, words: str) -> Callable[["Status"], str]:
    def read(s: "Status") -> str:
        count = s.own.lately.get(name, 0)
        return f"{count:,} {words}: {s.last_rejection}" if count else ""

    return read


BAD, LOOK, NOTE = Level.BAD, Level.LOOK, Level.NOTE
RULES = (
    Rule(
        "bus_away",
        BAD,
        lambda s: "" if s.bus_connected else "nothing comes back over the bus: gates admit on their own",
        "bring nats-server back, or free space on its disk (its log says which); the daemon then goes on by itself",
    ),
    Rule(
        "engine_down",
        BAD,
        _engines_down,
        "look at the engine's process and log; end one that hangs, and start it again",
    ),
    Rule(
        "gate_down",
        BAD,
        _gates_down,
        "look at the process that serves the engine's requests; end one that hangs, and start it again",
    ),
    Rule(
        "snapshot_not_written",
        BAD,
        lambda s: s.own.unsaved,
        "free space in the state directory, or mend its rights: until then a restart reads the stream for longer",
    ),
    Rule("disk_hangs", BAD, _disk_hangs, "look at the disk: what the daemon decides is not written down meanwhile"),
    Rule(
        "writes_left_out",
        LOOK,
        _left_out,
        "the disk does not keep up: a decision log has a hole there, a recording ends; use a faster one",
    ),
    Rule(
        "engines_unreadable",
        LOOK,
        lambda s: s.own.unreadable,
        "what was known of them holds meanwhile; see that all of the fleet's daemons have the same version",
    ),
    Rule("disk_full", BAD, _disk_full, "free space in the state directory: the stream may take 1 GiB"),
    Rule("files_low", BAD, _files, "raise the limit: LimitNOFILE= in the unit, or ulimit -n; see who is connected"),
    Rule(
        "decisions_failing",
        BAD,
        lambda s: _failing(s, decides=True),
        "gates admit as without a daemon; report the error, and start the daemon without its snapshot",
    ),
    Rule(
        "failing",
        LOOK,
        lambda s: _failing(s, decides=False),
        "it is tried again, and the daemon goes on meanwhile: report the error",
    ),
    Rule(
        "connections_refused",
        LOOK,
        _connections,
        "see who connects (ss -xp, ss -tp): the log has why, and whose they were",
    ),
    Rule("window_closed", LOOK, _window_closed, "see what each waits for: penstock queue"),
    Rule(
        "turns_refused",
        LOOK,
        _turns_refused,
        "more comes than the node can carry: spread it, or add an engine; penstock queue shows who waits",
    ),
    Rule(
        "messages_set_aside",
        LOOK,
        _set_aside,
        "report the error with the files in set-aside/ of the state folder; the daemon goes on without them",
    ),
    Rule("frozen", LOOK, _frozen, "look at its host: suspended, out of memory or of CPU time"),
    Rule(
        "clock_jumped",
        LOOK,
        _clock_jumped,
        "let NTP set the clock slowly; after a suspend nothing is to be done",
    ),
    Rule(
        "engine_passive",
        LOOK,
        lambda s: "; ".join(s.passive_engines),
        "do as it says; with the plugin: python -m engine_hooks.sglang.verify, or .vllm.verify, in its environment",
    ),
    Rule(
        "events_refused",
        LOOK,
        _lately("refused", "events came from a sender that may not report them"),
        "check which client uses which user; `penstock bus url` prints each role's URL",
    ),
    Rule(
        "events_rejected",
        LOOK,
        _lately("rejected", "events made no sense"),
        "check that all parts have the same version",
    ),
    Rule(
        "prefill_repeated",
        LOOK,
        lambda s: s.own.recomputing,
        "penstock misses --by client shows where its prompts differ; PENSTOCK_REPAIR at the gate mends some of it",
    ),
    Rule("config_refused", LOOK, lambda s: s.config.refused, "correct the file, or restore it"),
    Rule(
        "shadow_failed",
        LOOK,
        lambda s: s.shadow.reason if s.shadow is not None and s.shadow.standing == "failed" else "",
        "report its error; what is in force is not touched by it",
    ),
    Rule(
        "preset_loses",
        LOOK,
        _preset_loses,
        "penstock gain has since when; another preset, other parameters or no [experiment] end it",
    ),
    Rule(
        "gain_unclear",
        LOOK,
        _gain_unclear,
        "take a washout_s within which most programs end, and a longer slice_s; or end the experiment",
    ),
    Rule(
        "turns_unnamed",
        NOTE,
        _turns_unnamed,
        "have clients send an id of each run, as x-penstock-program-id: else only its prompts tell whose a turn is",
    ),
    Rule("restart_needed", NOTE, lambda s: ", ".join(s.config.until_restart), "restart the daemon to apply these"),
    Rule(
        "draining",
        NOTE,
        lambda s: "no new program is let in" if s.orders.draining else "",
        "penstock drain --undo lets programs in again",
    ),
    Rule(
        "held",
        NOTE,
        lambda s: f"on hold by operator: {', '.join(s.orders.held[:20])}" if s.orders.held else "",
        "penstock release lets a program go on",
    ),
    Rule(
        "no_engine",
        NOTE,
        lambda s: "" if s.engines.known or s.pressure.kv_total_blocks else "no engine has reported its KV pool",
        "start the engine with penstock installed and the same PENSTOCK_NODE, or tell `penstock gate` --pool-tokens"
        "; doctor --engine URL shows more",
    ),
    Rule(
        "no_gate",
        NOTE,
        _gateless,
        "what is pinned and ordered there is so without; where an engine has no place for a gate, as vLLM's Rust "
        "front end, `penstock gate --upstream URL` runs one before it",
    ),
    Rule(
        "stands_by",
        NOTE,
        lambda s: "another daemon decides, and this one follows it" if s.stands_by else "",
        "nothing is to be done; the leader's findings are its own",
    ),
)
