"""A whole fleet on one machine, agents that use it, and faults: what ``penstock fleet demo`` and its tests run."""
