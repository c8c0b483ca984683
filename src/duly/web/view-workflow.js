// One workflow: graph and Gantt that share a selection, what its nodes wait for, its maps, its actions.

import { h } from './dom.js';
import { get, post, call, inTurns } from './api.js';
import { count, when, duration, shortId, clip, sentence } from './text.js';
import { chip, panel, table, emptyState, action, ask, copyButton, share, pager, isJson } from './parts.js';
import { graph, gantt, heatStrip } from './charts.js';
import { filter, link, here, go } from './place.js';

// More nodes are listed, not drawn.
const DRAWN_MAX = 400;
const PAGE = 200;
const NAMED_MAX = 8;
const STATES = ['', 'WAITING', 'SCHEDULED', 'READY', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED', 'SKIPPED'];
const MAY_SEND = { producer: 'submit', operator: 'operate', admin: 'administer' };
const RULES = {
  none_failed: 'all complete or are skipped', all_done: 'all end', any_completed: 'one completes', any_failed: 'one fails',
};

export async function workflowView({ who, subject, refresh }) {
  const at = `/v1/workflows/${subject}`;
  const { node: selected = null, cursor, state } = here().filters;
  const [flow, listed] = await inTurns([() => get(at), () => readNodes(at, { cursor, state })]);
  const { isDrawn } = listed;
  const [drawn, explained] = await inTurns([
    () => (isDrawn ? get(`${at}/graph`) : null),
    () => (isDrawn && !flow.ended_at ? get(`${at}/explain`) : { nodes: [] }),
  ]);
  const nodes = isDrawn ? joined(drawn.nodes, listed.nodes) : listed.nodes;
  const node = nodes.find((each) => each.name === selected);
  const critical = new Set(flow.critical_path ?? []);
  const onSelect = (name) => filter({ node: name === selected ? null : name, items: null, item_state: null, cursor });
  const picture = { critical, selected, onSelect };
  return [
    h('p', { class: 'crumbs' }, h('a', { href: link('workflows') }, 'Workflows'), ' / ', h('a', { href: link('workflows', null, { name: flow.name }), class: 'mono' }, flow.name)),
    h('h1', { class: 'mono' }, flow.id, ' ', copyButton(flow.id), ' ', chip(flow.state), flow.paused_at && [' ', chip('PAUSED')]),
    who.can.includes('submit') && actions(flow, refresh),
    standing(flow),
    waits({ who, flow, explained, refresh, onSelect }),
    isDrawn ? panel('Graph', graph(nodes.filter((each) => each.isInGraph), picture)) : h('p', { class: 'hint' }, `More than ${DRAWN_MAX} nodes are listed, not drawn.`),
    isDrawn && panel('Through time', gantt(nodes, picture)),
    node && await nodePanel({ who, flow, node, explained, refresh }),
    nodeTable({ nodes, isDrawn, listed, onSelect, state }),
  ];
}

// All of a graph that can be drawn, or one page of a larger one.
async function readNodes(at, { cursor, state }) {
  const first = await get(`${at}/nodes`, { limit: PAGE });
  const second = first.next_cursor ? await get(`${at}/nodes`, { limit: PAGE, cursor: first.next_cursor }) : null;
  if (!second?.next_cursor) return { isDrawn: true, nodes: [...first.items, ...(second?.items ?? [])] };
  const page = cursor || state ? await get(`${at}/nodes`, { limit: PAGE, cursor, state }) : first;
  return { isDrawn: false, nodes: page.items, next: page.next_cursor };
}

// What undoes a node is listed with the nodes and is not in the graph.
function joined(drawn, listed) {
  const known = new Map(listed.map((node) => [node.name, node]));
  const names = new Set(drawn.map((node) => node.name));
  return [
    ...drawn.map((node) => ({ ...known.get(node.name), ...node, isInGraph: true })),
    ...listed.filter((node) => !names.has(node.name)).map((node) => ({ ...node, isInGraph: false })),
  ];
}

function standing(flow) {
  const told = Object.entries(flow.counts ?? {}).filter(([, n]) => n).map(([name, n]) => `${count(n)} ${name}`).join(' · ');
  const facts = [
    flow.estimate_at && ['done ', when(flow.estimate_at)],
    flow.deadline_at && !flow.ended_at && ['must end ', when(flow.deadline_at)],
    flow.ended_at && [`took ${duration((new Date(flow.ended_at) - new Date(flow.created_at)) / 1000)}, ended `, when(flow.ended_at)],
    flow.stop_reason && `stopped: ${flow.stop_reason.replaceAll('_', ' ')}`,
    flow.paused_at && ['paused by ', h('span', { class: 'mono' }, flow.paused_by), ' ', when(flow.paused_at)],
    flow.type && ['type ', h('span', { class: 'mono' }, flow.type)],
    flow.parent && ['inside the node ', h('a', { href: link('workflows', flow.parent.workflow, { node: flow.parent.node }), class: 'mono' }, flow.parent.node)],
    flow.resumed_from && ['resumed from ', h('a', { href: link('workflows', flow.resumed_from), class: 'mono' }, shortId(flow.resumed_from))],
  ].filter(Boolean);
  return h('p', { class: 'standing' }, share(flow.counts), ' ', h('span', { class: 'quiet' }, told), ...facts.map((fact) => [' · ', fact]));
}

function actions(flow, refresh) {
  const after = (text) => { refresh(); return text; };
  const isLive = !flow.ended_at;
  return h('div', { class: 'buttons' },
    isLive && !flow.paused_at && action('Pause', async () => {
      const { waiting = 0, scheduled = 0, ready = 0, running = 0 } = flow.counts;
      const text = `${count(waiting + scheduled + ready)} nodes will not start until it goes on; ${count(running)} that run go on. A deadline passes all the same.`;
      if (!await ask({ title: 'Pause this workflow?', text, confirm: 'Pause the workflow' })) return null;
      await post(`/v1/workflows/${flow.id}/pause`);
      return after('Paused.');
    }),
    isLive && flow.paused_at && action('Go on', async () => { await post(`/v1/workflows/${flow.id}/unpause`); return after('It goes on.'); }),
    isLive && action('Cancel', async () => {
      if (!await ask({ title: 'Cancel this workflow?', text: 'Nodes that wait will not run; running ones are asked to stop.', confirm: 'Cancel the workflow', danger: true })) return null;
      await post(`/v1/workflows/${flow.id}/cancel`);
      return after('Cancelled.');
    }, { danger: true }),
    !isLive && flow.state !== 'COMPLETED' && action('Resume…', () => resume(flow, 'failed')),
    h('span', { class: 'space' }), copyButton(`duly workflows show ${flow.id}`, 'Copy command'));
}

// Looks first: what would run again and what is reused; then a new workflow.
async function resume(flow, from, node = null) {
  const at = `/v1/workflows/${flow.id}/resume`;
  const preview = await post(at, { from, dry_run: true });
  const rest = preview.again - Math.min(preview.nodes.length, NAMED_MAX);
  const given = await ask({
    title: `Run ${count(preview.again)} of ${count(preview.again + preview.reused)} nodes again?`,
    text: `A new workflow reuses the ${count(preview.reused)} others. Execution keys stay as they are.`,
    detail: h('ul', { class: 'mono' }, ...preview.nodes.slice(0, NAMED_MAX).map((name) => h('li', {}, name)), rest > 0 && h('li', {}, `and ${count(rest)} more`)),
    confirm: 'Resume',
    fields: [
      { name: 'rate', label: 'Nodes that begin a second (empty: all at once)', kind: 'number', min: 1 },
      ...(node?.type && !node.map ? [{ name: 'payload', label: `Another payload for ${node.name} (JSON; empty: as before)`, kind: 'text', rows: 4, check: (text) => (text.trim() ? isJson(text) : null) }] : []),
    ],
  });
  if (!given) return null;
  const parts = [`"from":${JSON.stringify(from)}`];
  if (given.rate) parts.push(`"rate_per_s":${Number(given.rate)}`);
  if (given.payload?.trim()) parts.push(`"payloads":{${JSON.stringify(node.name)}:${given.payload}}`);
  const made = await call('POST', at, { rawBody: `{${parts.join(',')}}` });
  go('workflows', made.id);
  return 'Resumed as a new workflow.';
}

// Nodes that have begun to wait, with the button that ends it; and what else holds the workflow back.
function waits({ who, flow, explained, refresh, onSelect }) {
  if (flow.ended_at || !explained.nodes.length) return null;
  return panel('What it waits for', table('What it waits for', [
    { title: 'Node', cell: (each) => h('button', { type: 'button', class: 'plain mono', onclick: () => onSelect(each.name) }, each.name) },
    { title: 'State', cell: (each) => chip(each.state) },
    { title: 'Waits for', className: 'grow', cell: (each) => waitWords(each) },
    { title: 'Until', cell: (each) => when(each.waits_for?.until) },
    { title: 'Act', cell: (each) => signalButton({ who, flow, explanation: each, refresh }) ?? '' },
  ], explained.nodes, { rowKey: (each) => `wait:${each.name}` }));
}

function waitWords({ detail, waits_for: waiting, parents = [], blocked_by: blockers = [] }) {
  if (waiting?.signal) return ['the signal ', h('span', { class: 'mono' }, waiting.signal), ` from the role ${waiting.role} or higher`];
  if (waiting) return 'its time';
  const pending = parents.filter((parent) => !['COMPLETED', 'FAILED', 'CANCELLED', 'SKIPPED'].includes(parent.state));
  const named = (list) => clip(list.slice(0, NAMED_MAX).map((each) => each.name).join(', '), 90);
  const first = blockers.filter((each) => !pending.some((parent) => parent.name === each.name));
  if (!pending.length || /paused|stopped/.test(detail)) return h('span', { class: 'clip wide', title: detail }, sentence(detail));
  return h('span', { class: 'clip wide', title: detail }, named(pending), first.length ? h('span', { class: 'quiet' }, `; first ${named(first)}`) : '');
}

// Only for who may send it.
function signalButton({ who, flow, explanation, refresh }) {
  const waiting = explanation.waits_for;
  if (!waiting?.signal || !who.can.includes(MAY_SEND[waiting.role] ?? 'administer')) return null;
  return action(`Send ${waiting.signal}`, async () => {
    const given = await ask({
      title: `Send the signal ${waiting.signal}?`, text: `The node ${explanation.name} ends with it and answers with the payload. It is sent as ${who.actor}.`, confirm: 'Send',
      fields: [{ name: 'payload', label: 'Payload (JSON)', kind: 'text', rows: 3, value: 'null', check: isJson }],
    });
    if (!given) return null;
    await call('POST', `/v1/workflows/${flow.id}/signals`, { rawBody: `{"name":${JSON.stringify(waiting.signal)},"payload":${given.payload}}` });
    refresh();
    return `Sent: ${waiting.signal}`;
  }, { className: 'small' });
}

async function nodePanel({ who, flow, node, explained, refresh }) {
  const known = explained.nodes.find((each) => each.name === node.name) ?? await explain(flow, node);
  const button = known && !flow.ended_at && signalButton({ who, flow, explanation: known, refresh });
  const again = flow.ended_at && who.can.includes('submit') && node.isInGraph !== false && action('Run again from here…', () => resume(flow, [node.name], node), { className: 'small' });
  const rows = [
    ['State', chip(node.state)],
    ['Why', known && known.detail !== 'has ended' && (known.waits_for ? ['waits for ', waitWords(known), known.waits_for.until && [', until ', when(known.waits_for.until)]] : sentence(known.detail))],
    ['Type', h('span', { class: 'mono' }, node.type ?? node.kind ?? '–')],
    ['Task', node.id && h('a', { href: link('tasks', node.id), class: 'mono' }, node.id)],
    ['Workflow', node.workflow && [h('a', { href: link('workflows', node.workflow.id), class: 'mono' }, node.workflow.name), ' ', chip(node.workflow.state)]],
    ['After', node.after?.length ? [clip(node.after.join(', '), 200), RULES[node.when] && `, when ${RULES[node.when]}`] : null],
    ['Reason', node.reason?.replaceAll('_', ' ')],
    ['Ran', node.started_at && node.state !== 'WAITING' && duration((new Date(node.finished_at ?? Date.now()) - new Date(node.started_at)) / 1000)],
    ['Reused from', node.source && h('a', { href: link('tasks', node.source), class: 'mono' }, node.source)],
  ];
  return panel(`Node ${node.name}`,
    (button || again) && h('div', { class: 'buttons' }, button, again),
    h('dl', { class: 'facts' }, ...rows.filter(([, value]) => value).map(([name, value]) => [h('dt', {}, name), h('dd', {}, value)])),
    node.map && await mapItems(flow, node));
}

async function explain(flow, node) {
  const found = await get(`/v1/workflows/${flow.id}/explain`, { node: node.name });
  return found.nodes[0] ?? null;
}

// A cell for each item of a page, and how far the whole map is.
async function mapItems(flow, node) {
  const { items: cursor, item_state: state } = here().filters;
  const page = await get(`/v1/workflows/${flow.id}/nodes`, { map: node.name, limit: PAGE, cursor, state });
  const { items, made, open, completed, failed, cancelled, tolerated } = node.map;
  const told = [items === undefined ? `${count(made)} items so far` : `${count(made)} of ${count(items)} items made`, `${count(completed)} completed`, `${count(open)} open`, `${count(failed)} failed`, cancelled && `${count(cancelled)} cancelled`, tolerated !== undefined && `${count(tolerated)} may fail`].filter(Boolean).join(' · ');
  const [first, last] = [page.items[0]?.index, page.items.at(-1)?.index];
  const choose = h('select', { 'aria-label': 'Items in state', onchange: (event) => filter({ item_state: event.target.value, items: null, cursor: here().filters.cursor }) },
    ...STATES.map((each) => h('option', { value: each, selected: (state ?? '') === each }, each ? each.toLowerCase() : 'all items')));
  const label = page.items.length ? `Items ${count(first)} to ${count(last)}: ${stateWords(page.items)}` : 'No items in this state';
  return h('div', { class: 'map-items' },
    h('p', {}, share(mapCounts(node.map)), ' ', h('span', { class: 'quiet' }, told)),
    h('p', { class: 'hint' }, label, ' ', choose),
    page.items.length > 0 && heatStrip(page.items, { label, tone: (item) => item.state.toLowerCase(), title: (item) => `item ${item.index}: ${item.state}${item.reason ? `, ${item.reason}` : ''}`, href: (item) => link('tasks', item.id) }),
    h('div', { class: 'pager' },
      cursor && h('button', { type: 'button', onclick: () => filter({ items: null, cursor: here().filters.cursor }) }, 'First items'),
      page.next_cursor && h('button', { type: 'button', onclick: () => filter({ items: page.next_cursor, cursor: here().filters.cursor }) }, 'Next items →')));
}

export function mapCounts({ items, made, open, completed, failed, cancelled }) {
  return { completed, failed, cancelled, running: open, waiting: Math.max(0, (items ?? made) - made) };
}

function stateWords(items) {
  const counts = new Map();
  for (const item of items) counts.set(item.state, (counts.get(item.state) ?? 0) + 1);
  return [...counts].map(([state, n]) => `${n} ${state.toLowerCase()}`).join(', ');
}

function nodeTable({ nodes, isDrawn, listed, onSelect, state }) {
  const choose = !isDrawn && h('p', {}, h('select', { 'aria-label': 'Nodes in state', onchange: (event) => filter({ state: event.target.value }) },
    ...STATES.map((each) => h('option', { value: each, selected: (state ?? '') === each }, each ? each.toLowerCase() : 'any state'))));
  return panel('Nodes', choose, table('Nodes', [
    { title: 'State', cell: (each) => chip(each.state) },
    { title: 'Name', cell: (each) => h('button', { type: 'button', class: 'plain mono', onclick: () => onSelect(each.name) }, clip(each.name, 40)) },
    { title: 'Runs', cell: (each) => h('span', { class: 'mono clip' }, each.type ?? each.kind ?? '–') },
    { title: 'Items', cell: (each) => (each.map ? share(mapCounts(each.map)) : '') },
    { title: 'After', cell: (each) => h('span', { class: 'clip', title: (each.after ?? []).join(', ') }, each.after ? each.after.join(', ') : each.parents ? `${each.parents} nodes` : '') },
    { title: 'Task', cell: (each) => (each.id ? h('a', { href: link('tasks', each.id), class: 'mono', title: each.id }, shortId(each.id)) : '–') },
    { title: 'Reason', cell: (each) => (each.reason ?? '').replaceAll('_', ' ') },
    { title: 'Took', align: 'right', cell: (each) => (each.started_at && each.finished_at ? duration((new Date(each.finished_at) - new Date(each.started_at)) / 1000) : '') },
    { title: 'Ended', cell: (each) => when(each.finished_at) },
  ], nodes, { rowKey: (each) => each.name, empty: emptyState('No nodes in this state.') }),
  !isDrawn && pager(here().filters, listed.next, (next) => filter({ cursor: next })));
}
