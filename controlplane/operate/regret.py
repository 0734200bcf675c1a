"""``penstock regret``: verdicts from decision logs and recorded runs, summed up by what one asks for."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import FEWEST_TO_JUDGE
from controlplane.core.regret import (
    KINDS,
    NO_DECISION,
    Least,
    Sums,
    Total,
    Verdict,
    amount,
    net,
    note_on,
    sentences,
    total_of,
)
from controlplane.daemon.observe.log_replay import judge_log, look_back
from controlplane.operate.printing import echo, print_json, print_table
from controlplane.wire.decisions import DecisionRecord, VerdictRecord, read_decisions
from controlplane.wire.log import Header, read_log

_NONE = "(none)"
_WORDS = {NO_DECISION: "no decision"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict, and the rule by which it was decided; empty where that is not known."""

    verdict: Verdict
    rule: str = ""


@dataclass(slots=True, kw_only=True)
class Regret:
    """What logs hold. ``without_verdict``: decisions that are open, or whose daemon ended before they were judged.

    ``is_whole``: what nobody decided and nobody missed is in it, too, as only a recorded run has that.
    """

    judged: list[Judged]
    without_verdict: int = 0
    is_whole: bool = True
    least: Least | None = None  # in hindsight, where that was asked for

    @property
    def total(self) -> Total:
        return total_of(each.verdict for each in self.judged)

    @property
    def sums(self) -> Sums:
        found = Sums()
        for each in self.judged:
            found.add(each.verdict)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Like verdicts."""

    name: str
    total: Total
    hits: int
    misses: int


def _class_words(judged: Judged) -> str:
    tenant, _, rest = judged.verdict.program_class.partition("/")
    agent, _, size = rest.rpartition("/")
    if not size:
        return _NONE
    words = [agent or "any agent", f"first prompt from {2 ** (int(size) / 2):,.0f} tokens"]
    return ", ".join([*([tenant] if tenant else []), *words])


def _policy(judged: Judged) -> str:
    """The policies of the rule, without the preset where there is one."""
    if judged.verdict.kind == NO_DECISION:
        return NO_DECISION
    _, _, policies = judged.rule.partition(", ")
    return policies or judged.rule or _NONE


BY: dict[str, Callable[[Judged], str]] = {
    "kind": lambda judged: judged.verdict.kind,
    "policy": _policy,
    "tool": lambda judged: judged.verdict.tool or _NONE,
    "class": _class_words,
    "tenant": lambda judged: judged.verdict.tenant or _NONE,
    "cause": lambda judged: judged.verdict.cause or _NONE,
    "outcome": lambda judged: judged.verdict.outcome,
    "program": lambda judged: judged.verdict.program_id,
}
"""What verdicts can be summed up by."""


def read_regret(paths: Iterable[Path], *, hindsight: bool = False) -> Regret:
    """Decision logs, and runs that were recorded. Raises ``ConfigError`` for what is neither, or is not there.

    ``hindsight``: also the least that runs had to compute again, which only recorded ones tell.
    """
    regret = Regret(judged=[])
    for path in paths:
        if _is_recorded(path):
            regret.judged += [Judged(verdict=verdict, rule=rule) for verdict, rule in judge_log(path)]
            if hindsight:
                regret.least = _both(regret.least, look_back(path))
        elif hindsight:
            raise ConfigError(f"{path}: hindsight needs every turn: give a run that `penstock up --record` wrote")
        else:
            regret.is_whole = False
            _read_decisions(path, regret)
    return regret


def _read_decisions(path: Path, regret: Regret) -> None:
    rules: dict[int, str] = {}
    open_numbers: set[int] = set()
    record: object = None
    for record in read_decisions(path):
        if isinstance(record, DecisionRecord):
            rules[record.number] = record.rule
            if record.kind in KINDS and record.kind != "place":
                open_numbers.add(record.number)
        elif isinstance(record, VerdictRecord):
            regret.judged.append(Judged(verdict=record.verdict, rule=rules.get(record.number, "")))
            if record.verdict.kind != "hold":
                open_numbers.discard(record.number)
    if record is None:
        raise ConfigError(f"{path}: neither a decision log nor a run that `penstock up --record` wrote")
    regret.without_verdict += len(open_numbers)


def _both(one: Least | None, other: Least) -> Least:
    if one is None:
        return other
    return Least(
        computed_tokens=one.computed_tokens + other.computed_tokens,
        again_tokens=one.again_tokens + other.again_tokens,
        least_tokens=one.least_tokens + other.least_tokens,
    )


def _is_recorded(path: Path) -> bool:
    try:
        return isinstance(next(read_log(path)), Header)
    except ConfigError:
        return False  # its other reader says what is wrong


def rows(judged: Sequence[Judged], by: str) -> list[Row]:
    """One for each group, the one that cost most net first."""
    groups: dict[str, list[Verdict]] = {}
    name_of = BY[by]
    for each in judged:
        groups.setdefault(str(name_of(each)), []).append(each.verdict)
    found = [
        Row(
            name=name,
            total=total_of(verdicts),
            hits=sum(verdict.outcome == "hit" for verdict in verdicts),
            misses=sum(verdict.outcome == "miss" for verdict in verdicts),
        )
        for name, verdicts in groups.items()
    ]
    return sorted(found, key=lambda row: row.total.net_s)


def as_plain(regret: Regret, found: Sequence[Row], by: str) -> dict[str, Any]:
    """For ``--json``; tokens, token-seconds and seconds as their names say."""
    return {
        "by": by,
        "rows": [{"name": r.name, "hits": r.hits, "misses": r.misses, **_plain(r.total)} for r in found],
        "total": _plain(regret.total),
        "without_verdict": regret.without_verdict,
        "is_whole": regret.is_whole,
        "hindsight": None if regret.least is None else _hindsight(regret.least),
    }


def _hindsight(least: Least) -> dict[str, Any]:
    return {**asdict(least), "regret_ratio": least.regret_ratio}


def _plain(total: Total) -> dict[str, Any]:
    return {**asdict(total), "net_s": total.net_s, "regret_ratio": total.regret_ratio}


def show_regret(regret: Regret, found: Sequence[Row], by: str, *, json: bool) -> None:
    """Print the sums, and both sides in sentences."""
    if json:
        print_json(as_plain(regret, found, by))
        return
    head = (
        by,
        "verdicts",
        "hit",
        "missed",
        "tokens found",
        "computed again",
        "waited",
        "cost",
        "gain",
        "net",
    )
    table = [
        (_WORDS.get(row.name, row.name), row.total.count, row.hits, row.misses, *_cells(row.total)) for row in found
    ]
    hits, misses = sum(row.hits for row in found), sum(row.misses for row in found)
    print_table((*head, "regret"), [*table, ("all", regret.total.count, hits, misses, *_cells(regret.total))])
    for line in notes(regret):
        echo(line)


def _cells(total: Total) -> tuple[str, ...]:
    return (
        f"{total.hit_tokens:,}",
        f"{total.again_tokens:,}",
        amount(total.wait_s),
        amount(total.cost_s),
        amount(total.gain_s),
        net(total.net_s),
        _regret(total),
    )


def _regret(total: Total) -> str:
    if not total.best_s:
        return ""
    return f"{total.regret_ratio:.2f}" if total.count >= FEWEST_TO_JUDGE else f"too few to judge ({total.count})"


def notes(regret: Regret) -> Iterator[str]:
    """Both sides of each kind in a sentence, and what to know before one believes the table."""
    said = sentences(regret.sums)
    yield from (f"{each.text}." for each in said)
    if note := note_on(said):
        yield note
    yield (
        "Times are the engine's: a prefill's, or a full pool's. Regret: what gaps between turns cost, over what "
        "they would have cost whoever knew how long each lasts; 1 is the least."
    )
    if (least := regret.least) is not None:
        yield (
            f"Hindsight: {least.computed_tokens:,} tokens were computed, {least.again_tokens:,} of them again. "
            "Whoever had known when each context is asked for would, with the same turns at the same times, have "
            f"computed {least.least_tokens:,} again: regret {least.regret_ratio:.2f}. That much is the price of "
            "how many were let in."
        )
    if regret.without_verdict:
        yield f"{regret.without_verdict:,} decisions have no verdict: they are open, or their daemon ended first."
    if not regret.is_whole:
        yield "Contexts that were found without any decision are not in a decision log: they are in a recorded run."
