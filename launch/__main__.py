"""`python -m rankscope.launch`: the same as `rankscope run`."""

import sys

from rankscope.launch.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
