"""What is read from a wheel: one module per family of topics, each a function `(Tree) -> {key: (value, source)}`."""
