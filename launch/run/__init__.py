"""One run: claim its folder, start torchrun, collect the files, name the root cause of a failure."""
