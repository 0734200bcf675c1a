"""The most agents at once that keep an SLO: simulated, against an endpoint, or of a recorded stretch."""
