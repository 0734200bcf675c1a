"""Generated from ``proto/envoy`` by ``make proto``: do not edit."""
