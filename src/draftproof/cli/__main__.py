"""`python -m draftproof.cli`, for places where the command is not on the path."""

from draftproof.cli import main

main()
