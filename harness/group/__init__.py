"""One rank among the others: process groups, the control group, clock probes, signals."""
