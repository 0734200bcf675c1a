"""What a running engine's steps cost, measured and fitted: profiles for the simulator."""
