"""Many kills of real processes under load, from one seed, and what they cost whoever sends requests."""
