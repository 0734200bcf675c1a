"""The plugin in vLLM's HTTP process: the gate goes innermost, behind the server's own authentication."""

import functools
import multiprocessing
import os
import secrets
from collections.abc import Callable
from typing import Any

from controlplane.core.model.places import places_of_ranks
from controlplane.gate import GATED_PATHS, MORE_PATHS, GateMiddleware, HealthPage
from engine_hooks.engine.board import HealthFile
from engine_hooks.engine.http_side import HttpSide, probe_health
from engine_hooks.engine.settings import ENGINE, GATE, Settings, role_of
from engine_hooks.engine.targets import Feature
from engine_hooks.engine.verify import verify
from engine_hooks.guard import Guard, log
from engine_hooks.vllm.carrier import Carry, labelling
from engine_hooks.vllm.engine_view import LABELS_VARIABLE
from engine_hooks.vllm.scheduler_side import PORT_VARIABLE, RANKS_VARIABLE
from engine_hooks.vllm.targets import SERVER_TARGETS
from engine_hooks.vllm.verify import no_gate, ranks_of, report_problems, unproven_server, vllm_version

_MARK = "penstock"
_TELLS_CACHED = "enable_prompt_tokens_details"
_ONE_OF_SEVERAL = "ApiServer_"


class Server:
    """One HTTP process: what it knows before there is an app, and what it makes of the app then."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._guard = Guard()
        self._health_file: HealthFile | None = None

    def arguments_known(self, args: Any) -> None:
        """Before EngineCore is started, which inherits this."""
        port = getattr(args, "port", None)
        if self._health_file is None and isinstance(port, int) and _serves_http(args):
            self._health_file = HealthFile(shared=bool(_which_server()))
            os.environ[PORT_VARIABLE] = str(port)
            os.environ[RANKS_VARIABLE] = str(ranks_of(args))
            if not _which_server():
                os.environ[LABELS_VARIABLE] = f"penstock-{secrets.token_hex(8)}"
            if self._settings.obeys and hasattr(args, _TELLS_CACHED):
                setattr(args, _TELLS_CACHED, True)  # the gate and its clients ask what of a prompt was cached
            if self._settings.obeys and (why := no_gate(args)):
                log.warning("penstock: no gate in this server: %s", why)

    def app_made(self, app: Any) -> None:
        """An app is about to build its middlewares; only vLLM's has its server's arguments."""
        args = getattr(app.state, "args", None)
        if args is not None and _which_server():
            self.arguments_known(args)  # plugins are loaded in the middle of the call that is to tell them here
        if args is None or self._health_file is None or hasattr(app.state, _MARK):
            return
        setattr(app.state, _MARK, True)
        lacking = report_problems(verify(SERVER_TARGETS))
        if Feature.PROBE in lacking:
            return
        why = functools.partial(self._why_passive, args)
        guard = self._guard
        if Feature.GATE in lacking:
            pass
        elif self._settings.obeys:
            guard = self._add_gate(app, args, why).guard
        else:
            health = probe_health(self._settings, guard, _engine(), why, self._health_file)
            _innermost(app, HealthPage, health=health)
        _innermost(app, Carry)
        _carry(guard)

    def _add_gate(self, app: Any, args: Any, why: Callable[[], str]) -> HttpSide:
        assert self._health_file is not None
        behind = places_of_ranks(self._settings.node, role_of(ENGINE, args), ranks_of(args))
        side = HttpSide(
            self._settings, why, self._health_file, _engine(), lambda: _role(args), behind=lambda: behind
        )
        _close_at_shutdown(side)
        _innermost(app, GateMiddleware, **side.middleware((*GATED_PATHS, *MORE_PATHS)))
        return side

    def _why_passive(self, args: Any) -> str:
        """By now EngineCore serves, and has told whether the plugin works there."""
        assert self._health_file is not None
        if why := unproven_server(args):
            return why
        for rank in range(ranks_of(args)):
            report = self._health_file.read(rank)
            if report is None:
                return "its scheduler's process tells nothing: the plugin is not loaded there"
            if because := str(report.get("passive_because", "")):
                return because
        return ""


def _which_server() -> str:
    """Its number, where there are several HTTP processes; empty for the only one, and for their parent."""
    return multiprocessing.current_process().name.partition(_ONE_OF_SEVERAL)[2]


def _role(args: Any) -> str:
    """Each of several HTTP processes has a gate, and each gate a role of its own."""
    return "-".join(filter(None, (role_of(GATE, args), _which_server())))


def _serves_http(args: Any) -> bool:
    """Whether they are of vLLM's own HTTP server: others of its commands have a port too, for something else."""
    return hasattr(args, "middleware") and not getattr(args, "grpc", False) and not getattr(args, "headless", False)


def _innermost(app: Any, middleware: Any, **options: Any) -> None:
    from starlette.middleware import Middleware

    app.user_middleware.append(Middleware(middleware, **options))


def _carry(guard: Guard) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    AsyncLLM.add_request = labelling(AsyncLLM.add_request, guard)


def _close_at_shutdown(side: HttpSide) -> None:
    """A server that ends stops its engine first, in a thread: nothing held can run any more."""
    from vllm.v1.engine.async_llm import AsyncLLM

    shutdown = AsyncLLM.shutdown

    @functools.wraps(shutdown)
    def closing(client: Any, *args: Any, **kwargs: Any) -> Any:
        side.guard.run("shutdown", side.terminating, None, None)
        return shutdown(client, *args, **kwargs)

    AsyncLLM.shutdown = closing


def _engine() -> tuple[str, str]:
    return "vllm", vllm_version()


def install(settings: Settings) -> None:
    """Have the server's arguments and its app told. Whether either ever comes, this process does not know yet."""
    from fastapi import FastAPI
    from vllm.engine.arg_utils import EngineArgs

    server = Server(settings)
    build, from_cli_args = FastAPI.build_middleware_stack, EngineArgs.from_cli_args.__func__

    @functools.wraps(from_cli_args)
    def hooked_from_cli_args(cls: type, args: Any, *more: Any, **kwargs: Any) -> Any:
        _notify(server.arguments_known, args)
        return from_cli_args(cls, args, *more, **kwargs)

    @functools.wraps(build)
    def build_middleware_stack(app: Any) -> Any:
        _notify(server.app_made, app)
        return build(app)

    EngineArgs.from_cli_args = classmethod(hooked_from_cli_args)
    FastAPI.build_middleware_stack = build_middleware_stack


def _notify(method: Callable[[Any], None], what: Any) -> None:
    try:
        method(what)
    except Exception as error:
        log.exception("penstock: the gate is passive: %s", error)
