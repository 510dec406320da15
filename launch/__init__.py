"""From one command to many ranks: composes, claims a run folder, starts one torchrun per pass, then the analysis."""
