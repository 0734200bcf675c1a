"""What several policies make of the learned figures (``estimators.workload``)."""

from controlplane.core.estimators.workload import Estimates


def return_price(facts: Estimates, host_hit_ratio: float) -> float:
    """What having a context back costs, of computing it again, where that share of what left is kept below."""
    return 1.0 - host_hit_ratio * (1.0 - facts.reload_cost_ratio)


def own_blocks(blocks: int, facts: Estimates, *, is_last: bool) -> int:
    """What a program that holds ``blocks`` frees: a shared prefix stays for the others, unless it is alone."""
    return blocks if is_last else max(0, blocks - facts.shared_blocks)
