"""Models how long a step of a server lasts: the work of a pass, a few fitted constants, and residuals."""
