// Drawn by hand as SVG: sparklines, timelines, Gantt bars, heat strips, graphs. Colours are classes.

import { h } from './dom.js';
import { duration, exact } from './text.js';
import { sign } from './parts.js';

// Sixty points on a scale that the caller shares between lines of one row.
export function sparkline(values, { most = Math.max(1, ...values.filter((v) => v !== null)), label, width = 180, height = 32, kind = '' } = {}) {
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, index) => [index * step, height - 2 - ((value ?? 0) / most) * (height - 4)]);
  const line = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(' ');
  return h('svg', { class: `spark ${kind}`, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label, preserveAspectRatio: 'none' },
    h('title', {}, label),
    h('polygon', { points: `0,${height} ${line} ${width},${height}`, class: 'area' }),
    h('polyline', { points: line, class: 'line' }));
}

// Minutes without a point are zero.
export function byMinute(points, pick, { from, steps = 60, stepMs = 60000 }) {
  const values = new Array(steps).fill(0);
  for (const point of points) {
    const index = Math.floor((new Date(point.at).getTime() - from) / stepMs);
    if (index >= 0 && index < steps) values[index] = pick(point) ?? 0;
  }
  return values;
}

// One task as one bar: wait until the start, each run, the backoff between them.
export function timeline(task, attempts) {
  const now = Date.now();
  const at = (text) => new Date(text).getTime();
  const runs = [...attempts].filter((each) => each.started_at).sort((a, b) => a.fence - b.fence);
  const first = at(task.created_at);
  // A task that waits for its workflow is not due, whatever its fire time says.
  const due = task.state === 'WAITING' ? Infinity : Math.max(first, at(task.run_at));
  const isOver = Boolean(task.finished_at);
  // What runs is drawn until now; its next fire time is the end of its lease.
  const end = isOver ? at(task.finished_at) : Math.max(now, task.next_at && task.state !== 'RUNNING' ? at(task.next_at) : now);
  const pieces = [];
  const add = (kind, from, to, title) => { if (to > from) pieces.push({ kind, from, to, title }); };
  add('planned', first, Math.min(due, end), `${task.state === 'WAITING' ? 'waits for its workflow' : 'planned'}: ${duration((Math.min(due, end) - first) / 1000)}`);
  let cursor = Math.min(due, end);
  for (const run of runs) {
    const started = at(run.started_at);
    const ended = run.ended_at ? at(run.ended_at) : now;
    add(run === runs[0] ? 'wait' : 'backoff', cursor, started, `${run === runs[0] ? 'waited' : 'backed off'} ${duration((started - cursor) / 1000)}`);
    pieces.push({ kind: `run o-${run.outcome}`, from: started, to: Math.max(ended, started + 1), title: `attempt ${run.attempt}: ${run.outcome}, ${duration((ended - started) / 1000)}\nfence ${run.fence}, holder ${run.holder ?? '–'}\n${exact(run.started_at)}` });
    cursor = Math.max(cursor, ended);
  }
  if (!isOver && cursor < end) add(runs.length ? 'backoff' : 'wait', cursor, end, `waiting ${duration((end - cursor) / 1000)}`);
  const span = Math.max(1, end - first);
  // Very long waits must not hide the runs: each piece keeps at least a few pixels.
  const width = 1000;
  const least = 6;
  const free = width - least * pieces.length;
  let x = 0;
  const drawn = pieces.map((piece) => {
    const wide = least + (free * (piece.to - piece.from)) / span;
    const rect = h('rect', { x: x.toFixed(1), y: 2, width: Math.max(1, wide - 1).toFixed(1), height: 20, rx: 2, class: `piece ${piece.kind}` }, h('title', {}, piece.title));
    x += wide;
    return rect;
  });
  return h('svg', { class: 'timeline', viewBox: `0 0 ${width} 24`, role: 'img', preserveAspectRatio: 'none', 'aria-label': pieces.map((piece) => piece.title.split('\n')[0]).join('; ') }, ...drawn);
}

