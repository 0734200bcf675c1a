"""A whole fleet of real processes: Envoy, NATS, fleet daemons, engine doubles."""
