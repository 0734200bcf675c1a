"""What an operator uses against a running daemon."""
