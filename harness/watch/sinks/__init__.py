"""The places that a watched run is written to: one module per format, listed in formats.py."""
