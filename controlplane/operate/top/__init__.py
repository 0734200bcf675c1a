"""``penstock top``: a node live in a terminal. Textual has the terminal and the keys; the lines are made here.

One widget shows them, and draws those anew that differ. A table of Textual's own, with a cell for each value, takes
a sixth of a core for 350 programs.
"""
