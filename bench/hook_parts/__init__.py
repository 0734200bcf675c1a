"""The parts of ``bench/hook_cost_engine.py``."""
