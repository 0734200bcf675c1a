"""The ``penstock`` command: a module for each group of commands."""
