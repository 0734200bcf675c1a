"""``python -m controlplane`` is ``penstock``."""

from controlplane.cli.app import main

main()
