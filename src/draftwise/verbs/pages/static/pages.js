// What the pages of `draftwise ui` do after they are shown.
import { badge, findings, h, table } from "./cards.js";
import { chart } from "./charts.js";
import { start } from "./forms.js";

const token = document.querySelector("meta[name=csrf-token]").content;
async function post(address, fields = {}) {
  const answer = await fetch(address, { method: "POST", headers: { "content-type": "application/json", "x-csrf-token": token }, body: JSON.stringify(fields) });
  const text = await answer.text();
  if (!answer.ok) throw new Error(JSON.parse(text).error || answer.statusText);
  return text;
}

for (const each of document.querySelectorAll("[data-chart]")) chart(each, JSON.parse(each.dataset.chart));
const forms = document.getElementById("forms");
if (forms) start(forms, (verb, fields) => post(`/api/answer/${verb}`, fields), JSON.parse(forms.dataset.choices));

const digits = (value) => (typeof value === "number" ? +value.toPrecision(4) : value ?? "unknown");
const SHARES = new Set(["kv_usage", "coverage", "prefix_hit_rate", "decode_share"]);
const unit = (name) => (name.endsWith("_per_s") ? " per second" : name.endsWith("_s") ? " s" : "");
const reading = (name, value) => [name.replace(/(_per)?_s$/, "").replaceAll("_", " "), SHARES.has(name) ? `${digits(100 * value)} %` : `${digits(value)}${unit(name)}`];
function look(found) { // one look of `watch`
  const looked = new Date(found.at_s * 1000).toLocaleTimeString();
  const rows = found.pools.map((pool) => Object.entries(pool).filter(([name, value]) => ["number", "string", "boolean"].includes(typeof value) && name !== "start_s").map((each) => reading(...each)));
  return [h("h2", {}, found.findings.some(({ severity }) => severity !== "info") ? badge("bad", "something is wrong") : badge("good", "nothing found"), h("small", {}, looked)),
    findings(found.findings), rows.map((row) => table(["what", "value"], row)), found.unanswered.map((each) => h("p", { class: "open" }, each))];
}
for (const form of document.querySelectorAll("form[data-start]")) {
  const verb = form.dataset.start, shown = document.querySelector("[data-job]"), stop = form.querySelector("[data-stop]");
  const begin = form.querySelector("button:not([data-stop])");
  const state = h("p", { class: "state" }), answer = h("article", {});
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const fields = {};
    for (const each of form.elements) if (each.name) fields[each.name] = "lines" in each.dataset ? each.value.split("\n").map((line) => line.trim()).filter(Boolean) : each.type === "number" ? Number(each.value) : each.value;
    let started;
    shown.replaceChildren(state, answer);
    try { started = JSON.parse(await post(`/api/start/${verb}`, fields)); } catch (error) { state.textContent = String(error.message); return; }
    if (started.error) { answer.replaceChildren(...[findings(started.error)].flat()); return; }
    state.textContent = "Started.";
    begin.disabled = true;
    stop.hidden = false;
    stop.onclick = () => { state.textContent = "Stopping."; post(`/api/jobs/${started.job}/stop`); };
    const events = new EventSource(`/api/jobs/${started.job}/events`);
    events.onmessage = ({ data }) => {
      const { kind, value } = JSON.parse(data);
      if (kind === "status") state.textContent = value;
      if (kind === "progress") state.textContent = `${value.done} done${value.seconds_left === null ? "" : `, ${Math.round(value.seconds_left)} s left`}. ${value.text}`;
      if (kind === "notice") shown.append(...[findings([value])].flat());
      if (kind === "update" && verb === "watch") answer.replaceChildren(...look(value).flat(3));
      if (kind === "error") answer.replaceChildren(...[findings(value)].flat());
      if (kind === "done") {
        events.close();
        begin.disabled = false;
        stop.hidden = true;
        state.textContent = value ? "Stopped." : "Done.";
        if (verb === "report" && !answer.childElementCount) location.reload();
      }
    };
  });
}

