"""A fleet of very many engines in the simulator: what ``fleet_scale.py --simulate`` runs."""
