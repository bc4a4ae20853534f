"""All that draftwise can do: one file per verb, with its Request, its Result and its function.

The command line, Python, and whatever else asks (a web form, an agent) build the same Request and get the same Result.
A file here is imported when its verb is first used. A new verb needs one file here, one in `cli`, and one row below.
"""

from __future__ import annotations

from draftwise.verbs.verb import Group, Row, load_verb

__all__ = ["VERBS", "Group", "Row", "load_verb"]

VERBS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("check", Group.CHOOSE, "Predict what a vLLM release makes of a speculative config."),
        Row("pick", Group.CHOOSE, "Recommend a drafting method for a target, hardware and release."),
        Row("size", Group.CHOOSE, "Memory of target, drafter and KV cache on a GPU."),
        Row("inspect", Group.CHOOSE, "Inspect a drafter and its target without loading them."),
        Row("upgrade", Group.CHOOSE, "What breaks or changes between two vLLM releases."),
        Row("explain", Group.CHOOSE, "Explain a finding, a key, a method or a flag."),
        Row("facts", Group.CHOOSE, "Which vLLM releases are known, and learn a newer one."),
        Row("schema", Group.CHOOSE, "JSON Schema of the speculative config, or of what a verb prints."),
        Row("config", Group.CHOOSE, "Show your defaults and where each comes from."),
        Row("fetch", Group.CHOOSE, "Get a published model from the package index."),
        Row("decide", Group.MEASURE, "Measure whether speculation pays, and get a verdict."),
        Row("compare", Group.MEASURE, "Compare two runs: is the answer still true?"),
        Row("report", Group.MEASURE, "Write a run's report again from its raw readings."),
        Row("replay", Group.MEASURE, "What each method would accept on logged traffic."),
        Row("calibrate", Group.MEASURE, "Measure how long the steps of servers take."),
        Row("forecast", Group.MEASURE, "Forecast the speed-up under loads nobody measured."),
        Row("schedule", Group.MEASURE, "How many tokens to draft under which load."),
        Row("deploy", Group.DEPLOY, "Write the files that put a setup into production, and those that undo it."),
        Row("verify", Group.DEPLOY, "Check that files or a server are what was decided."),
        Row("rollback", Group.DEPLOY, "Go back to the twin without speculation."),
        Row("bundle", Group.DEPLOY, "Pack a deployment's weights for machines without network."),
        Row("watch", Group.OPERATE, "See whether speculation helps a running service."),
        Row("guard", Group.OPERATE, "Propose or take action when speculation stops paying."),
        Row("mcp", Group.OPERATE, "Serve the verbs as tools of an agent (MCP)."),
        Row("skill", Group.OPERATE, "Install the skill that teaches an agent these verbs."),
        Row("serve", Group.BUILD, "Serve a model over the OpenAI API with the embedded engine."),
        Row("warm-up", Group.BUILD, "Compile a server's kernels ahead of time."),
        Row("train", Group.BUILD, "Train a drafter for a target."),
        Row("export", Group.BUILD, "Export a trained drafter in the format a server needs."),
    )
}
