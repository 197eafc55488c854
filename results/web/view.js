"use strict";
/* The view of attention. Settings → values of the chosen heads → what of them is shown → a list of shapes, which is
   painted on the canvas, or written as SVG. `view.drawing` is that list as it was painted last. */
const COLOURS = 8;      // heads over each other
const NUMBERS = 12;     // rows of the table of a word
const HEADER = 30;      // height of the legend
const FONT = "system-ui, sans-serif";
const DEFAULTS = {
  text: 0, heads: "", drawing: "lines", delimiters: "shown", pieces: false, threshold: 10, top: 0, scale: "own", size: 0,
  arcs: "forward", clusters: true, saliency: "", direction: "from", word: -1, together: "each",
};
const given = page.json("view");
if (given.texts.some(one => one.sink)) DEFAULTS.delimiters = "renormalised";
const view = { ...given, state: { ...DEFAULTS }, chosen: [], hover: null, shown: null, drawing: null, decoded: new Map(), joined: {} };
const by = id => document.getElementById(id);
const text = () => view.texts[view.state.text];
const grid = () => text().grids[view.state.pieces ? "pieces" : "words"];
const heads = () => text().heads.length;
const nameOf = place => `${text().layers[Math.floor(place / heads())]}-${text().heads[place % heads()]}`;

/* Numbers ------------------------------------------------------------------------------------------------------- */

/** A value with its first digits; shares without the leading zero, as .31. */
function written(value, digits = 2) {
  if (text().unit !== "fraction") return Number(value.toPrecision(digits + 1)).toString();
  return value.toFixed(digits).replace(/^0\./, ".");
}

function percent(share) { return `${(100 * share).toFixed(1)} %`; }

function counted(number) { return number.toLocaleString("en"); }

/** The values of a head, `from` times `to`, decoded once and kept as long as few are. */
async function values(place, of = grid()) {
  const key = `${of.id}-${place}`;
  if (!view.decoded.has(key)) {
    const top = of.tops[place];
    const codes = new Uint8Array(await page.unpacked(key));
    const meant = Float32Array.from({ length: 256 }, (_, code) => top * (code / 255) ** 2);
    view.decoded.set(key, Float32Array.from(codes, code => meant[code]));
    if (view.decoded.size > 32) view.decoded.delete(view.decoded.keys().next().value);
  }
  return view.decoded.get(key);
}

/** Mean or maximum of the chosen heads; the last one is kept, for the next step of a slider. */
async function joined(places, kind) {
  const of = grid(), key = `${of.id} ${kind} ${places}`; // read once: while heads are decoded another text may be chosen
  if (view.joined.key === key) return view.joined.values;
  const found = new Float32Array(of.names.length ** 2);
  for (const place of places) {
    const one = await values(place, of);
    if (kind === "max") one.forEach((value, at) => { if (value > found[at]) found[at] = value; });
    else one.forEach((value, at) => { found[at] += value / places.length; });
  }
  view.joined = { key, values: found };
  return found;
}

/** The matrices to draw, whole: each with its name and the number of its colour. */
async function matrices() {
  const places = view.chosen;
  if (places.length > 1 && view.state.together !== "each") {
    const name = view.state.together === "max" ? "maximum" : "mean";
    return [{ name: `${name} of ${places.length}`, colour: 0, whole: await joined(places, view.state.together) }];
  }
  const found = [];
  for (const place of places.slice(0, COLOURS)) {
    found.push({ name: nameOf(place), colour: found.length, place, whole: await values(place) });
  }
  return found;
}

/** Positions that are shown: without delimiters where these are hidden. */
function visible() {
  const hidden = new Set(view.state.delimiters === "shown" ? [] : text().delimiters);
  const { of } = grid();
  return of.map((_, at) => at).filter(at => !hidden.has(of[at]));
}

/** Give a matrix its `values` between visible positions, what of them is `kept`, and shares of its sum. */
function filter(matrix, positions, threshold, most) {
  const n = grid().names.length, m = positions.length;
  const found = new Float32Array(m * m), kept = new Uint8Array(m * m);
  let whole = 0, inside = 0, shown = 0, all = 0, count = 0;
  for (let row = 0; row < m; row++) {
    let sum = 0, rest = 0;
    for (let column = 0; column < n; column++) sum += matrix.whole[positions[row] * n + column];
    for (let column = 0; column < m; column++) rest += found[row * m + column] = matrix.whole[positions[row] * n + positions[column]];
    const factor = view.state.delimiters === "renormalised" ? (rest > 0 ? 1 / rest : 0) : 1;
    whole += sum; inside += rest; all += rest * factor;
    for (let column = 0; column < m; column++) found[row * m + column] *= factor;
    for (const column of chosenOfRow(found.subarray(row * m, row * m + m), threshold, most)) {
      kept[row * m + column] = 1;
      shown += found[row * m + column];
      count++;
    }
  }
  return Object.assign(matrix, { values: found, kept, count, delimiters: whole ? 1 - inside / whole : 0, share: all ? shown / all : 0, inside: whole ? inside / whole : 0 });
}

/** Columns of a row from the threshold on; at most so many, the greatest, of equal ones the first. */
function chosenOfRow(row, threshold, most) {
  const columns = [];
  row.forEach((value, column) => { if (value > 0 && value >= threshold) columns.push(column); });
  if (!most || columns.length <= most) return columns;
  return columns.sort((a, b) => row[b] - row[a] || a - b).slice(0, most);
}

/** The value that the slider stands for: finer for small ones. */
function threshold() { return Math.fround(Math.max(...grid().tops) * (view.state.threshold / 100) ** 2); } // as the values

/** Arcs between visible positions as indices; of a word in pieces its first. */
function arcs(positions) {
  if (view.state.arcs === "off") return [];
  const place = new Map();
  positions.forEach((position, at) => { const word = grid().of[position]; if (!place.has(word)) place.set(word, at); });
  return text().arcs
    .map(([from, to, label]) => view.state.arcs === "reversed" ? { from: to, to: from, label } : { from, to, label })
    .filter(arc => place.has(arc.from) && place.has(arc.to))
    .map(arc => ({ ...arc, words: [arc.from, arc.to], from: place.get(arc.from), to: place.get(arc.to) }));
}

