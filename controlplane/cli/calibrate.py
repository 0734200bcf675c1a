"""``penstock calibrate``: measure a running engine and write its hardware profile."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    url: Annotated[str, typer.Argument(help="The SGLang server, which must be idle: http://127.0.0.1:30000.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The profile file to write.")] = Path("profile.json"),
    name: Annotated[str, typer.Option(help="The profile's name in tables. Default: the file's.")] = "",
    source: Annotated[
        str, typer.Option(help="Where the figures come from. Default: what the server says about itself.")
    ] = "",
    kv_bytes_per_token: Annotated[
        int,
        typer.Option(min=0, help="KV bytes per token over all layers, for transfers between tiers; 0: unknown."),
    ] = 0,
    repetitions: Annotated[
        int, typer.Option(min=1, help="How often each figure is measured; the median counts.")
    ] = 5,
) -> None:
    """Measure a running SGLang and write a profile for `penstock simulate --profile FILE`.

    This takes minutes. It measures prefills of several lengths, with and without a cached beginning, decode steps
    of several batches, and chats, which show what a turn takes beside its prefill. The engine must do nothing else
    meanwhile. At the end it shows how far the fitted costs are from the measured ones.
    """
    import msgspec
    from rich.console import Console
    from rich.table import Table

    from controlplane.lab.calibrate.measure import Plan, measure
    from controlplane.lab.calibrate.profile import fit, to_profile
    from controlplane.lab.sim.profile import load_profile

    console = Console(stderr=True, highlight=False)
    measured = measure(url, Plan(repetitions=repetitions), console.print)
    costs = fit(measured)
    profile = to_profile(measured, costs, name or out.stem, source=source, kv_bytes_per_token=kv_bytes_per_token)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
    load_profile(out)  # checks that what was written can be read
    table = Table("what", "measured (ms)", "fitted (ms)", "off by")
    for one in measured.prefill:
        table.add_row(
            f"prefill {one.cached}+{one.new}", *_compared(one.seconds, costs.first_token_s(one.cached, one.new))
        )
    for step in measured.decode:
        table.add_row(
            f"decode {step.batch}x{step.context}",
            *_compared(step.seconds, costs.decode.of(step.batch, step.context)),
        )
    overhead_s = profile.turn_overhead_us / 1e6
    for chat in measured.chats:
        fitted = overhead_s + costs.first_token_s(0, chat.tokens)
        table.add_row(f"first token of a chat of {chat.tokens}", *_compared(chat.seconds, fitted))
    Console().print(table)
    anew = costs.prefill.attends_anew
    attends = "attends through the whole sequence with each chunk" if anew else "attends to what is new"
    worst = max(costs.prefill.worst_error_ratio, costs.decode.worst_error_ratio)
    console.print(f"{out}: {attends}; worst error {worst:.1%}")
    if worst > 0.2:
        console.print("more than 20% off: was the engine busy? measure again on a quiet machine")
        sys.exit(1)


def _compared(seconds: float, fitted: float) -> tuple[str, str, str]:
    return f"{seconds * 1e3:.2f}", f"{fitted * 1e3:.2f}", f"{fitted / seconds - 1:+.1%}"
