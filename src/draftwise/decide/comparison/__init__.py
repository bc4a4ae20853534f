"""From the readings of a run to comparisons: numbers, how sure they are, and a verdict on each."""
