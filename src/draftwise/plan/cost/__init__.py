"""How long a step of a server lasts: the work of a pass, few constants fitted to measurements, and residuals."""
