"""Faults planted on purpose, so that tests can show that the analysis finds them."""
