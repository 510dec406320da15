"""`rankscope ncu`."""
