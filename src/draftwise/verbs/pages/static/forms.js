// Forms of the verbs that judge: what is typed becomes fields of a request, the answer becomes cards.
// `ask(verb, fields)` returns the answer's JSON as text: a worker's on the site, the server's in `draftwise ui`.
import { badge, cards, h, KINDS } from "./cards.js";

const EXAMPLES = {
  "A command line": `vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 \\\n  --speculative-config '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'`,
  "Compose, three servers": `services:
  chat:
    image: vllm/vllm-openai:v0.19.1
    command: >
      --model meta-llama/Llama-3.1-8B-Instruct
      --speculative-config '{"method":"eagle3","model":"yuhuili/EAGLE3-LLaMA3.1-Instruct-8B","num_speculative_tokens":3}'
  code:
    image: vllm/vllm-openai:v0.33.0
    command: ["--model", "Qwen/Qwen3-8B", "--speculative-config", '{"method":"ngram","num_speculative_tokens":5}']
  old:
    image: vllm/vllm-openai:v0.33.0
    command: ["--model", "Qwen/Qwen3-8B", "--speculative-config", '{"method":"medusa","num_speculative_tokens":5}']
`,
  KServe: `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama-8b}
spec:
  predictor:
    model:
      modelFormat: {name: vLLM}
      runtimeVersion: v0.19.1
      storageUri: hf://meta-llama/Llama-3.1-8B-Instruct
      args:
        - --speculative-config={"method":"ngram","num_speculative_tokens":5}
`,
};
const RELEASES = ["", "The source's, else the newest"];
const number = (name, label, value = "") => ({ name, label, value, type: "number", min: 1 });
const SOURCE = { name: "sources", label: "Command line, compose file, Kubernetes or KServe YAML, or JSON", type: "textarea", value: EXAMPLES["Compose, three servers"] };
const CONFIG = { name: "config", label: "config.json of a model that is not known by its name", type: "textarea", folded: true };
const GPU = { name: "gpu", label: "GPU", list: "gpus", value: "H100-SXM" };
const SPEC = { name: "speculative_config", label: "Speculative config (JSON)", value: '{"method": "ngram", "num_speculative_tokens": 5}', long: true };
const MODEL = { name: "target", label: "Model", value: "Qwen/Qwen3-8B", long: true };
const VLLM = { name: "vllm", label: "vLLM", list: "releases" };
const FORMS = {
  check: [SOURCE, { ...VLLM, empty: RELEASES[1] }, { ...GPU, value: "", empty: "Any, or the source's" }, CONFIG],
  upgrade: [SOURCE, { ...VLLM, name: "before", label: "From vLLM", value: "0.19.1" }, { ...VLLM, name: "after", label: "To vLLM" }, CONFIG],
  size: [MODEL, GPU, VLLM, SPEC, number("tensor_parallel_size", "Tensor parallel size"), number("max_model_len", "Context (tokens)"), number("max_num_seqs", "Sequences"), CONFIG],
  pick: [MODEL, GPU, VLLM, { name: "workload", label: "Traffic", list: "traffic", empty: "Not known" }, number("concurrency", "Requests at once", 8),
    { name: "temperature", label: "Temperature", type: "number", min: 0, step: "any" }, CONFIG],
  explain: [{ name: "name", label: "Code, key, method, flag, or a message of vLLM as pasted", type: "textarea", value: "num_speculative_tokens" }],
};
const OF_SIZE = ["tensor_parallel_size", "pipeline_parallel_size", "quantization", "kv_cache_dtype", "block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "enforce_eager"];

export function start(root, ask, choices, { verbs = Object.keys(FORMS), page } = {}) {
  const given = readLink();
  const values = { ...given };
  let verb = verbs.includes(given.verb) ? given.verb : verbs[0];
  let latest = 0, due;
  const state = h("p", { role: "status", class: "state" }), form = h("form", { "aria-label": "Request" }), answer = h("section", { "aria-label": "Answer" });
  const tabs = h("nav", { "aria-label": "Verbs" }, verbs.map((name) => h("button", { type: "button", "data-verb": name, onclick: () => { verb = name; show(); judge(); } }, name)));
  root.replaceChildren(tabs, h("div", { class: "sides" }, form, h("div", {}, state, answer)));

  function field(each) {
    const id = `field-${each.name}`, value = values[each.name] ?? each.value ?? "";
    let input;
    if (each.list) input = h("select", { id, name: each.name }, [...(each.empty ? [["", each.empty]] : []), ...choices[each.list].map((one) => [one, one])].map(([own, text]) => h("option", { value: own }, text)));
    else if (each.type === "textarea") input = h("textarea", { id, name: each.name, spellcheck: "false", rows: each.folded ? 6 : 15 });
    else input = h("input", { id, name: each.name, type: each.type ?? "text", min: each.min, step: each.step, class: each.long && "long" });
    if (!each.list || [...input.options].some((one) => one.value === value)) input.value = value;
    const labelled = h("p", { class: each.type === "textarea" || each.long ? "field long" : "field" }, h("label", { for: id }, each.label), input);
    return each.folded ? h("details", { open: Boolean(value) }, h("summary", {}, each.label), labelled) : labelled;
  }
  function show() {
    for (const each of tabs.children) each.setAttribute("aria-pressed", String(each.dataset.verb === verb));
    const examples = h("select", { id: "examples" }, h("option", { value: "" }, "Choose"), Object.keys(EXAMPLES).map((name) => h("option", {}, name)));
    examples.addEventListener("change", () => { if (examples.value) { form.elements.sources.value = EXAMPLES[examples.value]; judge(); } });
    form.replaceChildren(...(FORMS[verb][0] === SOURCE ? [h("p", { class: "field" }, h("label", { for: "examples" }, "Example"), examples)] : []), ...FORMS[verb].map(field));
  }
  function read() {
    const fields = {};
    for (const each of FORMS[verb]) {
      const typed = form.elements[each.name].value;
      values[each.name] = typed;
      if (typed.trim() !== "") fields[each.name] = each.type === "number" ? Number(typed) : typed;
    }
    return fields;
  }
  const link = (fields) => `#${encodeURIComponent(JSON.stringify({ verb, ...fields }))}`;

  async function judge() {
    clearTimeout(due);
    const mine = ++latest, asked = verb, fields = read(), began = performance.now();
    history.replaceState(null, "", link(fields));
    let text;
    try { text = await ask(asked, fields); } catch (error) { text = JSON.stringify({ error: [{ code: "no-answer", severity: "error", message: String(error), url: "#" }] }); }
    if (mine !== latest) return;
    const found = JSON.parse(text), strips = [];
    answer.replaceChildren(...cards(asked, found, { page, releases: asked === "check" && ((_, index) => (strips[index] = h("div", { class: "releases", role: "group", "aria-label": "By release" }))) }));
    const took = performance.now() - began;
    state.textContent = `${asked}: ${Math.max(1, Math.round(took))} ms.`;
    performance.mark("verdict", { detail: took });
    if (asked === "check" && !found.error && found.length) await details(mine, found, fields, strips);
  }
  async function details(mine, found, fields, strips) { // the same setups on every release, one by one, so that typing is not held up; then memory
    await new Promise((done) => setTimeout(done, 400));
    if (mine !== latest) return;
    strips.forEach((strip) => strip.replaceChildren(h("span", {}, "On each release: ")));
    for (const release of [...choices.releases].reverse()) {
      if (mine !== latest) return;
      const judged = JSON.parse(await ask("check", { ...fields, vllm: release }));
      if (mine !== latest) return;
      strips.forEach((strip, index) => {
        const outcome = judged.length === found.length ? judged[index].outcome : "not judged";
        strip.append(h("button", { type: "button", class: `release ${KINDS[outcome] ?? "open"}`, title: `${release}: ${outcome}`, "aria-label": `vLLM ${release}: ${outcome}`,
          onclick: () => { form.elements.vllm.value = release; judge(); } }, release));
      });
    }
    for (const [index, each] of found.entries()) {
      if (!fields.gpu || mine !== latest || !strips[index] || !each.target) continue;
      const args = Object.fromEntries(OF_SIZE.filter((name) => name in each.args).map((name) => [name, each.args[name]]));
      const sized = JSON.parse(await ask("size", { target: each.target, config: fields.config, gpu: fields.gpu, vllm: each.vllm, speculative_config: each.speculative_config, ...args }));
      if (mine === latest) strips[index].after(h("details", {}, h("summary", {}, sized.error ? [badge("open", "memory not known")] : `Memory on ${sized.gpu.name}`), cards("size", sized, { page })));
    }
    answer.dataset.complete = "";
  }
  form.addEventListener("input", ({ target }) => { if (target.id !== "examples") { clearTimeout(due); due = setTimeout(judge, 250); } });
  form.addEventListener("submit", (event) => { event.preventDefault(); judge(); });
  addEventListener("hashchange", () => { const other = readLink(); if (verbs.includes(other.verb)) { Object.assign(values, other); verb = other.verb; show(); judge(); } });
  show();
  return judge();
}

export function readLink() {
  try {
    const read = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
    return Object.fromEntries(Object.entries(read).filter(([, value]) => ["string", "number"].includes(typeof value)));
  } catch { return {}; }
}
