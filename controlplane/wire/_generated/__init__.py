"""Generated from ``proto/penstock/v1`` by ``make proto``: do not edit."""
