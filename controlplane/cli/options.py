"""Options that several commands share."""

import copy
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
import typer

from controlplane.cli import completion
from controlplane.core.model.errors import ConfigError, allowed, near
from controlplane.lab.experiment import DEFAULT_TRACE, Hardware, Workload
from controlplane.lab.workload.telemetry import Telemetry

WORKLOAD, HARDWARE = Workload(trace=DEFAULT_TRACE), Hardware()  # whose values are the defaults of options
_Described = TypeVar("_Described", Workload, Hardware)
_Command = TypeVar("_Command", bound=Callable[..., None])


def described(kind: type[_Described], arguments: Mapping[str, Any]) -> _Described:
    """A workload or hardware of those parameters of a command that are named as its fields are."""
    fields = {name: arguments[name] for name in kind.__struct_fields__ if name in arguments}
    hashable: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    return kind(**hashable)


def about_to_serve(log_level: str, *, reloads: bool = True) -> None:
    """What a command that serves does first. Raises ``BadParameter`` for a level that there is not."""
    if reloads:  # the file is about to be read: a SIGHUP must not end the start
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from controlplane.daemon.process.logs import LEVELS, configure
    from controlplane.transport.bounds import raise_open_files

    if log_level not in LEVELS:
        raise typer.BadParameter(
            f"expected one of {', '.join(LEVELS)}, got {log_level!r}{near(log_level, LEVELS)}",
            param_hint="--log-level",
        )
    configure(log_level)
    raise_open_files()


def ranged(command: _Command) -> _Command:
    """``command``, whose help tells the range of each option that is a field of a workload or of hardware.

    The ranges are those that the fields' own checks state: they are declared once.
    """
    for name, hint in get_type_hints(command, include_extras=True).items():
        for defaults in (WORKLOAD, HARDWARE):
            default = getattr(defaults, name, None)
            if text := allowed(partial(msgspec.structs.replace, defaults), name, default):
                kind, option = get_args(hint)
                option = copy.copy(option)  # several commands share it
                option.help += f" [{text.replace(name, 'x')}]"
                command.__annotations__[name] = Annotated[kind, option]
    return command


def made(context: typer.Context, folder: Path | None) -> Path | None:
    """The folder for results, made before the work begins that might be lost for want of it."""
    if folder is not None and not context.resilient_parsing:  # a shell that completes words makes none
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out: cannot make the folder {folder}: {error.strerror}") from error
    return folder


ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="TOML file; `penstock config template` prints one to start from."),
]
PresetName = Annotated[
    str | None,
    typer.Option(
        "--preset",
        "-p",
        help="Named set of policies; `penstock presets` lists them.",
        autocompletion=completion.presets,
    ),
]
FLEET = "fleet"
"""The name that a fleet has unless another was given."""

# Help shows a command's own options first, and those that many commands have below, under these titles.
OF_MANY = "Options of many commands"
OF_WORKLOADS = "Workload and results"