/** Of how many arcs the greatest value of the row lies at the arc's end. */
function hits(matrix, found, positions) {
  const m = positions.length;
  return found.filter(({ from, words }) => {
    const row = matrix.values.subarray(from * m, from * m + m);
    const best = row.reduce((best, value, at) => value > row[best] ? at : best, 0);
    return row[best] > 0 && grid().of[positions[best]] === words[1];
  }).length;
}

let turn = 0;
/** Compute what is shown anew, and draw it; a later call overtakes an earlier one. */
async function update() {
  const mine = ++turn;
  const found = await matrices();
  if (mine !== turn) return;
  const positions = visible();
  for (const matrix of found) filter(matrix, positions, threshold(), view.state.top);
  const greatest = view.state.scale === "all" ? Math.max(...grid().tops) : Math.max(...found.map(one => one.values.reduce((a, b) => Math.max(a, b), 0)));
  view.shown = { matrices: found, positions, m: positions.length, greatest: greatest || 1, arcs: arcs(positions) };
  tell();
  render();
  remember();
  document.documentElement.dataset.drawn = String(mine);
}

/* Shapes -------------------------------------------------------------------------------------------------------- */

/** Colours of the theme, as they are now. */
function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = name => style.getPropertyValue(`--${name}`).trim();
  return {
    paper: read("paper"), ink: read("ink"), muted: read("muted"), line: read("line"), gold: read("gold"),
    above: `rgb(${read("above")})`, below: `rgb(${read("below")})`,
    heads: Array.from({ length: COLOURS }, (_, at) => read(`h${at}`)),
  };
}

/** Red, green and blue of `#rrggbb`. */
function channels(colour) { return [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16)); }

/** 0 … 1, in 32 steps, of a share of the greatest value: the share itself for lines, which lie over each other; its
    square root for cells, where small values would not be seen. */
function shade(share) {
  const found = view.state.drawing === "lines" ? share : Math.sqrt(share);
  return Math.ceil(32 * Math.min(1, found)) / 32;
}

const measuring = document.createElement("canvas").getContext("2d");
function widthOf(label, size) {
  measuring.font = `${size}px ${FONT}`;
  return measuring.measureText(label).width;
}

/** A label that is no wider than this. */
function cut(label, size, width) {
  if (widthOf(label, size) <= width) return label;
  const letters = Array.from(label);
  while (letters.length > 1 && widthOf(`${letters.join("")}…`, size) > width) letters.pop();
  return `${letters.join("")}…`;
}

function labels() { return view.shown.positions.map(position => grid().names[position]); }

/** The word that is pointed at, or held, as an index among those shown; null without. */
function focused() {
  const { position, direction } = view.hover ?? { position: view.state.word, direction: view.state.direction };
  const at = view.shown.positions.indexOf(position);
  return at < 0 ? null : { at, direction };
}

/** Where everything lies, for the width and the scrolling of the stage. */
function frame() {
  const stage = by("stage"), { m } = view.shown, matrix = view.state.drawing === "matrix";
  const width = Math.max(260, stage.clientWidth);
  const bars = view.state.clusters && text().clusters.length ? 10 : 0;
  const margin = Math.min(matrix ? 120 : Math.floor(width * .28), Math.max(24, ...labels().map(label => Math.ceil(widthOf(label, 13))))) + 14 + bars;
  const fitting = Math.min(28, Math.max(2, Math.floor((width - margin - 8) / m)));
  const size = view.state.size || (matrix ? fitting : m > 45 ? 17 : 22);
  const font = Math.max(9, Math.min(13, Math.floor(size * .72)));
  const across = matrix ? margin + m * size + 8 : Math.min(width, 760);
  const top = HEADER + (matrix ? margin : 6);
  const down = top + m * size + 8;
  const most = Math.max(420, Math.round(innerHeight * .8));
  const height = m <= 60 ? down : Math.min(down, most);
  return {
    matrix, m, size, font, margin, bars, top, across, down, width: Math.min(width, across), height, every: Math.ceil(12 / size),
    left: Math.min(stage.scrollLeft, Math.max(0, across - width)), scroll: Math.min(stage.scrollTop, Math.max(0, down - height)),
  };
}

/** First and last index whose row (or column) can be seen. */
function span(f, along) {
  const from = along === "x" ? f.left : f.scroll, room = along === "x" ? f.width - f.margin : f.height - f.top;
  return [Math.max(0, Math.floor(from / f.size)), Math.min(f.m - 1, Math.floor((from + room) / f.size))];
}

const rowAt = (f, row) => f.top + row * f.size - f.scroll;
const columnAt = (f, column) => f.margin + column * f.size - f.left;

function compose() {
  const f = frame(), colours = palette(), focus = focused();
  const items = f.matrix ? composeMatrix(f, colours, focus) : composeLines(f, colours, focus);
  return { frame: f, paper: colours.paper, width: f.width, height: f.height, items: [...items, ...legend(f, colours)] };
}

/** Whether a value is drawn when only a row or column is looked at. */
function inFocus(focus, row, column) {
  return !focus || (focus.direction === "from" ? row : column) === focus.at;
}

/** Two columns of words, and a line for each value. */
function composeLines(f, colours, focus) {
  const { matrices, m, arcs } = view.shown;
  const [first, last] = span(f, "y"), seen = at => at >= first && at <= last;
  const start = f.margin, end = f.width - f.margin, names = labels();
  const middle = row => rowAt(f, row) + f.size / 2;
  const lines = [];
  matrices.forEach((matrix, place) => {
    const shift = (place - (matrices.length - 1) / 2) * Math.min(3, f.size / (matrices.length + 1));
    for (let at = 0; at < m * m; at++) {
      if (!matrix.kept[at]) continue;
      const from = Math.floor(at / m), to = at % m;
      if (!inFocus(focus, from, to) || !(seen(from) || seen(to))) continue;
      const value = matrix.values[at], alpha = shade(value / view.shown.greatest);
      lines.push({ kind: "line", class: "weight", x1: start, y1: middle(from) + shift, x2: end, y2: middle(to) + shift, stroke: colours.heads[matrix.colour], alpha, width: .5 + 2.5 * alpha, head: matrix.name, from, to, value });
    }
  });
  lines.sort((a, b) => a.value - b.value);
  const gold = arcs.filter(arc => inFocus(focus, arc.from, arc.to) && (seen(arc.from) || seen(arc.to)))
    .map(arc => ({ kind: "line", class: "gold", x1: start, y1: middle(arc.from), x2: end, y2: middle(arc.to), stroke: colours.gold, alpha: .9, width: 1.3, dash: "5 4", ...arc }));
  const words = [];
  for (let at = first; at <= last; at++) {
    for (const side of ["from", "to"]) {
      const left = side === "from", bold = focus?.at === at && focus.direction === side;
      if (at % f.every && !bold) continue;
      words.push(...marks(f, colours, at, left ? 0 : end + 3, middle(at), f.margin - 3, left));
      words.push({ kind: "text", x: left ? start - 6 - f.bars : end + 6 + f.bars, y: middle(at), text: cut(names[at], f.font, f.margin - 10 - f.bars), fill: colours.ink, anchor: left ? "end" : "start", size: f.font, bold, word: at });
    }
  }
  return [{ kind: "group", x: 0, y: f.top, width: f.width, height: f.height - f.top, items: [...lines, ...gold, ...words, ...numbersOnLines(f, colours, focus, middle)] }];
}

