"""The laboratory: workloads, the simulator, the load generator and the comparison of runs. No daemon needs it."""
