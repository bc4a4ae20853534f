"""What tests of several rooms share: made-up runs, servers, checkpoints and their truth."""
