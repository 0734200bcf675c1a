"""Where these examples find the model: any OpenAI-compatible endpoint, best an SGLang with Penstock's plugin."""

import os
import sys

URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:30000/v1")
MODEL = os.environ.get("OPENAI_MODEL", "default")
KEY = os.environ.get("OPENAI_API_KEY", "none")


def task(default: str) -> str:
    """What the agent is asked for: the command line, or ``default``."""
    return " ".join(sys.argv[1:]) or default
