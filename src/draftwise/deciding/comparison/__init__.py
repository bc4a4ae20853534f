"""From the answers of a run to the numbers of each comparison, and how sure they are."""