const asked = document.getElementById("forecast");
if (asked) {
  const sliders = document.getElementById("sliders"), found = document.getElementById("forecast-found"), figure = document.querySelector("figure"), state = document.querySelector(".state");
  let made, latest = 0, due;
  const at = (name) => sliders.elements[name];
  const choices = () => ({ setting: [...new Set(made.cells.map((each) => each.setting))], temperature: numbers("temperature"), k: numbers("k", (each) => each.setting === chosen("setting")), load: numbers("load") });
  const numbers = (name, fits = () => true) => [...new Set(made.cells.filter(fits).map((each) => each[name]))].sort((a, b) => a - b);
  const chosen = (name) => { const all = choices0[name]; return all[Math.min(all.length - 1, Math.round(Number(at(name).value)))]; };
  let choices0 = {};
  function show() {
    choices0 = { ...choices0, setting: [...new Set(made.cells.map((each) => each.setting))] };
    choices0 = choices();
    for (const name of ["setting", "temperature", "k", "load"]) {
      Object.assign(at(name), { min: 0, max: Math.max(0, choices0[name].length - 1), step: 1 });
      sliders.querySelector(`output[for=${name}]`).textContent = digits(chosen(name));
      at(name).setAttribute("aria-valuetext", String(digits(chosen(name))));
    }
    sliders.querySelector("output[for=prompt_tokens]").textContent = Math.round(at("prompt_tokens").value);
    const fits = (each) => each.setting === chosen("setting") && each.temperature === chosen("temperature") && each.group === null;
    const own = made.cells.filter((each) => fits(each) && each.k === chosen("k")).sort((a, b) => a.load - b.load), here = own.find((each) => each.load === chosen("load"));
    const crossing = made.crossovers.find((each) => fits(each) && each.k === chosen("k"));
    const kind = here && { pays: "good", "does not pay": "bad" }[here.verdict];
    found.replaceChildren(h("p", {}, here ? badge(kind ?? "open", `${here.verdict}: ${here.speedup.value.toFixed(2)}× (${here.speedup.low.toFixed(2)} to ${here.speedup.high.toFixed(2)})`) : badge("open", "not forecast"),
      crossing && (crossing.value !== null ? ` Stops paying at about ${digits(crossing.value)} requests in flight.`
        : own.every((each) => each.speedup.value > 1) ? " Pays at every load that was looked at." : own.every((each) => each.speedup.value <= 1) ? " Pays at no load that was looked at." : " Where it stops paying is too close to say.")), ...[findings(made.findings)].flat());
    figure.hidden = false;
    chart(figure, { title: `Speed-up of ${chosen("setting")} by load, 90 % intervals`, x: "log", xLabel: "requests in flight", yLabel: "speed-up", marker: here?.load,
      series: [{ name: `k=${chosen("k")}`, points: own.map((each) => ({ x: each.load, y: each.speedup.value, low: each.speedup.low, high: each.speedup.high, label: each.verdict })) }] });
  }
  async function ask(context) {
    const mine = ++latest;
    const fields = { profile: asked.elements.profile.value, calibration: asked.elements.calibration.value, ...(context && { prompt_tokens: context }) };
    state.textContent = "Forecasting.";
    let answer;
    try { answer = JSON.parse(await post("/api/forecast", fields)); } catch (error) { state.textContent = error.message; return; }
    if (mine !== latest) return;
    state.textContent = "";
    if (answer.error) { found.replaceChildren(...[findings(answer.error)].flat()); sliders.hidden = figure.hidden = true; return; }
    made = answer;
    if (!context) { Object.assign(at("prompt_tokens"), { min: 1, max: Math.max(32768, made.traffic.prompt_tokens * 4), step: 1 }); at("prompt_tokens").value = made.traffic.prompt_tokens; for (const name of ["setting", "temperature", "k", "load"]) at(name).value = 0; }
    sliders.hidden = false;
    show();
  }
  asked.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  sliders.addEventListener("submit", (event) => event.preventDefault());
  sliders.addEventListener("input", ({ target }) => { show(); if (target.name === "prompt_tokens") { clearTimeout(due); due = setTimeout(() => ask(Number(target.value)), 120); } });
}
