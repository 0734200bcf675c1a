"""The endpoint picker over many engines: Envoy carries the turns, this room says where each goes and when."""
