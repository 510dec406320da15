"""Reads the Perfetto traces (.pftrace) that torch.profiler writes with its own CUPTI backend."""