/** The values of the word in focus, beside the words at the other ends. */
function numbersOnLines(f, colours, focus, middle) {
  if (!focus || f.size < 9) return [];
  const { matrices, m } = view.shown, outgoing = focus.direction === "from";
  return matrices.flatMap((matrix, place) => Array.from({ length: m }, (_, other) => {
    const at = outgoing ? focus.at * m + other : other * m + focus.at;
    if (!matrix.kept[at]) return null;
    const x = outgoing ? f.width - f.margin - 4 - 30 * (matrices.length - 1 - place) : f.margin + 4 + 30 * place;
    return { kind: "text", class: "number", x, y: middle(other), text: written(matrix.values[at]), fill: colours.ink, anchor: outgoing ? "end" : "start", size: Math.min(11, f.font), halo: colours.paper };
  }).filter(Boolean));
}

/** What is known of a word beside its attention: saliency behind it, clusters at its edge. */
function marks(f, colours, at, x, y, width, left) {
  const position = grid().of[view.shown.positions[at]], items = [];
  const saliency = text().saliency[view.state.saliency];
  if (saliency?.[position]) {
    const share = saliency[position] / Math.max(...saliency.map(Math.abs));
    items.push({ kind: "rect", class: "saliency", x, y: y - f.size / 2, width, height: f.size, fill: share > 0 ? colours.above : colours.below, alpha: .45 * Math.abs(share) });
  }
  clustersOf(position).slice(0, 3).forEach((cluster, place) => {
    const edge = left ? x + width - 3 - 4 * place : x + 4 * place;
    items.push({ kind: "rect", class: "cluster", x: edge, y: y - f.size / 2, width: 3, height: f.size, fill: colours.heads[cluster % COLOURS], alpha: 1 });
  });
  return items;
}

/** Numbers of the clusters that a position stands in. */
function clustersOf(position) {
  if (!view.state.clusters) return [];
  return text().clusters.flatMap((spans, number) => spans.some(([first, last]) => first <= position && position < last) ? [number] : []);
}

/** A matrix of cells with words at two sides; of several heads each cell is cut into stripes. */
function composeMatrix(f, colours, focus) {
  const [top, bottom] = span(f, "y"), [first, last] = span(f, "x");
  const inside = [cells(f, colours, focus, [top, bottom], [first, last])];
  for (const arc of view.shown.arcs) {
    if (arc.from < top || arc.from > bottom || arc.to < first || arc.to > last || !inFocus(focus, arc.from, arc.to)) continue;
    const edge = f.size >= 6 ? 1 : 0;
    inside.push({ kind: "rect", class: "gold", x: columnAt(f, arc.to) + edge / 2, y: rowAt(f, arc.from) + edge / 2, width: f.size - edge, height: f.size - edge, stroke: colours.gold, alpha: 1, ...arc });
  }
  if (focus) inside.push(...numbersOnCells(f, colours, focus));
  const area = { x: f.margin, y: f.top, width: f.width - f.margin, height: f.height - f.top };
  return [
    { kind: "group", ...area, items: inside },
    { kind: "rect", x: f.margin - .5, y: f.top - .5, width: Math.min(area.width, f.m * f.size + 1), height: Math.min(area.height, f.m * f.size + 1), stroke: colours.line, alpha: 1 },
    { kind: "group", x: 0, y: f.top, width: f.margin, height: area.height, items: rowLabels(f, colours, focus, top, bottom) },
    { kind: "group", x: f.margin, y: HEADER, width: area.width, height: f.margin, items: columnLabels(f, colours, focus, first, last) },
  ];
}

function rowLabels(f, colours, focus, first, last) {
  const names = labels(), items = [];
  for (let at = first; at <= last; at++) {
    const bold = focus?.at === at && focus.direction === "from", y = rowAt(f, at) + f.size / 2;
    if (at % f.every && !bold) continue;
    items.push(...marks(f, colours, at, 0, y, f.margin, true));
    items.push({ kind: "text", x: f.margin - 6 - f.bars, y, text: cut(names[at], f.font, f.margin - 8 - f.bars), fill: colours.ink, anchor: "end", size: f.font, bold, word: at });
  }
  return items;
}

function columnLabels(f, colours, focus, first, last) {
  const names = labels(), items = [];
  for (let at = first; at <= last; at++) {
    const bold = focus?.at === at && focus.direction === "to", x = columnAt(f, at) + f.size / 2;
    if (at % f.every && !bold) continue;
    items.push({ kind: "text", x, y: f.top - 6, text: cut(names[at], f.font, f.margin - 12), fill: colours.ink, anchor: "start", size: f.font, bold, rotate: -90, word: at });
  }
  return items;
}

/** All cells that can be seen, as one shape of many colours. */
function cells(f, colours, focus, [top, bottom], [first, last]) {
  const { matrices, m } = view.shown;
  const stripes = f.size >= 3 * matrices.length ? matrices.length : 1;
  const rows = bottom - top + 1, columns = (last - first + 1) * stripes;
  const rgba = new Uint8ClampedArray(4 * rows * columns), inks = matrices.map(one => channels(colours.heads[one.colour]));
  for (let row = top; row <= bottom; row++) {
    for (let column = first; column <= last; column++) {
      if (!inFocus(focus, row, column)) continue;
      const at = row * m + column;
      for (let stripe = 0; stripe < stripes; stripe++) {
        const place = stripes > 1 ? stripe : strongest(matrices, at);
        if (!matrices[place].kept[at]) continue;
        const target = 4 * ((row - top) * columns + (column - first) * stripes + stripe);
        rgba.set(inks[place], target);
        rgba[target + 3] = 255 * shade(matrices[place].values[at] / view.shown.greatest);
      }
    }
  }
  return { kind: "cells", x: columnAt(f, first), y: rowAt(f, top), rows, columns, across: f.size / stripes, down: f.size, rgba };
}

