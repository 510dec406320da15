"""Replays the recorded steps of all ranks as a graph of dependencies: critical path, slack, what a change brings.

Input: a measured recording. `build` makes the graph, `graph` replays it, `changes` alters it, `predict` compares.
"""
