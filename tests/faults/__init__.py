"""A simulator of faults for the whole loop.

The real gate, emitters, daemon, codec, bus client and snapshot run on event loops in virtual time, over a model of
NATS and of a disk. Everything follows from a seed: programs, faults, delays and which of several threads goes on
first. The auditor knows the documents and what can be seen from outside, not the code.
"""