function strongest(matrices, at) {
  let best = 0;
  for (let place = 1; place < matrices.length; place++) {
    if (matrices[place].kept[at] * matrices[place].values[at] > matrices[best].kept[at] * matrices[best].values[at]) best = place;
  }
  return best;
}

/** The values of the row in focus below its cells, those of a column beside them. */
function numbersOnCells(f, colours, focus) {
  if (f.size < 9) return [];
  const { matrices, m } = view.shown, row = focus.direction === "from", items = [];
  const low = focus.at < m / 2 ? 1 : -1;
  for (let other = 0; other < m; other++) {
    const at = row ? focus.at * m + other : other * m + focus.at;
    const told = matrices.filter(one => one.kept[at]).map(one => written(one.values[at])).join(" ");
    if (!told) continue;
    const x = row ? columnAt(f, other) + f.size / 2 : columnAt(f, focus.at) + f.size / 2 + low * (f.size / 2 + 4);
    const y = row ? rowAt(f, focus.at) + f.size / 2 + low * (f.size / 2 + 4) : rowAt(f, other) + f.size / 2;
    items.push({ kind: "text", class: "number", x, y, text: told, fill: colours.ink, anchor: row === (low > 0) ? "end" : "start", size: Math.min(11, f.font), rotate: row ? -90 : 0 });
  }
  return items.map(item => row ? item : { ...item, anchor: low > 0 ? "start" : "end" });
}

/** What the colours are, with the scale of the shades. */
function legend(f, colours) {
  const { matrices, greatest, arcs } = view.shown, items = [];
  let x = 8;
  const say = label => {
    items.push({ kind: "text", x, y: 15, text: label, fill: colours.ink, anchor: "start", size: 11 });
    x += widthOf(label, 11) + 12;
  };
  for (const matrix of matrices) {
    items.push({ kind: "rect", x, y: 10, width: 10, height: 10, fill: colours.heads[matrix.colour], alpha: 1 });
    x += 14;
    say(matrix.name);
  }
  say("0");
  x -= 8;
  for (let step = 1; step <= 16; step++) {
    items.push({ kind: "rect", x, y: 10, width: 3, height: 10, fill: matrices.length > 1 ? colours.muted : colours.heads[0], alpha: shade(step / 16) });
    x += 3;
  }
  x += 4;
  say(written(greatest));
  if (arcs.length && x < f.width - 90) {
    items.push(f.matrix ? { kind: "rect", x, y: 10, width: 10, height: 10, stroke: colours.gold, alpha: 1 } : { kind: "line", x1: x, y1: 15, x2: x + 20, y2: 15, stroke: colours.gold, alpha: .9, width: 1.3, dash: "5 4" });
    x += f.matrix ? 14 : 24;
    say("gold arcs");
  }
  return items;
}

/* Painting ------------------------------------------------------------------------------------------------------ */

const PAINT = {
  rect(context, item) {
    context.globalAlpha = item.alpha;
    if (item.fill) { context.fillStyle = item.fill; context.fillRect(item.x, item.y, item.width, item.height); }
    if (item.stroke) { context.strokeStyle = item.stroke; context.lineWidth = item.class === "gold" ? 1.5 : 1; context.setLineDash([]); context.strokeRect(item.x, item.y, item.width, item.height); }
  },
  line(context, item) {
    context.globalAlpha = item.alpha;
    context.strokeStyle = item.stroke;
    context.lineWidth = item.width;
    context.setLineDash(item.dash ? item.dash.split(" ").map(Number) : []);
    context.beginPath();
    context.moveTo(item.x1, item.y1);
    context.lineTo(item.x2, item.y2);
    context.stroke();
  },
  text(context, item) {
    context.save();
    context.globalAlpha = 1;
    context.translate(item.x, item.y);
    context.rotate((item.rotate ?? 0) * Math.PI / 180);
    context.font = `${item.bold ? "bold " : ""}${item.size}px ${FONT}`;
    context.textAlign = item.anchor === "end" ? "right" : "left";
    context.textBaseline = "middle";
    context.setLineDash([]);
    if (item.halo) { context.strokeStyle = item.halo; context.lineWidth = 3; context.lineJoin = "round"; context.strokeText(item.text, 0, 0); }
    context.fillStyle = item.fill;
    context.fillText(item.text, 0, 0);
    context.restore();
  },
  cells(context, item) {
    const small = document.createElement("canvas");
    small.width = item.columns;
    small.height = item.rows;
    small.getContext("2d").putImageData(new ImageData(item.rgba, item.columns, item.rows), 0, 0);
    context.globalAlpha = 1;
    context.imageSmoothingEnabled = false;
    context.drawImage(small, item.x, item.y, item.columns * item.across, item.rows * item.down);
  },
  group(context, item) {
    context.save();
    context.beginPath();
    context.rect(item.x, item.y, item.width, item.height);
    context.clip();
    item.items.forEach(inner => PAINT[inner.kind](context, inner));
    context.restore();
  },
};

/** Paint a drawing, with so many pixels for one of CSS. */
function paint(canvas, drawing, ratio) {
  canvas.width = Math.round(drawing.width * ratio);
  canvas.height = Math.round(drawing.height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = drawing.paper;
  context.fillRect(0, 0, drawing.width, drawing.height);
  drawing.items.forEach(item => PAINT[item.kind](context, item));
}

const SVG = "http://www.w3.org/2000/svg";
function element(name, attributes, content) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined) made.setAttribute(key, typeof value === "number" ? Number(value.toFixed(2)) : value);
  }
  if (content !== undefined) made.textContent = content;
  return made;
}

