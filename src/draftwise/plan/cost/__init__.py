"""Models the time of a server's step: the work of a pass, a few fitted constants, and residuals."""
