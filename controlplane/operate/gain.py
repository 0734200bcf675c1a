"""What an experiment has measured, in words."""

from controlplane.operate.printing import duration, echo, plain, print_json, print_table
from controlplane.wire.control import Fields

_NAMES = {
    "completion": "mean completion",
    "first_token_p99": "p99 of first tokens",
    "again_tokens": "tokens computed again",
}
_ENDED = {
    "gain": "ended for a gain: the preset stays",
    "loss": "ended for a loss{since}: fcfs is in force",
    "length": "ended for its length: the preset stays",
}


def gain_rows(status: Fields) -> list[tuple[str, str]]:
    """A status' line about its experiment; none if there is none."""
    return [("gain", f"{standing_line(status)}; {gain_line(status)}")] if status.experiment.preset else []


def gain_line(status: Fields) -> str:
    """What the preset changes, each with its 95% interval."""
    found = status.experiment
    if not found.changes:
        return f"nothing to compare yet ({found.left_out} blocks left out)"
    took = duration((found.ended_ns or status.now_ns) - found.began_ns) or "0s"
    of = f"{found.blocks} blocks with {found.programs:,} programs in {took}"
    return f"{', '.join(map(_change, found.changes))} ({of})"


def standing_line(status: Fields) -> str:
    """Which preset, what is in force, and until when or why no more."""
    found = status.experiment
    if found.standing in _ENDED:
        since = f", seen from {duration(found.ended_ns - found.since_ns)} before that on" if found.since_ns else ""
        return f"{found.preset} beside fcfs: {_ENDED[found.standing].format(since=since)}"
    now = "fcfs" if found.is_stock else found.preset
    return f"{found.preset} beside fcfs: {now} for {duration(found.slice_ends_ns - status.now_ns) or '0s'}"


def _change(each: Fields) -> str:
    ends = f" [{100 * each.low:+.0f}, {100 * each.high:+.0f}]" if each.is_bounded else ""
    return f"{_NAMES.get(each.name, each.name)} {100 * each.value:+.0f}%{ends}"


def show_gain(status: Fields, *, json: bool) -> None:
    """Print it; as JSON the status' ``experiment``."""
    found = status.experiment
    if json:
        print_json(plain(found))
        return
    if not found.preset:
        echo("no experiment: write slice_s below [experiment] in the daemon's file, under a preset other than fcfs")
        return
    echo(f"{standing_line(status)}.")
    rows = [
        (
            _NAMES.get(each.name, each.name),
            f"{100 * each.value:+.1f}%",
            f"{100 * each.low:+.1f} to {100 * each.high:+.1f}" if each.is_bounded else "too few blocks",
            each.blocks,
        )
        for each in found.changes
    ]
    print_table(("of the preset", "change", "95% interval", "blocks"), rows)
    took = duration((found.ended_ns or status.now_ns) - found.began_ns) or "0s"
    echo(f"{found.programs:,} programs in {found.blocks} blocks, in {took}; {found.left_out} blocks left out.")
    if found.censored:
        share = f"{100 * found.censored / found.programs:.0f}%"
        echo(f"{share} of them took longer than washout_s or failed, and count as that long.")
