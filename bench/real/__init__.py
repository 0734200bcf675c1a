"""Real agents on an engine double, whole runs: the parts of ``bench/real_agents.py``."""
