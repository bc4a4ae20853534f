// node compile.mjs PYODIDE OUT: compiles OUT/site.zip with the interpreter that will run it, and prunes its library.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [pyodide, out] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(join(pyodide, "pyodide.mjs")));
const python = await loadPyodide();
python.FS.writeFile("/site.zip", readFileSync(join(out, "site.zip")));
python.FS.writeFile("/library.zip", readFileSync(join(pyodide, "python_stdlib.zip")));
python.runPython(readFileSync(new URL("prune.py", import.meta.url), "utf8"));
writeFileSync(join(out, "site.zip"), python.FS.readFile("/compiled.zip"));
writeFileSync(join(out, "python_stdlib.zip"), python.FS.readFile("/pruned.zip"));
