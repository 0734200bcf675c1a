"""``penstock demo``: the whole loop on one machine, shown and measured, beside what the simulator says of it."""
