"""The comparison with other systems: its arithmetic and its driver. No figure is asserted here."""