const WRITE = {
  rect: item => [element("rect", { class: item.class, x: item.x, y: item.y, width: item.width, height: item.height, fill: item.fill ?? "none", stroke: item.stroke, "stroke-width": item.class === "gold" ? 1.5 : undefined, opacity: item.alpha })],
  line: item => [element("line", { class: item.class, x1: item.x1, y1: item.y1, x2: item.x2, y2: item.y2, stroke: item.stroke, "stroke-width": item.width, "stroke-opacity": item.alpha, "stroke-dasharray": item.dash })],
  text: item => [element("text", { class: item.class, x: item.x, y: item.y, fill: item.fill, "font-family": FONT, "font-size": item.size, "font-weight": item.bold ? "bold" : undefined, "text-anchor": item.anchor, "dominant-baseline": "central", stroke: item.halo, "stroke-width": item.halo ? 3 : undefined, "paint-order": item.halo ? "stroke" : undefined, transform: item.rotate ? `rotate(${item.rotate} ${item.x} ${item.y})` : undefined }, item.text)],
  cells(item) {
    const found = [];
    for (let at = 0; at < item.rows * item.columns; at++) {
      const [red, green, blue, alpha] = item.rgba.subarray(4 * at, 4 * at + 4);
      if (alpha) found.push(element("rect", { class: "cell", x: item.x + at % item.columns * item.across, y: item.y + Math.floor(at / item.columns) * item.down, width: item.across, height: item.down, fill: `rgb(${red},${green},${blue})`, "fill-opacity": alpha / 255 }));
    }
    return found;
  },
  group(item, number) {
    const clip = element("clipPath", { id: `clip-${number}` });
    clip.append(element("rect", { x: item.x, y: item.y, width: item.width, height: item.height }));
    const made = element("g", { "clip-path": `url(#clip-${number})` });
    made.append(...item.items.flatMap(inner => WRITE[inner.kind](inner)));
    return [clip, made];
  },
};

/** The drawing as a file of SVG. */
function svg(drawing) {
  const root = element("svg", { width: drawing.width, height: drawing.height, viewBox: `0 0 ${drawing.width} ${drawing.height}` });
  root.append(element("title", {}, `${text().title}: ${described()}`), element("rect", { width: drawing.width, height: drawing.height, fill: drawing.paper }));
  root.append(...drawing.items.flatMap((item, number) => WRITE[item.kind](item, number)));
  // Control characters, which a text may have, are not allowed in XML.
  return new XMLSerializer().serializeToString(root).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "\ufffd");
}

function render() {
  if (!view.shown) return;
  const f = frame();
  by("stage").style.height = `${f.height + 2}px`;
  by("extent").style.width = `${f.across}px`;
  by("extent").style.height = `${f.down}px`;
  view.drawing = compose();
  const canvas = by("figure");
  paint(canvas, view.drawing, matchMedia("print").matches ? 3 : devicePixelRatio || 1);
  canvas.style.width = `${view.drawing.width}px`;
  canvas.style.height = `${view.drawing.height}px`;
  by("size").value = f.size;
  numbers();
}

let waiting = false;
/** Draw once before the next frame. */
function renderSoon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; render(); });
}

/* Words ---------------------------------------------------------------------------------------------------------- */

/** What is drawn, in words. */
function described() {
  const { matrices } = view.shown;
  if (matrices[0].place === undefined) return `${matrices[0].name} heads`;
  if (matrices.length === 1) return `layer ${matrices[0].name.replace("-", ", head ")}`;
  return `heads ${matrices.map(one => one.name).join(", ")}`;
}

/** Say what is shown, and what is not. */
function tell() {
  const { matrices, positions, m, arcs } = view.shown, title = described();
  by("large-title").textContent = title[0].toUpperCase() + title.slice(1);
  by("figure").setAttribute("aria-label", `${text().quantity}, ${title}, as ${view.state.drawing}; the numbers of a word are in the table below when it is chosen`);
  by("threshold-value").textContent = written(threshold(), 3);
  const what = text().unit === "fraction" ? `of the ${text().quantity} from these positions` : "of their sum";
  const lines = matrices.map(one => {
    const without = view.state.delimiters === "renormalised" ? `; delimiters had ${percent(one.delimiters)} before` : view.state.delimiters === "hidden" ? `; ${percent(one.delimiters)} of it goes to delimiters` : "";
    const share = view.state.delimiters === "hidden" ? one.share * one.inside : one.share;
    const hit = arcs.length ? ` Gold arcs: the greatest of its row in ${hits(one, arcs, positions)} of ${arcs.length}.` : "";
    return `${one.name}: ${counted(one.count)} of ${counted(m * m)} values are shown, ${percent(share)} ${what}${without}.${hit}`;
  });
  if (view.state.together === "each" && view.chosen.length > COLOURS) lines.push(`The first ${COLOURS} of ${view.chosen.length} chosen heads are drawn; their mean and maximum are of all.`);
  if (view.threshold) lines.push(`This page leaves out values below ${view.threshold}: ${dropped()}.`);
  by("shown").replaceChildren(...lines.map(line => Object.assign(document.createElement("span"), { textContent: line, style: "display: block" })));
}

/** What the page does not hold of the chosen heads, and of all. */
function dropped() {
  const own = view.chosen.slice(0, COLOURS).map(place => `${percent(grid().dropped[place])} of ${nameOf(place)}`).join(", ");
  return `${own}, ${percent(grid().droppedOfAll)} of all heads`;
}

/** The greatest values of the word in focus, as a table. */
function numbers() {
  const focus = focused(), box = by("numbers");
  if (!focus) { box.replaceChildren(); return; }
  const { matrices, m } = view.shown, names = labels(), from = focus.direction === "from";
  const at = other => from ? focus.at * m + other : other * m + focus.at;
  const best = Array.from({ length: m }, (_, other) => other).filter(other => matrices.some(one => one.kept[at(other)]))
    .sort((a, b) => Math.max(...matrices.map(one => one.values[at(b)])) - Math.max(...matrices.map(one => one.values[at(a)])) || a - b).slice(0, NUMBERS);
  const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  table.createCaption().textContent = from ? `${names[focus.at]} → …` : `… → ${names[focus.at]}`;
  const title = (row, label, scope) => row.append(Object.assign(document.createElement("th"), { textContent: label, scope }));
  for (const label of [from ? "to" : "from", "position", ...matrices.map(one => one.name)]) title(head, label, "col");
  for (const other of best) {
    const row = body.insertRow();
    title(row, names[other], "row");
    for (const cell of [String(view.shown.positions[other]), ...matrices.map(one => written(one.values[at(other)], 3))]) row.insertCell().textContent = cell;
  }
  box.replaceChildren(table);
}