// A cell for each item. A cell with an address can be pressed; a table or page beside it serves keyboards.
export function heatStrip(items, { label, tone, title, href, columns = 32 }) {
  const size = 14;
  const rows = Math.ceil(items.length / columns);
  return h('svg', { class: 'heat', viewBox: `0 0 ${columns * size} ${Math.max(1, rows) * size}`, role: 'img', 'aria-label': label },
    ...items.map((item, index) => h('rect', { x: (index % columns) * size + 1, y: Math.floor(index / columns) * size + 1, width: size - 2, height: size - 2, rx: 2, class: `cell h-${tone(item)}${href ? ' pressed' : ''}`, onclick: href ? () => { location.hash = href(item); } : null }, h('title', {}, title(item)))));
}

// A graph in layers: each node one column after its last parent.
export function layers(nodes) {
  const column = new Map();
  const byName = new Map(nodes.map((node) => [node.name, node]));
  const order = [];
  const waiting = new Map(nodes.map((node) => [node.name, (node.after ?? []).filter((name) => byName.has(name)).length]));
  const children = new Map();
  for (const node of nodes) for (const parent of node.after ?? []) children.set(parent, [...(children.get(parent) ?? []), node.name]);
  const free = nodes.filter((node) => !waiting.get(node.name)).map((node) => node.name);
  for (const name of free) column.set(name, 0);
  while (free.length) {
    const name = free.shift();
    order.push(name);
    for (const child of children.get(name) ?? []) {
      column.set(child, Math.max(column.get(child) ?? 0, column.get(name) + 1));
      waiting.set(child, waiting.get(child) - 1);
      if (!waiting.get(child)) free.push(child);
    }
  }
  return { column, order };
}

const NODE_W = 176;
const NODE_H = 36;
const GAP_X = 44;
const GAP_Y = 14;
const NAME_MAX = 19;
const MAP_PARTS = ['completed', 'failed', 'cancelled', 'open'];
const RULE_SIGNS = { none_failed: '✓ or ⇥', all_done: 'all ended', any_completed: 'any ✓', any_failed: 'any ✕' };

export function graph(nodes, { critical = new Set(), selected = null, onSelect }) {
  const { column, order } = layers(nodes);
  const byName = new Map(nodes.map((node) => [node.name, node]));
  const used = new Map();
  const spot = new Map();
  for (const name of order) {
    const c = column.get(name);
    const r = used.get(c) ?? 0;
    used.set(c, r + 1);
    spot.set(name, [c * (NODE_W + GAP_X) + 4, r * (NODE_H + GAP_Y) + 4]);
  }
  const width = (Math.max(0, ...column.values()) + 1) * (NODE_W + GAP_X) - GAP_X + 8;
  const height = Math.max(1, ...used.values()) * (NODE_H + GAP_Y) + 8;
  const edges = [];
  for (const node of nodes) {
    for (const parent of node.after ?? []) {
      if (!spot.has(parent) || !spot.has(node.name)) continue;
      const [x1, y1] = spot.get(parent);
      const [x2, y2] = spot.get(node.name);
      const isCritical = critical.has(parent) && critical.has(node.name);
      const middle = (x1 + NODE_W + x2) / 2;
      edges.push(h('path', { d: `M${x1 + NODE_W},${y1 + NODE_H / 2} C${middle},${y1 + NODE_H / 2} ${middle},${y2 + NODE_H / 2} ${x2},${y2 + NODE_H / 2}`, class: isCritical ? 'edge critical' : 'edge' }));
    }
  }
  const boxes = order.map((name) => nodeBox(byName.get(name), spot.get(name), { isCritical: critical.has(name), isSelected: selected === name, onSelect }));
  return h('div', { class: 'scroll graph', tabindex: '0', role: 'region', 'aria-label': 'Graph' },
    h('svg', { viewBox: `0 0 ${width} ${height}`, style: { width: `${width}px`, height: `${height}px` } }, ...edges, ...boxes));
}

