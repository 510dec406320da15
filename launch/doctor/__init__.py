"""`rankscope doctor`."""
