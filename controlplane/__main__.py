"""``python -m controlplane`` is ``penstock``."""

from controlplane.cli import main

main()
