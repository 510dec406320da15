"""`python -m rankscope.analysis PATH...`: the same as `rankscope analyze`."""

import sys

from rankscope.conf.cli import program

sys.argv[1:1] = ["analyze"]
program()
