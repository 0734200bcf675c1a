"""Automatic advice: the daemon changes its own settings within bounds, one step at a time (docs/adr/0060)."""

from controlplane.shell.advise.auto import AutoAdvice
from controlplane.shell.advise.questions import Questions, answer_of
from controlplane.shell.advise.status import AdviseStatus, SettingChange

__all__ = ["AdviseStatus", "AutoAdvice", "Questions", "SettingChange", "answer_of"]
