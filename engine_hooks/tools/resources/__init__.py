"""What programs hold on the tool host, and who takes it back (ThunderAgent §4.4)."""
