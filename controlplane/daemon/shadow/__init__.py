"""A second controller beside the one in force: it decides on the same events, and sends nothing (docs/adr/0054)."""
