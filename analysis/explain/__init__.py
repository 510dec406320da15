"""Who is late and why; what costs time and what a fix would bring."""
