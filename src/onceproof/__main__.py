"""``python -m onceproof``."""

from onceproof.cli import main

main()
