"""The commands, one module each: arguments in, exit status out."""
