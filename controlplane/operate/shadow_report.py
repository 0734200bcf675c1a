"""A shadow in words: how it stands, where it would decide otherwise, and what that would change."""

from collections.abc import Iterator

from controlplane.core.model.types import FEWEST_TO_JUDGE
from controlplane.operate.printing import duration, echo, plain, print_json, print_table
from controlplane.wire.control import Fields

_KINDS = {
    "earlier": "let in earlier",
    "later": "let in later",
    "slot_taken": "slots taken back",
    "slot_kept": "slots left",
    "retained": "contexts kept",
    "not_retained": "contexts given up",
    "ttl": "kept for another time",
    "moved": "moved otherwise",
    "placed": "placed elsewhere",
}
_CHANGES = {"mean_jct_s": "mean JCT", "p95_ttft_s": "p95 TTFT", "hit_rate": "hit rate"}
_UNITS = {"hit_rate": " points"}


def shadow_rows(status: Fields) -> list[tuple[str, str]]:
    """A status' lines about its shadow; none if there is none."""
    shadow = status.shadow
    if not shadow.preset:
        return []
    standing = f"{name_of(shadow)}: {shadow.standing}" + (f" ({shadow.reason})" if shadow.reason else "")
    took = f"{shadow.cpu_ratio:.1%} of the daemon's CPU time"
    window = f"window {shadow.window.limit or 'without limit'}, {shadow.ahead} let in that wait here"
    return [
        ("shadow", f"{standing}; {window}; {took}"),
        ("otherwise", differences_line(shadow)),
        ("estimate", estimate_line(shadow.estimate, status.now_ns)),
    ]


def name_of(shadow: Fields) -> str:
    """The preset, and what it has otherwise."""
    return f"{shadow.preset} with {', '.join(shadow.settings)}" if shadow.settings else str(shadow.preset)


def differences_line(shadow: Fields) -> str:
    """How many decisions are alike, and how many of each kind are not."""
    counts = shadow.counts
    found = [f"{getattr(counts, kind):,} {words}" for kind, words in _KINDS.items() if getattr(counts, kind)]
    if counts.earlier:
        found[0] += f" by {shadow.lead_s:.1f}s"
    alike = f"{counts.same:,} decisions alike in {duration(shadow.compared_ns) or '0s'}"
    unjudged = [f"{counts.unjudged:,} not compared"] if counts.unjudged else []
    return "; ".join([alike, *found, *unjudged])


def estimate_line(estimate: Fields, now_ns: int) -> str:
    """What the shadow would change, and how long ago that was found."""
    if not estimate.changes:
        return f"none yet: {estimate.reason or 'it is not asked for'}"
    ago = duration(now_ns - estimate.made_at_ns) or "0s"
    of = f"{estimate.programs} programs in {estimate.stretch_s:.0f}s, {ago} ago"
    later = f"; none later: {estimate.reason}" if estimate.reason else ""
    if estimate.programs < FEWEST_TO_JUDGE:
        return f"too few to judge ({of}{later})"
    return f"{'; '.join(_changed(each) for each in estimate.changes)} ({of}{later})"


def _changed(change: Fields) -> str:
    bounds = f" ({100 * change.low:+.0f} to {100 * change.high:+.0f})" if change.is_bounded else ""
    name, unit = _CHANGES.get(change.name, change.name), _UNITS.get(change.name, "%")
    return f"{name} {100 * change.value:+.0f}{unit}{bounds}"


def before_promoting(status: Fields) -> Iterator[str]:
    """What an operator should know before the shadow is made live."""
    shadow = status.shadow
    yield f"in force: {status.preset}; its shadow: {name_of(shadow)}, {shadow.standing}"
    yield f"decisions: {differences_line(shadow)}"
    yield f"estimate of the change: {estimate_line(shadow.estimate, status.now_ns)}"
    for each in shadow.estimate.changes:
        missed = f"{100 * each.replay_error:+.0f}{_UNITS.get(each.name, '%')}"
        yield f"  the replay of {status.preset} missed its measured {_CHANGES[each.name]} by {missed}"


def show_promoted(promoted: Fields, *, json: bool) -> None:
    """Print what is in force now, and what a reload and a restart will do."""
    if json:
        print_json(plain(promoted))
        return
    shadow = promoted.shadow_preset
    if promoted.shadow_settings:
        shadow += f" with {', '.join(promoted.shadow_settings)}"
    echo(f"{promoted.preset} is in force, as configuration {promoted.config.version}; its shadow: {shadow}")
    echo("`penstock promote` once more takes it back.")
    echo("A reload keeps it so, also where the file says otherwise; it ends with the daemon.")
    where = promoted.file or "a file given with --config"
    echo(f"A restarted daemon reads {where} again. To keep it, write there, before anything else of these keys:")
    print_table(("key", "value"), [tuple(line.split(" = ", 1)) for line in promoted.keep])
