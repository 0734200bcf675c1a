"""Configuration: TOML to checked dataclasses, each error with its file, line, path and range.

    penstock.toml:7: $.admission.beta: expected 0 < beta < 1, got 1.5

A preset gives the six policies; a section of the policy's kind overrides its parameters, or names another policy:

    preset = "penstock"
    [admission]
    beta = 0.6
"""

from controlplane.config.changes import Change, changes, keep_until_restart
from controlplane.config.model import (
    DEFAULT_HTTP,
    ENVIRONMENT,
    ApiConfig,
    Config,
    HostConfig,
    OtlpConfig,
    TelemetryConfig,
)
from controlplane.config.parse import parse
from controlplane.config.settings import overridden, parse_setting, promoted
from controlplane.config.show import show, template
from controlplane.config.sources import Resolved, Source, content_of, is_stream, load

__all__ = [
    "DEFAULT_HTTP",
    "ENVIRONMENT",
    "ApiConfig",
    "Change",
    "Config",
    "HostConfig",
    "OtlpConfig",
    "Resolved",
    "Source",
    "TelemetryConfig",
    "changes",
    "content_of",
    "is_stream",
    "keep_until_restart",
    "load",
    "overridden",
    "parse",
    "parse_setting",
    "promoted",
    "show",
    "template",
]