/** The words as buttons, with the marks of the second layer. */
function listWords() {
  const box = by("words"), { names, of } = grid(), delimiters = new Set(text().delimiters);
  box.dir = names.join("").match(/[\u0590-\u08ff\ufb1d-\ufefc]/g)?.length > names.join("").length / 4 ? "rtl" : "ltr";
  const saliency = text().saliency[view.state.saliency], most = saliency ? Math.max(...saliency.map(Math.abs)) : 0;
  const buttons = names.map((name, position) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: name, tabIndex: position ? -1 : 0 });
    button.dataset.position = String(position);
    button.setAttribute("aria-pressed", String(view.state.word === position));
    if (delimiters.has(of[position])) button.className = "delimiter";
    if (saliency?.[of[position]]) {
      const value = saliency[of[position]];
      button.style.backgroundColor = `rgba(var(--${value > 0 ? "above" : "below"}), ${.45 * Math.abs(value) / most})`;
      button.title = `${view.state.saliency}: ${value.toPrecision(3)}`;
    }
    const clusters = clustersOf(of[position]);
    if (clusters.length) {
      button.style.boxShadow = clusters.slice(0, 3).map((cluster, place) => `inset 0 ${-2 * place - 2}px 0 var(--h${cluster % COLOURS})`).join(", ");
      button.append(Object.assign(document.createElement("sup"), { textContent: clusters.map(cluster => cluster + 1).join(" ") }));
    }
    return button;
  });
  box.replaceChildren(...buttons.flatMap(button => [button, " "]));
  search();
}

function search() {
  const wanted = by("search").value.trim().toLowerCase();
  const found = [...by("words").querySelectorAll("button")].filter(button => {
    const match = wanted !== "" && grid().names[Number(button.dataset.position)].toLowerCase().includes(wanted);
    button.classList.toggle("match", match);
    return match;
  });
  by("found").textContent = wanted ? `${found.length} found` : "";
  return found;
}

/** Hold the next word that matches. */
function nextMatch() {
  const found = search().map(button => Number(button.dataset.position));
  if (found.length) hold(found.find(position => position > view.state.word) ?? found[0], view.state.direction);
}

/** Hold a word, or let it go where it is held already; bring it into sight. */
function hold(position, direction) {
  const same = view.state.word === position && view.state.direction === direction;
  if (text().steps && position >= text().steps) by("step").value = String(position);
  change({ word: same ? -1 : position, direction });
  for (const button of by("words").querySelectorAll("button")) button.setAttribute("aria-pressed", String(Number(button.dataset.position) === view.state.word));
  if (!same) scrollTo(position);
}

function scrollTo(position) {
  const f = frame(), at = view.shown.positions.indexOf(position), stage = by("stage");
  const button = by("words").querySelector(`[data-position="${position}"]`);
  by("words").scrollTop = button.offsetTop - by("words").clientHeight / 2;
  if (f.down > f.height) stage.scrollTop = at * f.size - (f.height - f.top) / 2;
  if (f.matrix && f.across > f.width) stage.scrollLeft = at * f.size - (f.width - f.margin) / 2;
}

/* All heads ------------------------------------------------------------------------------------------------------ */

const coarse = matchMedia("(pointer: coarse)");
/** Side of a thumbnail with its gap. */
function cell() {
  const room = by("overview-scroll").clientWidth - 34;
  return Math.max(coarse.matches ? 24 : 14, Math.min(64, Math.floor(room / heads())));
}

function headButton(label, kind, place, said) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: kind, textContent: label, tabIndex: -1 });
  button.dataset.place = String(place);
  button.setAttribute("aria-label", said);
  return button;
}

/** A button for each head, and one for each layer and column; thumbnails lie beneath. */
function listHeads() {
  const { layers, heads: columns } = text(), side = view.side = cell(), box = by("overview");
  box.querySelectorAll("button, span").forEach(old => old.remove());
  box.style.gridTemplateColumns = `28px repeat(${columns.length}, ${side}px)`;
  box.style.gridTemplateRows = `18px repeat(${layers.length}, ${side}px)`;
  const made = [document.createElement("span"), ...columns.map((head, at) => headButton(head, "number", `c${at}`, `head ${head} of all layers`))];
  layers.forEach((layer, row) => {
    made.push(headButton(layer, "number", `r${row}`, `all heads of layer ${layer}`));
    columns.forEach((head, at) => {
      const button = headButton("", "head", row * columns.length + at, `layer ${layer}, head ${head}`);
      button.title = `${layer}-${head}`;
      made.push(button);
    });
  });
  box.append(...made);
  press();
}

/** Show which heads are chosen. */
function press() {
  const colours = new Map(view.chosen.map((place, at) => [place, view.state.together === "each" && at < COLOURS ? `var(--h${at})` : "var(--ink)"]));
  for (const button of by("overview").querySelectorAll("button.head")) {
    const place = Number(button.dataset.place);
    button.setAttribute("aria-pressed", String(colours.has(place)));
    button.style.setProperty("--chosen", colours.get(place) ?? "none");
    button.tabIndex = place === view.chosen[view.chosen.length - 1] ? 0 : -1;
  }
}

