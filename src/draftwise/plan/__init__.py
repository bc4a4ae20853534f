"""Pure functions from facts and shapes to findings, budgets, forecasts and recommendations."""
