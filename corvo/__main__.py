"""`python -m corvo` is the same program as `corvo`."""

import sys

from corvo.cli import main

if __name__ == "__main__":
    sys.exit(main())
