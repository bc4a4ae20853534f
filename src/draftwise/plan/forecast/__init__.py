"""What speculation will be worth: acceptance, the time of a step and the load taken together."""
