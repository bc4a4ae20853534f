// The playground: the forms of `draftwise ui`, answered by an interpreter in a worker.
import { start } from "./forms.js";

const root = document.getElementById("playground");
const worker = new Worker("worker.js", { type: "module" });
const waiting = [];
const next = () => new Promise((done, failed) => waiting.push([done, failed]));
worker.onmessage = ({ data }) => waiting.shift()[0](data); // one interpreter answers in the order of the questions
worker.onerror = ({ message }) => { root.textContent = `Python did not start: ${message}`; };
const ask = (verb, fields) => { worker.postMessage([verb, fields]); return next(); };

const opened = await next();
if (opened.error) root.textContent = `Python did not start: ${opened.error}`;
else await start(root, ask, opened.choices, { page: (code) => `../findings/${code}/` });
