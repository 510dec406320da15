"""One module a command: options in, an exit status out."""
