"""`python -m rankscope.analysis PATH...`: the same as `rankscope analyze`."""

import sys

from rankscope.analysis.main import main

sys.exit(main(sys.argv[1:]))
