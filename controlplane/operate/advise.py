"""Automatic advice in words: how it stands, what it has changed, and why."""

from controlplane.operate.printing import duration, echo, plain, print_json, print_table
from controlplane.wire.control import Fields


def advise_rows(status: Fields) -> list[tuple[str, str]]:
    """A status' line about automatic advice; none while it is off and has changed nothing."""
    if not status.advise.goal:
        return []
    return [("advice", f"{standing(status.advise, status.now_ns)}; {_counted(status.advise)}")]


def advice_note(status: Fields) -> str:
    """What is otherwise than operators wrote it, or is being tried; empty: nothing is."""
    if status.advise.phase in ("tries", "judges"):
        return f"advice {status.advise.phase} {status.advise.trying}"
    return f"by advice {', '.join(status.advise.in_force)}" if status.advise.in_force else ""


def standing(advice: Fields, now_ns: int) -> str:
    """What it does now, and why."""
    if advice.phase == "rests":
        said = f"rests for {duration(max(1, advice.until_ns - now_ns))}"
    elif advice.phase == "tries":
        said = f"tries {advice.trying}, {_heard(advice)}"
    elif advice.phase == "listens":
        said = f"listens, {_heard(advice)}"
    else:
        said = {"asks": "asks what a step would bring", "judges": f"judges {advice.trying}"}.get(
            advice.phase, advice.phase
        )
    return f"{said} ({advice.reason})" if advice.reason and advice.phase != "off" else said


def show_automatic(status: Fields, *, json: bool) -> None:
    """Print what a daemon's automatic advice has changed, and how it stands."""
    advice = status.advise
    if json:
        print_json(plain(advice))
        return
    if not advice.goal:
        echo(
            "automatic advice is off: with `auto = true` and bounds below [advise] in the daemon's file it changes "
            "settings by itself. For advice on a recorded run name its log: penstock advise LOG"
        )
        return
    echo(f"automatic advice for {advice.goal}: {standing(advice, status.now_ns)}; {_counted(advice)}")
    if advice.latest:
        head = ("ago", "setting", "from", "to", "outcome", "why")
        print_table(head, [_row(each, status.now_ns) for each in advice.latest])
    if advice.in_force:
        echo("In force until the daemon ends, over what its file says; to keep it, write there:")
        for line in advice.in_force:
            echo(f"  {line}")


def _heard(advice: Fields) -> str:
    return f"{duration(advice.heard_ns) or '0s'} of {duration(advice.wanted_ns)} heard"


def _counted(advice: Fields) -> str:
    steps = "1 step" if advice.tried == 1 else f"{advice.tried} steps"
    return f"{steps} made, {advice.kept} kept, {advice.undone} taken back"


def _row(change: Fields, now_ns: int) -> tuple[str, ...]:
    ago = duration(max(0, now_ns - change.at_ns)) or "0s"
    return ago, change.key, f"{change.before:g}", f"{change.after:g}", change.outcome, change.reason
