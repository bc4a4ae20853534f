// Cards of results: the JSON document of a verb in, elements out. All text goes in as text, never as markup.
export function h(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat(3).filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

const MARKS = { good: "✓", bad: "✗", open: "?", note: "·", warn: "!" };
export const KINDS = { accepted: "good", rejected: "bad", "fails later": "bad", "not judged": "open" };
const SEVERITIES = { error: "bad", warning: "warn", info: "note" };
const gib = (bytes) => (bytes / 2 ** 30).toFixed(2);
const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const digits = (value, places = 2) => (value === null || value === undefined ? "unknown" : value.toFixed(places));

export const badge = (kind, text) => h("b", { class: `badge ${kind}` }, `${MARKS[kind]} ${text}`);
const article = (title, ...parts) => h("article", {}, h("h2", {}, title), parts);
const section = (title, ...parts) => (parts.flat().length ? [h("h3", {}, title), parts] : []);
const more = (title, ...parts) => h("details", {}, h("summary", {}, title), parts);
const command = (text) => h("pre", { tabindex: 0 }, text);
export const table = (head, rows) => h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": head.join(", ") }, h("table", {},
  h("thead", {}, h("tr", {}, head.map((each) => h("th", { scope: "col" }, each)))),
  h("tbody", {}, rows.map((row) => h("tr", {}, row.map((each) => h("td", {}, each)))))));

let pageOf = (code) => `${document.getElementById("forms") ? "" : "/judge"}#${encodeURIComponent(JSON.stringify({ verb: "explain", name: code }))}`;
export function findings(list) {
  return list.length ? h("ul", { class: "findings" }, list.map((each) => h("li", { class: SEVERITIES[each.severity] ?? "note" },
    h("span", { class: "mark", "aria-hidden": "true" }, MARKS[SEVERITIES[each.severity] ?? "note"]),
    h("a", { href: pageOf(each.code) }, each.code), ` ${each.message}`,
    each.fix && h("div", { class: "fix" }, `Fix: ${each.fix}`),
    each.source && h("small", {}, each.source)))) : [];
}

const ABOUT = { target: "the target's config.json", drafter: "the drafter's config.json", weights: "the weights of both models", gpu: "the GPU" };
function unchecked(counts) {
  const waiting = Object.entries(counts);
  return waiting.length ? h("p", { class: "open" }, `Not checked: ${waiting.map(([what, count]) => `${count} rules need ${ABOUT[what] ?? what}`).join("; ")}.`) : [];
}

function resolved(config) {
  if (!config) return [];
  const { fields, ...own } = config;
  const rows = [...Object.entries(own), ...Object.entries(fields)].filter(([, value]) => value !== null);
  return more("Resolved config: what the server holds after its start", table(["key", "value"], rows.map(([key, value]) => [h("code", {}, key), h("code", {}, shown(value))])));
}

export function check(judgements, { releases } = {}) {
  return judgements.map((each, index) => article(
    [badge(KINDS[each.outcome] ?? "open", each.outcome), each.vllm ? ` vLLM ${each.vllm} ` : " ", h("code", {}, each.target), each.where && h("small", {}, each.where)],
    each.asked !== each.vllm && h("p", { class: "open" }, `vLLM ${each.asked} is not known: judged as ${each.vllm}.`),
    unchecked(each.unchecked), findings(each.findings), releases?.(each, index), resolved(each.resolved)));
}

const choices = (list) => {
  const kinds = Map.groupBy ? Map.groupBy(list, ({ kind }) => kind) : new Map([["", list]]);
  return [...kinds].map(([kind, each]) => h("p", {}, `${kind}: `, h("code", {}, each.map(({ name }) => name).join(", "))));
};

export function upgrade(setups) {
  return setups.map((each) => {
    const stuck = each.breaks.length || each.starts_on_neither;
    const open = [each.before, each.after].some(({ accepted }) => accepted === null) || each.unknown.length;
    const [kind, text] = stuck ? ["bad", each.starts_on_neither ? "starts on neither" : "breaks"] : open ? ["open", "not judged"] : ["good", "starts on both"];
    return article(
      [badge(kind, text), ` vLLM ${each.before.vllm} → ${each.after.vllm} `, h("code", {}, each.after.target), each.where && h("small", {}, each.where)],
      section("Breaks", findings(each.breaks)), section("Broken on both", findings(each.still)), section("Not judged", findings(each.unknown)),
      section("New", findings(each.other)), section("Gone", findings(each.gone)),
      section("Known defects that appear", findings(each.appearing)), section("Known defects that disappear", findings(each.disappearing)),
      section("Values that change", each.changes.length ? table(["what", each.before.vllm, each.after.vllm], each.changes.map((change) => [change.what, h("code", {}, shown(change.before)), h("code", {}, shown(change.after))])) : []),
      each.possible.length ? more(`Becomes possible: ${each.possible.length}`, choices(each.possible)) : [],
      each.removed.length ? more(`Is removed: ${each.removed.length}`, choices(each.removed)) : []);
  });
}

