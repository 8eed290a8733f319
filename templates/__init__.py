# SPDX-License-Identifier: Apache-2.0
"""Jinja templates (`*.cu.j2`) and the CuTe headers that they include; data only."""
