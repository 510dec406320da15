"""One command to many ranks: configuration, run folder, one torchrun a pass, and the analysis started by name."""
