"""The test suite; a package so that its helpers in `tests.support` can be imported from everywhere."""
