// One interpreter: [verb, fields] in, the answer's JSON as text out.
import { loadPyodide } from "./pyodide.mjs";

const get = (name) => fetch(name).then((answer) => (answer.ok ? answer.arrayBuffer() : Promise.reject(new Error(`${name}: ${answer.status}`))));

async function open() {
  const site = get("site.zip");
  const python = await loadPyodide({ env: { HOME: "/home/pyodide" } });
  python.unpackArchive(new Uint8Array(await site), "zip", { extractDir: "/lib/python3.14/site-packages" });
  const { answer, list_choices } = python.pyimport("draftwise.verbs.pages.answers");
  const { dumps } = python.pyimport("json");
  const listed = list_choices();
  const choices = JSON.parse(dumps(listed));
  listed.destroy();
  return { python, answer, choices };
}

const opened = open();
opened.then(({ choices }) => postMessage({ choices }), (error) => postMessage({ error: String(error) }));

onmessage = async ({ data: [verb, fields] }) => {
  const { python, answer } = await opened;
  const given = python.toPy(fields);
  let text;
  try { text = answer(verb, given); } catch (error) { text = JSON.stringify({ error: [{ code: "fault", severity: "error", message: String(error), fix: "Report it with what you typed.", url: "#" }] }); }
  given.destroy();
  postMessage(text);
};
