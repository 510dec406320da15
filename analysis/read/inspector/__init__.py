"""Reads the JSON lines of NCCL's Inspector plugin: every collective of every process, timed on its own device."""
