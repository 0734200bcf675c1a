"""Ways to spread programs over several engines: Envoy's own and Penstock's fleet, live and simulated."""
