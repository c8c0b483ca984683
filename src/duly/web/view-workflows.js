// Workflows: the list, and one as graph and Gantt that share a selection.

import { h } from './dom.js';
import { get, post, inTurns } from './api.js';
import { count, when, duration, shortId } from './text.js';
import { chip, panel, table, emptyState, filterForm, pager, action, ask, copyButton } from './parts.js';
import { graph, gantt } from './charts.js';
import { filter, link, here } from './place.js';

const STATES = ['', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED'];
const DRAWN_MAX = 400;

export async function workflowsView({ filters }) {
  const { state, name, cursor } = filters;
  const page = await get('/v1/workflows', { state, name, cursor, limit: 50 });
  return [
    h('h1', {}, 'Workflows'),
    filterForm([
      { name: 'name', label: 'Name', placeholder: 'invoice.month', isSearch: true, size: 24 },
      { name: 'state', label: 'State', options: STATES.map((each) => [each, each || 'any']) },
    ], filters, (changes) => filter(changes)),
    table('Workflows', [
      { title: 'State', cell: (flow) => chip(flow.state) },
      { title: 'Name', cell: (flow) => h('a', { href: link('workflows', flow.id), class: 'mono', title: flow.id }, flow.name) },
      { title: 'Id', cell: (flow) => h('span', { class: 'mono quiet', title: flow.id }, shortId(flow.id)) },
      { title: 'Nodes', cell: (flow) => share(flow.counts) },
      { title: 'Created', cell: (flow) => when(flow.created_at) },
      { title: 'Ended', cell: (flow) => when(flow.ended_at) },
    ], page.items, { rowKey: (flow) => flow.id, rowLink: (flow) => link('workflows', flow.id), empty: emptyState('No workflows. Submit the first:', 'duly workflows submit flow.json') }),
    pager(filters, page.next_cursor, (next) => filter({ cursor: next })),
  ];
}

function share(counts = {}) {
  const order = ['completed', 'running', 'ready', 'scheduled', 'waiting', 'skipped', 'cancelled', 'failed'];
  const all = order.reduce((sum, name) => sum + (counts[name] ?? 0), 0);
  const said = order.filter((name) => counts[name]).map((name) => `${counts[name]} ${name}`).join(', ');
  return h('span', { class: 'share', title: said, role: 'img', 'aria-label': said },
    ...order.filter((name) => counts[name]).map((name) => h('span', { class: `part s-${name}`, style: { width: `${(100 * counts[name]) / all}%` } })));
}

export async function workflowView({ who, subject, refresh }) {
  const [flow, drawn, page] = await inTurns([
    () => get(`/v1/workflows/${subject}`),
    () => get(`/v1/workflows/${subject}/graph`),
    () => get(`/v1/workflows/${subject}/nodes`, { limit: 200 }),
  ]);
  const timed = new Map(page.items.map((node) => [node.name, node]));
  const nodes = drawn.nodes.map((node) => ({ ...node, ...timed.get(node.name) }));
  const critical = new Set(flow.critical_path ?? []);
  const selected = here().filters.node ?? null;
  const onSelect = (name) => filter({ node: name });
  const node = nodes.find((each) => each.name === selected);
  return [
    h('p', { class: 'crumbs' }, h('a', { href: link('workflows') }, 'Workflows'), ' / ', h('span', { class: 'mono' }, flow.name)),
    h('h1', { class: 'mono' }, flow.id, ' ', copyButton(flow.id), ' ', chip(flow.state)),
    who.can.includes('submit') && h('div', { class: 'buttons' },
      !flow.ended_at && action('Cancel', async () => {
        if (!await ask({ title: 'Cancel this workflow?', text: 'Nodes that wait will not run; running ones are asked to stop.', confirm: 'Cancel the workflow', danger: true })) return null;
        await post(`/v1/workflows/${flow.id}/cancel`);
        refresh();
        return 'Cancelled.';
      }, { danger: true })),
    h('p', {}, share(flow.counts), ' ', h('span', { class: 'quiet' }, Object.entries(flow.counts ?? {}).filter(([, n]) => n).map(([name, n]) => `${count(n)} ${name}`).join(' · ')), flow.estimate_at && [' · done ', when(flow.estimate_at)]),
    nodes.length > 0 && nodes.length <= DRAWN_MAX ? panel('Graph', graph(nodes, { critical, selected, onSelect })) : h('p', { class: 'hint' }, `${count(nodes.length)} nodes: too many to draw.`),
    nodes.length > 0 && nodes.length <= DRAWN_MAX ? panel('Through time', gantt(nodes, { critical, selected, onSelect })) : null,
    node && panel(`Node ${node.name}`, h('dl', { class: 'facts' },
      h('dt', {}, 'State'), h('dd', {}, chip(node.state)),
      node.id && [h('dt', {}, 'Task'), h('dd', {}, h('a', { href: link('tasks', node.id), class: 'mono' }, node.id))],
      h('dt', {}, 'After'), h('dd', {}, (node.after ?? []).join(', ') || '–'),
      node.started_at && [h('dt', {}, 'Ran'), h('dd', {}, duration((new Date(node.finished_at ?? Date.now()) - new Date(node.started_at)) / 1000))]),
    ),
    panel('Nodes', table('Nodes', [
      { title: 'State', cell: (each) => chip(each.state) },
      { title: 'Name', cell: (each) => h('button', { type: 'button', class: 'plain mono', onclick: () => onSelect(each.name) }, each.name) },
      { title: 'Type', cell: (each) => h('span', { class: 'mono' }, each.type ?? '–') },
      { title: 'After', cell: (each) => h('span', { class: 'clip' }, (each.after ?? []).join(', ')) },
      { title: 'Task', cell: (each) => (each.id ? h('a', { href: link('tasks', each.id), class: 'mono' }, shortId(each.id)) : '–') },
      { title: 'Ended', cell: (each) => when(each.finished_at) },
    ], nodes.slice(0, 500), { rowKey: (each) => each.name, empty: emptyState('No nodes.') })),
  ];
}
