"""`python -m rankscope.analysis PATH...`: the same as `rankscope analyze`."""

import sys

from rankscope.analysis.commands.analyze import main

sys.exit(main(sys.argv[1:]))
