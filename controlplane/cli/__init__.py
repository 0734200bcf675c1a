"""The ``penstock`` command: its entry point, and a module for each group of commands."""

import os
import sys

from controlplane.core.model.text import printable

# Modules that the commands need beyond a hook's, and the extra that brings each.
_EXTRAS = {
    **dict.fromkeys(("typer", "rich", "structlog", "textual"), "daemon"),
    **dict.fromkeys(("grpc", "grpc_health", "grpc_reflection"), "daemon"),
    **dict.fromkeys(("anyio", "watchfiles", "opentelemetry", "prometheus_client", "aiohttp"), "daemon"),
    **dict.fromkeys(("numpy", "matplotlib", "jinja2"), "sim"),
    **dict.fromkeys(("starlette", "uvicorn", "httptools"), "double"),
}


def main() -> None:
    """Run the command line; report what the user can fix in one line, without a stack trace.

    It imports inside, because the base distribution, which a hook needs, has no Typer.
    """
    from controlplane.core.model.errors import ControlPlaneError

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read as it is imported: what it would log, errors say
    try:
        from controlplane.cli.app import app

        app()
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = _EXTRAS.get(module)
        if extra is None:
            raise
        _fail(f"penstock: this needs {module}: pip install 'penstock-agents[{extra}]'")
    except ControlPlaneError as error:
        _fail(f"penstock: {error}")


def _fail(words: str) -> None:
    red, plain = ("\x1b[31m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
    shown = "\n".join(map(printable, words.splitlines()))
    print(f"{red}{shown}{plain}", file=sys.stderr)  # noqa: T201
    raise SystemExit(1) from None
