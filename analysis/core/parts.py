"""Words for parts of a step that one stage writes and another one reads."""

BETWEEN_COLLECTIVES = "between collectives, as the trace shows"  # where a rank computes longer, from the trace
