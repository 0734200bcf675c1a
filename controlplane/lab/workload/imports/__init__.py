"""What other tools keep of agents' sessions, as programs of a trace: one file for each family of formats.

A reader is a generator from a file's records to ``Session``s; ``formats.py`` has the table of them. Nothing of a
text is kept but its size.
"""