async function drawThumbnails() {
  const { id, names } = grid(), pixels = Math.min(view.thumbnail, names.length);
  const codes = new Uint8Array(await page.unpacked(id));
  if (id !== grid().id) return;
  const { side } = view, count = text().layers.length * heads(), ratio = devicePixelRatio || 1, [red, green, blue] = channels(palette().heads[0]);
  const sheet = document.createElement("canvas"), canvas = by("sprite");
  sheet.width = pixels;
  sheet.height = pixels * count;
  const image = new ImageData(pixels, pixels * count);
  codes.forEach((code, at) => { image.data.set([red, green, blue, code], 4 * at); });
  sheet.getContext("2d").putImageData(image, 0, 0);
  canvas.style.left = "28px";
  canvas.style.top = "18px";
  canvas.style.width = `${heads() * side}px`;
  canvas.style.height = `${text().layers.length * side}px`;
  canvas.width = Math.round(heads() * side * ratio);
  canvas.height = Math.round(text().layers.length * side * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.imageSmoothingEnabled = pixels > side;
  context.strokeStyle = palette().line;
  context.lineWidth = 1;
  for (let place = 0; place < count; place++) {
    const x = place % heads() * side + 1.5, y = Math.floor(place / heads()) * side + 1.5;
    context.drawImage(sheet, 0, place * pixels, pixels, pixels, x, y, side - 3, side - 3);
    context.strokeRect(x, y, side - 3, side - 3);
  }
}

/** Choose heads: alone, or added to (and taken from) those chosen. */
function choose(places, add) {
  const chosen = new Set(add ? view.chosen : []);
  if (add && places.every(place => chosen.has(place)) && chosen.size > places.length) places.forEach(place => chosen.delete(place));
  else places.forEach(place => chosen.add(place));
  view.chosen = [...chosen];
  press();
  return update();
}

/** The heads that a button stands for. */
function placesOf(button) {
  const named = button.dataset.place, columns = heads(), rows = text().layers.length;
  if (named[0] === "r") return Array.from({ length: columns }, (_, at) => Number(named.slice(1)) * columns + at);
  if (named[0] === "c") return Array.from({ length: rows }, (_, row) => row * columns + Number(named.slice(1)));
  return [Number(named)];
}

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };
function keyInOverview(event) {
  const button = event.target.closest("button");
  if (!button) return;
  if (event.key === " ") { event.preventDefault(); choose(placesOf(button), true); return; }
  if (!(event.key in MOVES)) return;
  event.preventDefault();
  const [down, across] = MOVES[event.key], columns = heads() + 1, all = [...by("overview").querySelectorAll("span, button")];
  const at = all.indexOf(button), clamp = (value, last) => Math.max(0, Math.min(last, value));
  const row = clamp(Math.floor(at / columns) + down, text().layers.length), column = clamp(at % columns + across, columns - 1);
  const next = all[Math.max(1, row * columns + column)];
  next.focus();
  if (next.className === "head" && view.chosen.length === 1) choose(placesOf(next), false);
}

/* Settings ------------------------------------------------------------------------------------------------------- */

/** Take over settings and draw. */
function change(settings) {
  Object.assign(view.state, settings);
  return update();
}

/** Write what differs from the defaults into the address, where the page has one of its own. */
function remember() {
  view.state.heads = view.chosen.map(nameOf).join(".");
  const differing = Object.entries(view.state).filter(([name, value]) => value !== DEFAULTS[name]);
  const hash = `#${new URLSearchParams(differing.map(([name, value]) => [name, String(value)]))}`;
  if (hash === location.hash) return;
  try { history.replaceState(null, "", hash); } catch { /* a page within another has no address */ }
}

/** Read settings from the address; what does not fit is passed over. */
function recall() {
  const given = new URLSearchParams(location.hash.slice(1)), state = { ...DEFAULTS };
  for (const [name, value] of given) {
    if (typeof DEFAULTS[name] === "number" && /^-?\d+$/.test(value)) state[name] = Number(value);
    if (typeof DEFAULTS[name] === "boolean") state[name] = value === "true";
    if (typeof DEFAULTS[name] === "string") state[name] = value;
  }
  if (!view.texts[state.text]) state.text = 0;
  if (!view.texts[state.text].grids.pieces) state.pieces = false;
  state.threshold = Math.max(0, Math.min(100, state.threshold));
  state.size = Math.max(0, Math.min(40, state.size));
  view.state = state;
  const places = new Map(Array.from({ length: text().layers.length * heads() }, (_, place) => [nameOf(place), place]));
  view.chosen = state.heads.split(".").map(name => places.get(name)).filter(place => place !== undefined);
  if (!view.chosen.length) view.chosen = [0];
}

/** Bring the controls in line with the settings. */
function setControls() {
  const { state } = view, one = text();
  for (const name of ["together", "delimiters", "scale", "arcs", "saliency", "top", "text"]) {
    by(name).value = String(state[name]);
    if (by(name).selectedIndex < 0) { by(name).selectedIndex = 0; state[name] = DEFAULTS[name]; }
  }
  for (const name of ["drawing", "direction"]) {
    const wanted = document.querySelector(`[name=${name}][value="${CSS.escape(state[name])}"]`);
    if (wanted) wanted.checked = true;
    else { state[name] = DEFAULTS[name]; document.querySelector(`[name=${name}]`).checked = true; }
  }
  by("threshold").value = String(state.threshold);
  by("pieces").checked = state.pieces;
  by("clusters").checked = state.clusters;
  by("text-field").hidden = view.texts.length < 2;
  by("pieces-field").hidden = !one.grids.pieces;
  by("delimiters-field").hidden = !one.delimiters.length;
  by("step-field").hidden = !one.steps;
  Object.assign(by("step"), { min: one.steps, max: one.grids.words.names.length - 1, value: Math.max(state.word, one.steps) });
  by("delimiters-name").textContent = one.sink ? "Delimiters and first token" : "Delimiters";
  by("arcs-field").hidden = !one.arcs.length;
  by("clusters-field").hidden = !one.clusters.length;
  by("saliency-field").hidden = !Object.keys(one.saliency).length;
}

function option(value, label) { return new Option(label, String(value)); }

/** Everything that depends on the text. */
function open() {
  const one = text(), { names } = grid();
  by("title").textContent = one.title;
  by("about").textContent = `${one.quantity}, ${counted(names.length)} ${view.state.pieces ? "pieces" : "words"}, ${one.layers.length} × ${one.heads.length} heads (layer-head)`;
  by("saliency").replaceChildren(option("", "none"), ...Object.keys(one.saliency).map(name => option(name, name)));
  by("notes").replaceChildren(...one.notes.map(note => Object.assign(document.createElement("p"), { textContent: note })));
  const left = view.threshold ? ` Values below ${view.threshold} are left out, ${percent(grid().droppedOfAll)} of all, so that the page stays within its bound.` : "";
  by("footer").textContent = `Values are held in 8 bits, as square roots of their share of the greatest of a head; the largest error is ${grid().error.toPrecision(2)}. Greatest values are found among them, the first of equal ones.${left} Lines are as opaque as their values; shades of cells are square roots, too.`;
  setControls();
  listWords();
  listHeads();
  return Promise.all([drawThumbnails(), update()]);
}

function openText(number) {
  view.state = { ...view.state, text: number, word: -1, pieces: view.state.pieces && Boolean(view.texts[number].grids.pieces) };
  const names = view.state.heads;
  remember();
  recallHeads(names);
  return open();
}

function recallHeads(names) {
  const all = Array.from({ length: text().layers.length * heads() }, (_, place) => place);
  const wanted = new Set(names.split("."));
  view.chosen = all.filter(place => wanted.has(nameOf(place)));
  if (!view.chosen.length) view.chosen = [0];
}

/* Events --------------------------------------------------------------------------------------------------------- */