// Sign and name; under the name of a map, a strip of its items.
function nodeBox(node, [x, y], { isCritical, isSelected, onSelect }) {
  const { name, state, kind = 'task' } = node;
  const what = kind === 'task' ? '' : `, ${kind}`;
  const rule = RULE_SIGNS[node.when];
  return h('g', { class: `node s-${String(state).toLowerCase()} k-${kind}${isCritical ? ' critical' : ''}${isSelected ? ' selected' : ''}`, tabindex: '0', role: 'button', 'aria-label': `${name}: ${state}${what}`, 'aria-pressed': String(isSelected), 'data-key': name,
    onclick: () => onSelect(name), onkeydown: (event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); onSelect(name); } } },
  h('title', {}, [name, `${state}${what}`, node.type, rule && `when ${rule}`, node.reason].filter(Boolean).join('\n')),
  h('rect', { x, y, width: NODE_W, height: NODE_H, rx: kind === 'wait' ? NODE_H / 2 : 4 }),
  h('text', { class: 'sign', x: x + 10, y: y + NODE_H / 2 + (node.map ? 0 : 4) }, sign(state)),
  h('text', { x: x + 27, y: y + NODE_H / 2 + (node.map ? 0 : 4) }, name.length > NAME_MAX ? name.slice(0, NAME_MAX - 1) + '…' : name),
  node.map && mapStrip(node.map, x + 10, y + NODE_H - 10, NODE_W - 20));
}

function mapStrip(map, x, y, width) {
  const all = Math.max(1, map.items ?? map.made);
  let at = x;
  return h('g', { class: 'strip' }, h('rect', { x, y, width, height: 5, class: 'rest' }), ...MAP_PARTS.filter((part) => map[part]).map((part) => {
    const wide = (width * map[part]) / all;
    const rect = h('rect', { x: at.toFixed(1), y, width: Math.max(1, wide).toFixed(1), height: 5, class: `h-${part === 'open' ? 'running' : part}` });
    at += wide;
    return rect;
  }));
}

// A bar for each node that has begun, and its share of the time of the whole.
export function gantt(nodes, { critical = new Set(), selected = null, onSelect }) {
  const now = Date.now();
  const instant = (text) => new Date(text).getTime();
  const timed = nodes.filter((node) => node.started_at || node.finished_at).map((node) => {
    const from = instant(node.started_at ?? node.finished_at);
    return { node, from, to: node.finished_at ? Math.max(from, instant(node.finished_at)) : Math.max(now, from) };
  });
  if (!timed.length) return h('p', { class: 'quiet' }, 'No node has started yet.');
  const first = Math.min(...timed.map((each) => each.from));
  const last = Math.max(...timed.map((each) => each.to), first + 1);
  const percent = (value) => `${((value / (last - first)) * 100).toFixed(2)}%`;
  return h('ol', { class: 'gantt' }, ...timed.map(({ node, from, to }) => {
    const took = duration((to - from) / 1000);
    const part = Math.round((100 * (to - from)) / (last - first));
    return h('li', { class: [critical.has(node.name) && 'critical', selected === node.name && 'selected'].filter(Boolean).join(' ') || null },
      h('button', { type: 'button', class: 'plain mono', title: node.name, onclick: () => onSelect(node.name) }, node.name),
      h('span', { class: 'track', title: `${node.name}: ${node.state}, ${took}` },
        h('span', { class: `bar s-${String(node.state).toLowerCase()}`, style: { left: `min(${percent(from - first)}, 100% - 3px)`, width: `max(3px, ${percent(to - from)})` } })),
      h('span', { class: 'quiet took' }, took, part > 0 && h('span', { class: 'part-of' }, ` · ${part} %`)));
  }));
}
