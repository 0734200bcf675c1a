"""Many simulated runs: a grid over presets, loads, workloads, hardware and seeds."""
