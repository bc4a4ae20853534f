"""All that draftwise can do: one file per verb, with its Request, its Result and its function.

The command line, Python, web forms and agents build the same Request and get the same Result.
A file here is imported when its verb is first used. A new verb needs one file here, one in `cli`, and one row below.
"""

from __future__ import annotations

from draftwise.verbs.verb import Group, Row, load_verb

__all__ = ["VERBS", "Group", "Row", "load_verb"]

VERBS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("check", Group.CHOOSE, "Predict whether vLLM accepts, changes or rejects your config."),
        Row("pick", Group.CHOOSE, "Recommend a drafting method for a target, hardware and release."),
        Row("size", Group.CHOOSE, "Compute the memory of target, drafter and KV cache on a GPU."),
        Row("inspect", Group.CHOOSE, "Inspect a drafter and its target without loading them."),
        Row("upgrade", Group.CHOOSE, "Show what breaks or changes between two vLLM releases."),
        Row("explain", Group.CHOOSE, "Explain a name, an error or a question."),
        Row("facts", Group.CHOOSE, "List the known vLLM releases, or add a newer one."),
        Row("schema", Group.CHOOSE, "Print the JSON Schema of the speculative config or a verb's output."),
        Row("config", Group.CHOOSE, "Show your defaults and where each comes from."),
        Row("fetch", Group.CHOOSE, "Download a published model from the package index."),
        Row("decide", Group.MEASURE, "Measure whether speculation pays, and get a verdict."),
        Row("compare", Group.MEASURE, "Compare two runs: does the verdict still hold?"),
        Row("report", Group.MEASURE, "Write a run's report again, or export it."),
        Row("replay", Group.MEASURE, "Compute what each method would accept on logged traffic."),
        Row("calibrate", Group.MEASURE, "Measure how long your servers' decoding steps take."),
        Row("forecast", Group.MEASURE, "Forecast the speed-up under loads you did not measure."),
        Row("schedule", Group.MEASURE, "Choose how many tokens to draft at each load."),
        Row("deploy", Group.DEPLOY, "Write the files that deploy a setup, and those that undo it."),
        Row("verify", Group.DEPLOY, "Check that files or a running server match the decision."),
        Row("rollback", Group.DEPLOY, "Go back to serving without speculation."),
        Row("bundle", Group.DEPLOY, "Pack a deployment's weights for air-gapped machines."),
        Row("watch", Group.OPERATE, "See whether speculation helps a running service."),
        Row("ui", Group.OPERATE, "Look at runs, forecasts and services in a browser."),
        Row("guard", Group.OPERATE, "Propose or take action when speculation stops paying off."),
        Row("mcp", Group.OPERATE, "Serve the verbs as tools of an agent (MCP)."),
        Row("skill", Group.OPERATE, "Install the skill that teaches an agent these verbs."),
        Row("serve", Group.BUILD, "Serve a model over the OpenAI API with the embedded engine."),
        Row("warm-up", Group.BUILD, "Compile a server's kernels ahead of time."),
        Row("train", Group.BUILD, "Train a drafter for a target."),
        Row("export", Group.BUILD, "Export a trained drafter for vLLM or speculators."),
    )
}
