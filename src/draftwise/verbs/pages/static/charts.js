// Charts drawn for the width that is there: {title, x: "log" | "linear" | "time" | "rows", xLabel, yLabel, series, marker}.
// series: [{name, points: [{x, y, low, high, label, href}]}]. A point that lies at or below 1 does not pay. In "rows", x is a name.
import { h, table } from "./cards.js";

const COLORS = ["#2f74d0", "#d9822b", "#2f9e62", "#b0519c", "#8a6d3b", "#c0504d", "#5f7f8c", "#7a5bd0"];
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const svg = (tag, given, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(given)) if (value !== null && value !== undefined) made.setAttribute(name, value);
  made.append(...children.flat());
  return made;
};
const known = ({ low, high }) => Number.isFinite(low) && Number.isFinite(high);
const short = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : String(+value.toPrecision(3)));

export function chart(figure, given) {
  const draw = () => figure.replaceChildren(h("figcaption", {}, given.title), (given.x === "rows" ? paintRows : paint)(given, Math.max(260, figure.clientWidth)), legend(given), numbers(given));
  new ResizeObserver(([{ contentRect }]) => { if (Math.abs(contentRect.width - (figure.drawnWidth ?? 0)) > 1) { figure.drawnWidth = contentRect.width; draw(); } }).observe(figure);
  draw();
}

function paint({ title, x: kind, xLabel, yLabel, series, marker, dots }, width) {
  const height = Math.min(360, Math.max(220, width * 0.5)), left = 46, right = width - 14, top = 22, bottom = height - 40;
  const at = kind === "time" ? (value) => Date.parse(value) : kind === "log" ? (value) => Math.log2(Math.max(value, 1e-6)) : Number;
  const points = series.flatMap((each) => each.points);
  const xs = points.map((each) => at(each.x)), ys = [1, ...points.flatMap((each) => (known(each) ? [each.y, each.low, each.high] : [each.y]))];
  const [x0, x1] = spread(Math.min(...xs), Math.max(...xs)), [y0, y1] = spread(Math.min(...ys), Math.max(...ys), 0.06);
  const px = (value) => left + ((at(value) - x0) / (x1 - x0)) * (right - left), py = (value) => bottom - ((value - y0) / (y1 - y0)) * (bottom - top);
  const parts = [svg("line", { x1: left, x2: right, y1: py(1), y2: py(1), class: "even" })];
  for (const value of steps(y0, y1)) parts.push(svg("line", { x1: left, x2: right, y1: py(value), y2: py(value), class: "rule" }), svg("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end" }, `${short(value)}×`));
  const label = (value) => Math.min(px(value), right - (kind === "time" ? 34 : 12));
  for (const value of marks(kind, kind === "linear" ? steps(x0, x1) : points.map((each) => each.x), label)) parts.push(svg("text", { x: label(value), y: bottom + 17, "text-anchor": "middle" }, kind === "time" ? value : short(value)));
  parts.push(svg("text", { x: right, y: height - 5, "text-anchor": "end" }, xLabel), svg("text", { x: 4, y: 13 }, yLabel));
  series.forEach(({ points: own }, index) => {
    const stroke = COLORS[index % COLORS.length], dash = DASHES[Math.floor(index / COLORS.length) % DASHES.length];
    const banded = own.filter(known);
    if (banded.length > 1 && !dots) parts.push(svg("path", { d: `M${banded.map((each) => `${px(each.x)},${py(each.high)}`).join("L")}L${[...banded].reverse().map((each) => `${px(each.x)},${py(each.low)}`).join("L")}Z`, fill: stroke, "fill-opacity": 0.15 }));
    else for (const each of banded) parts.push(svg("line", { x1: px(each.x), x2: px(each.x), y1: py(each.low), y2: py(each.high), stroke, "stroke-opacity": 0.5 }));
    if (own.length > 1) parts.push(svg("path", { d: `M${own.map((each) => `${px(each.x)},${py(each.y)}`).join("L")}`, fill: "none", stroke, "stroke-width": 2, "stroke-dasharray": dash || null }));
    for (const each of own) parts.push(svg("circle", { cx: px(each.x), cy: py(each.y), r: 3.5, fill: stroke }, svg("title", {}, `${each.label ?? ""} ${short(each.y)}×`)));
  });
  if (marker !== undefined) parts.push(svg("line", { x1: px(marker), x2: px(marker), y1: top, y2: bottom, class: "marker" }));
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title }, parts);
}
const spread = (low, high, share = 0.02) => (high > low ? [low - (high - low) * share, high + (high - low) * share] : [low - 0.5, high + 0.5]);
function steps(low, high) {
  const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50].find((each) => (high - low) / each <= 6) ?? 100;
  return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, index) => (Math.ceil(low / step) + index) * step);
}
function marks(kind, values, px) { // those whose labels do not touch
  const all = [...new Set(values.map((each) => (kind === "time" ? String(each).slice(0, 10) : each)))].sort((a, b) => px(a) - px(b));
  let last = -Infinity;
  return all.filter((each) => px(each) - last >= 76 && ((last = px(each)), true));
}
function paintRows({ title, series }, width) { // one line for each series of each name
  const names = [...new Set(series.flatMap(({ points }) => points.map((each) => each.x)))], left = 12, right = width - 12, parts = [];
  const [x0, x1] = spread(...((all) => [Math.min(...all), Math.max(...all)])([1, ...series.flatMap(({ points }) => points.flatMap((each) => (known(each) ? [each.y, each.low, each.high] : [each.y])))]), 0.08);
  const px = (value) => left + ((value - x0) / (x1 - x0)) * (right - left);
  let y = 4;
  for (const name of names) {
    parts.push(svg("text", { x: 0, y: (y += 16) }, name));
    for (const [index, { points }] of series.entries()) for (const each of points.filter(({ x }) => x === name)) {
      const stroke = COLORS[index % COLORS.length];
      y += 20;
      if (known(each)) parts.push(svg("line", { x1: px(each.low), x2: px(each.high), y1: y, y2: y, stroke, "stroke-width": 3, "stroke-opacity": 0.5 }));
      parts.push(svg("circle", { cx: px(each.y), cy: y, r: 5, fill: stroke }, svg("title", {}, each.label)), svg("text", { x: px(each.y), y: y - 8, "text-anchor": px(each.y) > right - 24 ? "end" : "middle" }, `${short(each.y)}×`));
    }
    y += 8;
  }
  for (const value of marks("rows", steps(x0, x1), px)) parts.unshift(svg("line", { x1: px(value), x2: px(value), y1: 4, y2: y, class: "rule" })), parts.push(svg("text", { x: px(value), y: y + 16, "text-anchor": "middle" }, `${short(value)}×`));
  parts.unshift(svg("line", { x1: px(1), x2: px(1), y1: 4, y2: y, class: "even" }));
  return svg("svg", { width, height: y + 22, viewBox: `0 0 ${width} ${y + 22}`, role: "img", "aria-label": title }, parts);
}
const legend = ({ series }) => h("ul", { class: "legend" }, series.map(({ name }, index) => { const swatch = h("span", { class: "swatch" }); swatch.style.background = COLORS[index % COLORS.length]; return h("li", {}, swatch, name); }));
const numbers = ({ xLabel, yLabel, series }) => h("details", {}, h("summary", {}, "As numbers"), table(["series", xLabel || "time", yLabel, "interval"], series.flatMap(({ name, points }) => points.map((each) => [
  name, String(each.x), each.href ? h("a", { href: each.href }, `${short(each.y)}×`) : `${short(each.y)}×`, known(each) ? `${short(each.low)} to ${short(each.high)}` : ""]))));
