"""The version of rankscope. Asking the installed package for it takes longer than the start of a command."""

VERSION = "0.1.0"
