"""The work of a `Monitor`."""
