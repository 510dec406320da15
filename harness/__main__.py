"""Entry of one rank: `python -m rankscope.harness RUN_DIR PASS`, started by torchrun."""

import sys

from rankscope.harness.worker import main

if __name__ == "__main__":
    main(sys.argv[1:])
