"""What the machine grants this process: cores, and a folder for what is made once and used by all processes."""
