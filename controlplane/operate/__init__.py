"""Tools with which an operator watches, asks and checks a running daemon."""
