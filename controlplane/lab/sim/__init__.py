"""The simulator: programs, a continuous-batching engine model and the controller in virtual time."""
