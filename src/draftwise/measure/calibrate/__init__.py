"""How long the steps of servers last, from the streams of a run: what `draftwise calibrate` measures."""