/** What lies under a point of the figure: a word, or a cell. */
function under(event) {
  const box = by("figure").getBoundingClientRect(), { frame: f } = view.drawing;
  const x = event.clientX - box.left, y = event.clientY - box.top;
  const row = Math.floor((y - f.top + f.scroll) / f.size), column = Math.floor((x - f.margin + f.left) / f.size);
  const known = at => at >= 0 && at < f.m, word = (at, direction) => known(at) ? { position: view.shown.positions[at], direction } : null;
  if (!f.matrix) return y < f.top ? null : x < f.margin ? word(row, "from") : x > f.width - f.margin ? word(row, "to") : null;
  if (x < f.margin) return y < f.top ? null : word(row, "from");
  if (y < f.top) return y < HEADER ? null : word(column, "to");
  return known(row) && known(column) ? { row, column } : null;
}

/** Point at a word, or at nothing. */
function pointAt(found) {
  const word = found && "position" in found ? found : null;
  const same = word?.position === view.hover?.position && word?.direction === view.hover?.direction;
  view.hover = word;
  by("readout").textContent = found && "row" in found ? cellText(found) : "";
  if (!same) renderSoon();
}

function cellText({ row, column }) {
  const { matrices, m, arcs } = view.shown, names = labels();
  const told = matrices.map(one => `${written(one.values[row * m + column], 3)} (${one.name}${one.kept[row * m + column] ? "" : ", not drawn"})`).join(", ");
  const gold = arcs.filter(arc => arc.from === row && arc.to === column).map(arc => `, gold arcs: ${arc.label}`).join("");
  return `${names[row]} → ${names[column]}: ${told}${gold}`;
}

function keyInWords(event) {
  const button = event.target.closest("button"), step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!button || !step) return;
  event.preventDefault();
  const all = [...by("words").querySelectorAll("button")], turned = by("words").dir === "rtl" && /Left|Right/.test(event.key) ? -step : step;
  const next = all[Math.max(0, Math.min(all.length - 1, all.indexOf(button) + turned))];
  button.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function onWord(event, act) {
  const button = event.target.closest("button");
  if (button) act(Number(button.dataset.position));
}

function exported(kind) { return `${text().title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "view"}-${view.shown.matrices.map(one => one.name.replaceAll(" ", "-")).join("-")}.${kind}`; }

function savePng() {
  const canvas = document.createElement("canvas");
  paint(canvas, view.drawing, 3);
  canvas.toBlob(blob => page.save(exported("png"), blob), "image/png");
}

function listen() {
  by("overview").addEventListener("click", event => {
    const button = event.target.closest("button");
    if (button) choose(placesOf(button), event.shiftKey || event.ctrlKey || event.metaKey || by("several").checked);
  });
  by("overview").addEventListener("keydown", keyInOverview);
  by("overview").addEventListener("keyup", event => { if (event.key === " ") event.preventDefault(); });
  by("words").addEventListener("keydown", keyInWords);
  by("words").addEventListener("click", event => onWord(event, position => hold(position, view.state.direction)));
  for (const kind of ["mouseover", "focusin"]) by("words").addEventListener(kind, event => onWord(event, position => pointAt({ position, direction: view.state.direction })));
  for (const kind of ["mouseleave", "focusout"]) by("words").addEventListener(kind, () => pointAt(null));
  by("figure").addEventListener("pointermove", event => { if (event.pointerType === "mouse") pointAt(under(event)); });
  by("figure").addEventListener("pointerleave", () => pointAt(null));
  by("figure").addEventListener("click", event => {
    const found = under(event);
    if (found && "position" in found) hold(found.position, found.direction);
    else pointAt(found);
  });
  by("stage").addEventListener("scroll", renderSoon);
  document.addEventListener("keydown", event => { if (event.key === "Escape" && view.state.word >= 0) hold(view.state.word, view.state.direction); });
  listenToControls();
  listenToWindow();
}

function listenToControls() {
  for (const name of ["delimiters", "scale", "arcs"]) by(name).addEventListener("change", () => change({ [name]: by(name).value }));
  for (const radio of document.querySelectorAll("[name=drawing]")) radio.addEventListener("change", () => change({ drawing: radio.value, size: 0 }));
  for (const radio of document.querySelectorAll("[name=direction]")) radio.addEventListener("change", () => change({ direction: radio.value }));
  for (const name of ["threshold", "size"]) by(name).addEventListener("input", () => change({ [name]: Number(by(name).value) }));
  by("top").addEventListener("change", () => change({ top: Number(by("top").value) }));
  by("together").addEventListener("change", () => { change({ together: by("together").value }); press(); });
  by("text").addEventListener("change", () => openText(Number(by("text").value)));
  by("pieces").addEventListener("change", () => { Object.assign(view.state, { pieces: by("pieces").checked, word: -1 }); open(); });
  by("clusters").addEventListener("change", () => { view.state.clusters = by("clusters").checked; listWords(); render(); remember(); });
  by("saliency").addEventListener("change", () => { view.state.saliency = by("saliency").value; listWords(); render(); remember(); });
  by("step").addEventListener("input", () => { if (Number(by("step").value) !== view.state.word) hold(Number(by("step").value), "from"); });
  by("search").addEventListener("input", search);
  by("search").addEventListener("keydown", event => { if (event.key === "Enter") nextMatch(); });
  by("svg").addEventListener("click", () => page.save(exported("svg"), new Blob([svg(view.drawing)], { type: "image/svg+xml" })));
  by("png").addEventListener("click", savePng);
}

function listenToWindow() {
  let before = by("stage").clientWidth;
  new ResizeObserver(() => {
    const { clientWidth } = by("stage");
    if (clientWidth === before || matchMedia("print").matches) return;
    before = clientWidth;
    if (cell() !== view.side) { listHeads(); drawThumbnails(); }
    renderSoon();
  }).observe(by("stage"));
  addEventListener("hashchange", () => { recall(); open(); });
  const repaint = () => { drawThumbnails(); render(); };
  for (const query of ["print", "(prefers-color-scheme: dark)"]) matchMedia(query).addEventListener("change", repaint);
}

by("text").replaceChildren(...view.texts.map((one, number) => option(number, one.title)));
by("top").replaceChildren(option(0, "all"), ...[1, 2, 3, 5, 10, 20].map(most => option(most, most)));
recall();
listen();
open().then(() => performance.mark("drawn"));
