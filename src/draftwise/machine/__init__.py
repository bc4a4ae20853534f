"""What the machine grants this process: cores, and folders for what processes share and for what a user adds."""
