"""The one comparison: rows, words, plots, a terminal, HTML and Markdown, for single runs, sweeps and the A/B."""
