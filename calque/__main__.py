"""`python -m calque` is the `calque` command; without a word, a prompt where `import torch` means Calque."""

import sys

from calque.cli import main
from calque.compat.run import interact

sys.exit(main() if len(sys.argv) > 1 else interact())
