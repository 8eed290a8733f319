"""Jinja templates (`*.cu.j2`) and the CuTe headers that they include; data only."""
