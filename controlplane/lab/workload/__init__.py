"""Programs to run and what running them gave: traces, arrivals, records and their summary."""
