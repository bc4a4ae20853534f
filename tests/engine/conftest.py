"""Its presence puts this folder on the path: the checkpoint writers here serve the test folders below it."""
