"""Explains a job that hangs, from what its ranks left: Flight Recorder dumps and Python stacks."""
