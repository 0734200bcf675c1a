"""Penstock: a control plane for multi-turn LLM agents."""

__version__ = "0.1.0"
