"""`python -m memgauge` runs the command."""

from .program import main

main()
