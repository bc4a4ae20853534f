"""Pure functions from facts and shapes to findings, memory budgets, forecasts, schedules and recommendations."""
