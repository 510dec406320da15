"""Records steps in every pass, of the reference model and of scripts."""
