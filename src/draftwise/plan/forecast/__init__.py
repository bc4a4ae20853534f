"""What drafting costs and what it must bring: the work of a pass, the time of a step, k by batch size."""
