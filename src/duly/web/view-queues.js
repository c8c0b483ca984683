// Queues and pools: what waits in each band, which workers serve which pool, what is paused or broken.

import { h } from './dom.js';
import { get, post, inTurns } from './api.js';
import { count, when, duration } from './text.js';
import { panel, table, emptyState, action, ask } from './parts.js';
import { link } from './place.js';

const NOTHING = { items: [] };

export async function queuesView({ who, refresh }) {
  const canLook = who.can.includes('observe');
  const canOperate = who.can.includes('operate');
  const [now, workers, pauses, breakers] = await inTurns([
    () => get('/v1/stats/now'),
    () => (canLook ? get('/v1/workers', { limit: 200 }) : NOTHING),
    () => (canLook ? get('/v1/pauses', { limit: 200 }) : NOTHING),
    () => get('/v1/breakers', { limit: 200 }),
  ]);
  const pools = new Map();
  for (const worker of workers.items) for (const pool of worker.pools) pools.set(pool, [...(pools.get(pool) ?? []), worker]);
  const paused = new Set(pauses.items.filter((each) => each.kind === 'pool').map((each) => each.name));
  const waiting = new Map(now.pools.map((pool) => [pool.name, pool]));
  for (const name of [...paused, ...waiting.keys()]) if (!pools.has(name)) pools.set(name, []);
  return [
    h('h1', {}, 'Queues'),
    canOperate && h('div', { class: 'buttons' }, pauseButton(refresh)),
    panel('Bands', table('Bands', [
      { title: 'Band', cell: (band) => band.band },
      { title: 'Ready', align: 'right', cell: (band) => h('a', { href: link('tasks', null, { state: 'READY' }) }, count(band.ready, now.count_max)) },
      { title: 'Scheduled', align: 'right', cell: (band) => count(band.scheduled, now.count_max) },
      { title: 'Oldest ready', align: 'right', cell: (band) => duration(band.oldest_ready_s) },
    ], now.bands, { rowKey: (band) => band.band })),
    canLook && panel('Pools', table('Pools', [
      { title: 'Pool', cell: ([name]) => h('span', { class: 'mono' }, name) },
      { title: 'Workers', align: 'right', cell: ([name, list]) => (list.length ? count(list.length) : h('span', { class: waiting.has(name) ? 'tone-bad' : 'quiet' }, 'none')) },
      { title: 'Oldest ready', align: 'right', cell: ([name]) => duration(waiting.get(name)?.oldest_ready_s) },
      { title: 'State', cell: ([name]) => (paused.has(name) ? h('span', { class: 'tone-warn' }, '‖ paused') : '–') },
      ...(canOperate ? [{ title: 'Act', cell: ([name]) => (paused.has(name)
        ? action('Resume', async () => { await post('/v1/pauses/resume', { kind: 'pool', name }); refresh(); return 'Resumed.'; }, { className: 'small' })
        : action('Pause', () => pause('pool', name, refresh), { className: 'small' })) }] : []),
    ], [...pools.entries()].sort(), { rowKey: ([name]) => name, empty: emptyState('No worker is connected, no pool is paused, and no task waits in one.', 'duly worker myapp:worker') })),
    canLook && panel('Workers', table('Workers', [
      { title: 'Worker', cell: (worker) => h('span', { class: 'mono', title: worker.holder }, worker.id) },
      { title: 'Pools', cell: (worker) => worker.pools.join(', ') },
      { title: 'Since', cell: (worker) => when(worker.started_at) },
      { title: 'Seen', cell: (worker) => when(worker.seen_at) },
    ], workers.items, { rowKey: (worker) => worker.holder, empty: emptyState('No worker is connected.') })),
    canLook && panel('Pauses', table('Pauses', [
      { title: 'What', cell: (each) => each.kind },
      { title: 'Name', cell: (each) => h('span', { class: 'mono' }, each.name ?? 'all of the tenant') },
      { title: 'Why', className: 'grow', cell: (each) => each.reason },
      { title: 'By', cell: (each) => h('span', { class: 'mono quiet' }, each.actor) },
      { title: 'Since', cell: (each) => when(each.paused_at) },
      ...(canOperate ? [{ title: 'Act', cell: (each) => action('Resume', async () => { await post('/v1/pauses/resume', { kind: each.kind, ...(each.name ? { name: each.name } : {}) }); refresh(); return 'Resumed.'; }, { className: 'small' }) }] : []),
    ], pauses.items, { rowKey: (each) => `${each.kind}:${each.name}`, empty: emptyState('Nothing is paused.') })),
    panel('Breakers', table('Breakers', [
      { title: 'Kind', cell: (each) => each.kind },
      { title: 'Name', cell: (each) => h('span', { class: 'mono' }, each.name) },
      { title: 'Phase', cell: (each) => each.phase },
      { title: 'Why', className: 'grow', cell: (each) => each.reason },
      { title: 'Next probe', cell: (each) => when(each.open_until) },
      ...(canOperate ? [{ title: 'Act', cell: (each) => action('Close', async () => { await post('/v1/breakers/close', { kind: each.kind, name: each.name }); refresh(); return 'Closed.'; }, { className: 'small' }) }] : []),
    ], breakers.items, { rowKey: (each) => `${each.kind}:${each.name}`, empty: emptyState('No breaker is open.') })),
  ];
}

async function pause(kind, name, refresh) {
  const given = await ask({ title: name ? `Pause ${kind} ${name}?` : 'Pause the whole tenant?', text: 'What runs goes on; nothing new starts until it is resumed.', confirm: 'Pause', danger: !name, fields: [{ name: 'reason', label: 'Why', required: true, most: 200 }] });
  if (!given) return null;
  await post('/v1/pauses', { kind, ...(name ? { name } : {}), reason: given.reason });
  refresh();
  return 'Paused.';
}

function pauseButton(refresh) {
  return action('Pause…', async () => {
    const given = await ask({ title: 'Pause', confirm: 'Next', fields: [{ name: 'kind', label: 'tenant, type or pool', value: 'type', required: true, pattern: 'tenant|type|pool' }, { name: 'name', label: 'Name (empty for the tenant)' }] });
    return given ? pause(given.kind, given.name || null, refresh) : null;
  });
}
