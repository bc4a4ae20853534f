"""A setup's weights and all that they need, in one folder for machines without a way to the hub."""
