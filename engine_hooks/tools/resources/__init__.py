"""Resources that programs hold on the tool host, and their reclaiming (ThunderAgent §4.4)."""