const PARTS = [["target", "target weights"], ["drafter", "drafter"], ["activations", "activations"], ["graphs_counted", "CUDA graphs"], ["buffers", "buffers"], ["non_torch", "CUDA context and NCCL"], ["kv_bytes", "KV cache"]];
const tell = (bytes) => (bytes < 0 ? `none: ${gib(-bytes)} GiB missing` : `${gib(bytes)} GiB`);
const bytesOf = (memory, key) => (key === "non_torch" ? memory.non_torch + memory.context : memory[key]);
function bar(memory, total, name) {
  return h("div", { class: "bar-of-memory", role: "img", "aria-label": `${name}: ${PARTS.map(([key, text]) => `${text} ${tell(bytesOf(memory, key))}`).join(", ")}` },
    PARTS.map(([key], index) => { const part = h("span", { class: `part-${index}` }); part.style.width = `${(100 * Math.max(0, bytesOf(memory, key))) / total}%`; return part; }));
}

export function size(found) {
  const both = found.method ? [[`with ${found.method}`, found.with_drafter], ["without", found.without_drafter]] : [["target", found.without_drafter]];
  const fits = both[0][1].fits;
  const kind = found.findings.some(({ severity }) => severity === "error") || !fits ? "bad" : "good";
  const rows = PARTS.map(([key, text], index) => [[h("span", { class: `swatch part-${index}` }), text], ...both.map(([, memory]) => tell(bytesOf(memory, key)))]);
  const lengths = Object.keys(both[0][1].sequences);
  return [article(
    [badge(kind, fits ? (kind === "bad" ? "rejected" : "fits") : "does not fit"), ` ${found.gpu.name} `, h("code", {}, found.target), h("small", {}, `vLLM ${found.vllm}, ${found.method ?? "no speculation"}`)],
    both.map(([name, memory]) => [h("p", {}, name), bar(memory, found.gpu.memory, name)]),
    table(["memory of each GPU", ...both.map(([name]) => name)], [...rows, ["tokens in the KV cache", ...both.map(([, { kv_tokens }]) => kv_tokens.toLocaleString("en-US"))]]),
    lengths.length ? table(["tokens of a sequence", ...both.map(([name]) => `sequences, ${name}`)], lengths.map((length) => [length, ...both.map(([, { sequences }]) => String(sequences[length] ?? ""))])) : [],
    findings(found.findings))];
}

export function pick(found) {
  const against = found.against.filter(({ weight }) => weight === "decisive").length || !found.ranked.length;
  return [
    article([badge(against ? "bad" : "good", against ? "not recommended" : found.ranked[0].method), ` vLLM ${found.vllm} `, h("code", {}, found.target)], h("p", {}, found.sentence), findings(found.against), findings(found.remarks)),
    ...found.ranked.map((each, index) => article(
      [badge(each.pays ? "good" : "open", each.pays ? "expected to pay" : "not known to pay"), ` ${index + 1}. ${each.method} `, badge(KINDS[each.check.outcome] ?? "open", `check: ${each.check.outcome}`)],
      each.estimate && h("p", {}, `Estimate at ${each.estimate.sequences} sequences, k=${each.estimate.k}: speed-up ${digits(each.estimate.speedup)}`,
        each.estimate.speedup_range && ` (${each.estimate.speedup_range.map((value) => digits(value)).join(" to ")})`,
        `; acceptance ${digits(each.estimate.acceptance_expected)}, needed ${digits(each.estimate.acceptance_needed)}.`),
      each.estimate && h("small", {}, each.estimate.source), command(each.command), findings([...each.reasons, ...each.caveats]), unchecked(each.check.unchecked),
      more("Measure it on your prompts", command(each.measure)))),
    found.refused.length ? article("Not recommended", found.refused.map((each) => section(each.method, findings(each.reasons)))) : [],
  ].flat();
}

export function explain(list, { page } = {}) {
  return list.map((each) => article(
    [h("code", {}, each.name), h("small", {}, each.kind)], h("p", {}, each.text), each.rule?.fix && h("p", { class: "fix" }, `Fix: ${each.rule.fix}`),
    each.history.length ? table(["from", "to", "value", "source"], each.history.map((span) => [span.since, span.until ?? "newest", h("code", {}, shown(span.value)), span.source])) : [],
    page && each.link && h("p", {}, h("a", { href: each.link }, "Page of this finding")),
    each.related.length ? more(`Related rules: ${each.related.length}`, findings(each.related.map((rule) => ({ ...rule, message: rule.title })))) : []));
}

const CARDS = { check, upgrade, size, pick, explain };
export function cards(verb, found, options = {}) { // options.page(code): address of a finding's page, instead of its explanation here
  pageOf = options.page ?? pageOf;
  if (found.error) return [article([badge("bad", "cannot be answered")], findings(found.error))];
  const made = CARDS[verb](found, options);
  return made.length ? made : [article([badge("open", "nothing to judge")], h("p", {}, "No server was found in the text."))];
}
