"""Faults planted on purpose."""
