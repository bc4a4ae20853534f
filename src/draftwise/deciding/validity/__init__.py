"""Validity checks: findings about a measurement, of which errors block an adoption and the rest inform a reader."""
