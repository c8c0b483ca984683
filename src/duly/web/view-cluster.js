// The cluster: nodes and their roles, who owns which slot, what readiness says.

import { h } from './dom.js';
import { get, inTurns, address } from './api.js';
import { count, when } from './text.js';
import { panel, table, emptyState, figure } from './parts.js';
import { heatStrip } from './charts.js';

const PAGE = 200;

export async function clusterView() {
  const [nodes, slots, ready] = await inTurns([
    () => get('/v1/nodes', { limit: PAGE }),
    () => get('/v1/shards', { limit: PAGE }),
    () => fetch(address('/readyz')).then((answer) => answer.json()).catch((error) => ({ status: String(error), checks: {} })),
  ]);
  const live = nodes.items.filter((node) => node.is_live);
  const owned = slots.items.filter((slot) => slot.is_owned).length;
  const checks = Object.entries(ready.checks ?? {});
  const passed = checks.filter(([, said]) => said === 'ok').map(([name]) => name.replace('role:', ''));
  const failing = checks.filter(([, said]) => said !== 'ok');
  const names = [...new Set(slots.items.map((slot) => slot.node))];
  return [
    h('h1', {}, 'Cluster'),
    h('div', { class: 'figures' },
      figure('Ready', ready.status, { tone: ready.status === 'ready' || ready.status === 'ok' ? 'good' : 'bad' }),
      figure('Nodes', count(live.length)),
      figure('Slots owned', `${owned}/${slots.items.length}`, { tone: owned === slots.items.length ? null : 'bad' })),
    panel('Checks', passed.length > 0 && h('p', {}, h('span', { class: 'tone-good' }, `✓ ${count(passed.length)} ok: `), h('span', { class: 'quiet' }, passed.join(', '))), failing.length > 0 && table('Checks', [
      { title: 'Check', cell: ([name]) => name },
      { title: 'Answer', className: 'grow', cell: ([, said]) => h('span', { class: 'tone-bad' }, said) },
    ], failing)),
    panel('Nodes', table('Nodes', [
      { title: 'Node', cell: (node) => h('span', { class: 'mono', title: node.id }, node.name) },
      { title: 'State', cell: (node) => (node.is_live ? (Object.keys(node.failing).length ? h('span', { class: 'tone-bad' }, '✕ failing') : h('span', { class: 'tone-good' }, '✓ live')) : h('span', { class: 'quiet' }, 'gone')) },
      { title: 'Roles', cell: (node) => node.roles.join(', ') },
      { title: 'Slots', align: 'right', cell: (node) => count(node.slots) },
      { title: 'Carrier', cell: (node) => carrierOf(node) },
      { title: 'Version', cell: (node) => node.version },
      { title: 'Since', cell: (node) => when(node.started_at) },
      { title: 'Seen', cell: (node) => when(node.seen_at) },
      { title: 'Problems', className: 'grow', cell: (node) => Object.entries(node.failing).map(([role, why]) => h('p', { class: 'tone-bad' }, `${role}: ${why}`)) },
    ], nodes.items, { rowKey: (node) => node.id, empty: emptyState('No node is known.') })),
    panel('Slots', heatStrip(slots.items, {
      label: `${owned} of ${slots.items.length} slots have an owner`,
      tone: (slot) => (slot.is_owned ? `n${names.indexOf(slot.node) % 6}` : 'bad'),
      title: (slot) => `slot ${slot.slot}, shards ${slot.first_shard} to ${slot.last_shard}\n${slot.is_owned ? slot.node : 'no owner'}, epoch ${slot.epoch}`,
    })),
  ];
}

function carrierOf({ carrier }) {
  if (!carrier) return '–';
  const title = carrier.address || carrier.kind;
  return carrier.problem
    ? h('span', { class: 'tone-bad', title: `${title}: ${carrier.problem}` }, `✕ ${carrier.kind}`)
    : h('span', { title }, carrier.kind);
}
