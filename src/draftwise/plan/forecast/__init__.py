"""What drafting costs and the acceptance it needs: the work of a pass, the time of a step, k by batch size."""
