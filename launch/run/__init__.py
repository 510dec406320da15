"""One run: claim, torchrun, collect, name the first failure."""
