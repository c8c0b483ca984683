// The first screen: are we late, who is, and why. Healthy is quiet.

import { h } from './dom.js';
import { get, inTurns } from './api.js';
import { count, duration, rate, when, clip } from './text.js';
import { panel, figure, table, emptyState } from './parts.js';
import { sparkline, byMinute } from './charts.js';
import { link } from './place.js';

const LATE_S = 1;
const OLD_S = 5;

export async function nowView({ who }) {
  const isOperator = who.reach === 'installation';
  const canLook = who.can.includes('observe');
  const [now, hour, letters, pauses, tenants, workers] = await inTurns([
    () => get('/v1/stats/now'),
    () => get('/v1/stats'),
    () => get('/v1/dead-letters', { group_by: 'fingerprint', limit: 5 }),
    () => (canLook ? get('/v1/pauses', { limit: 20 }) : { items: [] }),
    () => (isOperator ? get('/v1/stats/tenants', { limit: 10 }) : null),
    () => (canLook ? get('/v1/workers', { limit: 200 }) : null),
  ]);
  const { ready, scheduled } = inAll(now);
  const oldest = Math.max(0, ...now.bands.map((band) => band.oldest_ready_s ?? 0));
  const verdict = judge({ now, ready: ready.sum, oldest, workers: workers?.items, pauses: pauses.items });
  return [
    h('h1', {}, 'Now'),
    h('p', { class: `verdict tone-${verdict.tone}`, role: 'status' }, h('strong', {}, verdict.title), ' ', verdict.text),
    h('div', { class: 'figures' },
      figure('Lag, p99 of 5 min', duration(now.lag_p99_s), { tone: (now.lag_p99_s ?? 0) > LATE_S ? 'warn' : null, hint: `p50 ${duration(now.lag_p50_s)}`, href: link('tasks', null, { state: 'RUNNING' }) }),
      figure('Oldest ready', ready.sum ? duration(oldest) : '–', { tone: oldest > OLD_S ? 'warn' : null, href: link('tasks', null, { state: 'READY', order: 'run_at' }) }),
      figure('Ready', ready.text, { href: link('tasks', null, { state: 'READY' }), hint: now.drain_s ? `drained in ${ready.isMore ? '≥ ' : ''}${duration(now.drain_s)}` : null }),
      figure('Running', count(now.in_flight), { href: link('tasks', null, { state: 'RUNNING' }) }),
      figure('Scheduled', scheduled.text, { href: link('tasks', null, { state: 'SCHEDULED' }) }),
      figure('Started', `${rate(now.started_per_s)}/s`, { href: link('tasks') }),
      figure('Failed, last hour', count(hour.total.failed), { tone: hour.total.failed ? 'warn' : null, hint: hour.total.started ? `${share(hour.total.failed, hour.total.completed + hour.total.failed)} of what ended` : null, href: link('tasks', null, { state: 'FAILED' }) }),
      figure('Dead letters', count(now.dead_letters, now.count_max), { tone: now.dead_letters ? 'warn' : null, href: link('dead-letters') })),
    trends(hour),
    h('div', { class: 'columns' },
      panel('Waiting by band', table('Waiting by band', [
        { title: 'Band', cell: (band) => band.band },
        { title: 'Ready', align: 'right', cell: (band) => h('a', { href: link('tasks', null, { state: 'READY' }) }, count(band.ready, now.count_max)) },
        { title: 'Scheduled', align: 'right', cell: (band) => count(band.scheduled, now.count_max) },
        { title: 'Oldest', align: 'right', cell: (band) => duration(band.oldest_ready_s) },
      ], now.bands)),
      panel('Failing most', table('Failures by error', [
        { title: 'Tasks', align: 'right', cell: (group) => count(group.count) },
        { title: 'Error', cell: (group) => h('a', { href: link('dead-letters', null, { fingerprint: group.fingerprint }), class: 'clip', title: group.example }, clip(group.example ?? group.reason, 70)) },
        { title: 'Type', cell: (group) => h('span', { class: 'mono' }, group.type) },
        { title: 'Last', cell: (group) => when(group.last_at) },
      ], letters.items, { empty: emptyState('No dead letters.') })),
      blocked(now, pauses.items),
      tenants && panel('Tenants that wait longest', table('Tenants', [
        { title: 'Tenant', cell: (row) => h('a', { href: link('tenants', row.tenant) }, row.tenant) },
        { title: 'Lag p99', align: 'right', cell: (row) => duration(row.lag_p99_s) },
        { title: 'Started', align: 'right', cell: (row) => count(row.started) },
        { title: 'Failed', align: 'right', cell: (row) => count(row.failed) },
      ], tenants.items, { empty: emptyState('Nothing started in the last five minutes.') }))),
  ];
}

