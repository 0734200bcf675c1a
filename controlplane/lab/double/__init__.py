"""The engine double: an OpenAI-compatible server without a model, for demonstrations and tests.

It is no inference engine. An engine model in (scaled) real time says when tokens come; the tokens are words
that mean nothing. It publishes the events of a real engine, and obeys the control plane's commands.
"""

from controlplane.lab.double.options import DoubleOptions
from controlplane.lab.double.server import run_double, serve

__all__ = ["DoubleOptions", "run_double", "serve"]
