"""`python -m specdec_cli`."""

from specdec_cli.app import main

main()