// Of all bands; one that stopped counting makes the sum a lower bound.
function inAll(now) {
  const of = (name) => {
    const sum = now.bands.reduce((all, band) => all + band[name], 0);
    const isMore = now.bands.some((band) => band[name] >= now.count_max);
    return { sum, isMore, text: count(sum) + (isMore ? '+' : '') };
  };
  return { ready: of('ready'), scheduled: of('scheduled') };
}

function share(part, all) {
  const percent = all ? (100 * part) / all : 0;
  return percent && percent < 0.1 ? '< 0.1 %' : `${percent.toFixed(percent < 10 ? 1 : 0)} %`;
}

// One sentence: what an operator at three in the morning has to know first.
function judge({ now, ready, oldest, workers, pauses }) {
  if (now.breakers.length) return { tone: 'bad', title: 'A breaker is open.', text: `${now.breakers.map((each) => each.name).slice(0, 3).join(', ')}: nearly everything sent there fails.` };
  if (ready && oldest > OLD_S && pauses.length) return { tone: 'warn', title: 'Tasks wait behind a pause.', text: `The oldest has waited ${duration(oldest)}.` };
  if (ready && oldest > OLD_S && workers && !workers.length) return { tone: 'bad', title: 'Tasks wait, and no worker is connected.', text: `The oldest has waited ${duration(oldest)}.` };
  if (ready && oldest > OLD_S) return { tone: 'warn', title: 'We are late.', text: `The oldest ready task has waited ${duration(oldest)}${now.drain_s ? `; the backlog lasts ${duration(now.drain_s)} at this pace` : ''}.` };
  if ((now.lag_p99_s ?? 0) > LATE_S) return { tone: 'warn', title: 'Some tasks start late.', text: `One in a hundred starts ${duration(now.lag_p99_s)} after its time.` };
  return { tone: 'good', title: 'On time.', text: now.lag_p99_s === null ? 'Nothing was started in the last five minutes.' : `99 of 100 tasks start within ${duration(now.lag_p99_s)} of their time.` };
}

function trends(hour) {
  const end = new Date(hour.to).getTime();
  const from = Math.floor(end / 60000) * 60000 - 59 * 60000;
  const line = (pick) => byMinute(hour.items, pick, { from });
  const submitted = line((point) => point.submitted);
  const completed = line((point) => point.completed);
  const failed = line((point) => point.failed);
  const retried = line((point) => point.retried);
  const lag = line((point) => point.lag_p99_s);
  const most = Math.max(1, ...submitted, ...completed, ...failed, ...retried);
  const cell = (title, values, options) => h('figure', {}, h('figcaption', {}, title), sparkline(values, options), h('p', { class: 'hint' }, `now ${count(Math.round(values.at(-1)))} · most ${count(Math.round(Math.max(...values)))}`));
  return panel('Last hour, by minute', h('div', { class: 'sparks' },
    cell('Submitted', submitted, { most, label: 'submitted by minute' }),
    cell('Completed', completed, { most, label: 'completed by minute', kind: 'good' }),
    cell('Retried', retried, { most, label: 'retried by minute', kind: 'warn' }),
    cell('Failed', failed, { most, label: 'failed by minute', kind: 'bad' }),
    h('figure', {}, h('figcaption', {}, 'Lag p99'), sparkline(lag, { label: 'lag p99 by minute', most: Math.max(0.01, ...lag) }), h('p', { class: 'hint' }, `most ${duration(Math.max(...lag))}`))));
}

function blocked(now, pauses) {
  const rows = [
    ...now.breakers.map((each) => ({ what: `breaker ${each.kind}`, name: each.name, why: each.reason, until: each.open_until })),
    ...pauses.map((each) => ({ what: `pause ${each.kind ?? each.scope ?? ''}`, name: each.name ?? '', why: each.reason, until: each.until })),
  ];
  return panel('Held back', table('Held back', [
    { title: 'What', cell: (row) => row.what },
    { title: 'Name', cell: (row) => h('span', { class: 'mono' }, row.name || 'everything') },
    { title: 'Why', cell: (row) => clip(row.why ?? '', 60) },
    { title: 'Until', cell: (row) => when(row.until) },
  ], rows, { empty: emptyState('Nothing is paused, no breaker is open.') }));
}
