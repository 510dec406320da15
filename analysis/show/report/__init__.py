"""Builds `report.html`: what was run, the verdict, the steps as a curve, findings, timeline and tables."""