Json = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=OF_MANY)]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Print one line of JSON per decision.", rich_help_panel=OF_MANY)
]
Node = Annotated[
    str, typer.Option("--node", envvar="PENSTOCK_NODE", help="The serving node.", rich_help_panel=OF_MANY)
]
Nodes = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        envvar="PENSTOCK_NODE",
        help="The node or fleet whose daemon decided. Repeatable. Default: local, unless a log is named.",
        rich_help_panel=OF_MANY,
    ),
]
Logs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[LOG]...",
        help="Decision logs, or runs that `penstock up --record` wrote. Default: the decision log of --node.",
    ),
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="PENSTOCK_STATE_DIR",
        help="The daemon's state directory.",
        rich_help_panel=OF_MANY,
    ),
]
Api = Annotated[
    str | None,
    typer.Option(
        "--api",
        envvar="PENSTOCK_API",
        help="Control API at HOST:PORT or unix:PATH. Default: the node's socket.",
        rich_help_panel=OF_MANY,
    ),
]
Fleet = Annotated[
    bool,
    typer.Option("--fleet", help="Ask the fleet: the same as --node fleet.", rich_help_panel=OF_MANY),
]
ProgramId = Annotated[
    str,
    typer.Argument(
        help="The program, as `penstock programs` lists it.", metavar="PROGRAM", autocompletion=completion.programs
    ),
]
Trace = Annotated[
    str,
    typer.Argument(
        help="A trace, a file or folder that `penstock trace import` reads, or `synthetic:NAME`: swe-bench, "
        "swe-bench-verified, bfcl-v4, swe-like, agentx-like, agentperf-like, five-kinds, ilr-like (ilr-1 to "
        "ilr-4), rollouts-like-4 (-8, -16). Several are mixed, `mix:A+B*2`, or follow one another, `change:A>B`."
    ),
]
Programs = Annotated[
    int,
    typer.Option(
        "--programs", "-n", help="How many programs to run; 0: all in the trace.", rich_help_panel=OF_WORKLOADS
    ),
]
MaxContext = Annotated[
    int,
    typer.Option(
        "--max-context",
        help="Leave out programs whose context outgrows this many tokens; 0: none.",
        rich_help_panel=OF_WORKLOADS,
    ),
]
ScaleTokens = Annotated[
    float,
    typer.Option(help="Factor on prompt tokens; the result shows it.", rich_help_panel=OF_WORKLOADS),
]
ScaleOutputs = Annotated[float, typer.Option(help="Factor on output tokens.", rich_help_panel=OF_WORKLOADS)]
ScaleTools = Annotated[float, typer.Option(help="Factor on tool times.", rich_help_panel=OF_WORKLOADS)]
Tiers = Annotated[
    list[str],
    typer.Option(
        "--tier",
        help="KV memory below the device, NAME:TOKENS:GB_PER_S: dram:2000000:50. Repeatable, fastest first.",
    ),
]
SharedPrefix = Annotated[
    int,
    typer.Option(help="Leading tokens that all programs share (system prompt).", rich_help_panel=OF_WORKLOADS),
]
TokensPerWord = Annotated[
    int,
    typer.Option(
        min=1, help="For the engine double: tokens that one word stands for.", rich_help_panel=OF_WORKLOADS
    ),
]
ApiKey = Annotated[
    str,
    typer.Option(
        "--api-key",
        envvar="OPENAI_API_KEY",
        help="Sent to the endpoint as a bearer token.",
        rich_help_panel=OF_WORKLOADS,
    ),
]
TelemetryOf = Annotated[
    Telemetry,
    typer.Option(
        help="What programs report besides their id: nothing (`none`), what replies call (`turns`), the runs and "
        "tools of every second program (`half`), of all (`full`), or of all but whose sub-agent one is (`runs`).",
        rich_help_panel=OF_WORKLOADS,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Folder for the runs (JSON) and report.html.",
        callback=made,
        rich_help_panel=OF_WORKLOADS,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print summaries as JSON.", rich_help_panel=OF_WORKLOADS)]
TimeScale = Annotated[
    float,
    typer.Option(
        min=0.01, max=100, help="How many times faster than real time to run.", rich_help_panel=OF_WORKLOADS
    ),
]
Nats = Annotated[
    str | None,
    typer.Option("--nats", help="NATS URL. Default: the node's endpoint file.", rich_help_panel=OF_MANY),
]
Baseline = Annotated[str, typer.Option(help="The preset that others are compared with, seed by seed.")]


def logs_of(nodes: list[str] | None, state_dir: Path | None, logs: list[Path] | None) -> dict[str, Path]:
    """The decision logs of those nodes, and the ``logs`` that are named, by what they are called."""
    from controlplane.transport.endpoint import default_state_dir
    from controlplane.wire.decisions import log_path

    folder = state_dir or default_state_dir()
    named = {name: log_path(name, folder) for name in nodes or ([] if logs else ["local"])}
    return named | {str(path): path for path in logs or ()}
