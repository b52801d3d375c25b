"""`python -m calque` is the `calque` command."""

import sys

from calque.cli import main

sys.exit(main())
