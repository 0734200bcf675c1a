"""What would have been: a recorded stretch of a node's stream again, in the simulator, under another decision."""
