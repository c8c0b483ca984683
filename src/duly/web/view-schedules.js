// Schedules: next fires in words, the ledger of what became of each fire, and the forecast.

import { h } from './dom.js';
import { get, post, inTurns } from './api.js';
import { count, when, duration, cronInWords } from './text.js';
import { chip, panel, table, emptyState, filterForm, pager, action, ask, jsonBlock } from './parts.js';
import { heatStrip, sparkline } from './charts.js';
import { filter, link, go } from './place.js';

export async function schedulesView({ filters }) {
  const { name, paused, flagged, cursor } = filters;
  const [page, forecast] = await inTurns([
    () => get('/v1/schedules', { name_prefix: name, paused, flagged, cursor, limit: 50 }),
    () => get('/v1/forecast', { hours: 24 }).catch(() => null),
  ]);
  return [
    h('h1', {}, 'Schedules'),
    filterForm([
      { name: 'name', label: 'Name begins with', isSearch: true, size: 20 },
      { name: 'paused', label: 'Paused', options: [['', 'any'], ['true', 'paused'], ['false', 'active']] },
    ], filters, (changes) => filter(changes)),
    table('Schedules', [
      { title: 'State', cell: (each) => chip(each.state === 'ACTIVE' ? 'SCHEDULED' : each.state === 'PAUSED' ? 'PAUSED' : 'COMPLETED', each.state) },
      { title: 'Name', cell: (each) => h('a', { href: link('schedules', each.id), class: 'mono' }, each.name) },
      { title: 'When', cell: (each) => h('span', { title: `${each.cron ?? `every ${each.every_s} s`} (${each.timezone})` }, each.cron ? cronInWords(each.cron) : `every ${duration(each.every_s)}`) },
      { title: 'Zone', cell: (each) => h('span', { class: 'quiet' }, each.timezone) },
      { title: 'Type', cell: (each) => h('span', { class: 'mono clip' }, each.task?.type ?? each.workflow?.name ?? '–') },
      { title: 'Next', cell: (each) => when(each.next_due_at ?? each.next_at) },
      { title: 'Fires', align: 'right', cell: (each) => count(each.fires) },
    ], page.items, { rowKey: (each) => each.id, rowLink: (each) => link('schedules', each.id), empty: emptyState('No schedules. Make the first:', `duly schedules create nightly report.make --cron "0 2 * * *" --timezone Europe/Berlin`) }),
    pager(filters, page.next_cursor, (next) => filter({ cursor: next })),
    forecast && panel('Next 24 hours', forecastStrip(forecast)),
  ];
}

function forecastStrip(forecast) {
  const minutes = forecast.minutes.schedules.map((expected, index) => expected + forecast.minutes.tasks[index]);
  if (!minutes.some(Boolean)) return h('p', { class: 'quiet' }, 'Nothing is expected.');
  const size = Math.max(1, Math.floor(minutes.length / 180));
  const summed = Array.from({ length: Math.ceil(minutes.length / size) }, (_, index) => minutes.slice(index * size, (index + 1) * size).reduce((a, b) => a + b, 0));
  return [sparkline(summed, { width: 900, height: 60, label: `expected tasks by ${size} minutes` }), h('p', { class: 'hint' }, `${count(Math.round(summed.reduce((a, b) => a + b, 0)))} expected · most ${count(Math.round(Math.max(...summed)))} in ${size} min`)];
}

export async function scheduleView({ who, subject, refresh }) {
  const [one, ledger] = await inTurns([
    () => get(`/v1/schedules/${subject}`),
    () => get(`/v1/schedules/${subject}/occurrences`, { limit: 100 }),
  ]);
  const fields = ['cron', 'every_s', 'timezone', 'start_at', 'end_at', 'jitter_s', 'exclude_dates', 'dst_gap', 'dst_repeat'];
  const asked = Object.fromEntries(fields.filter((name) => one[name] !== null && one[name] !== undefined && !(Array.isArray(one[name]) && !one[name].length)).map((name) => [name, one[name]]));
  const preview = await post('/v1/schedules/preview', { ...asked, count: 10 }).catch(() => null);
  const isPaused = one.state === 'PAUSED';
  return [
    h('p', { class: 'crumbs' }, h('a', { href: link('schedules') }, 'Schedules')),
    h('h1', { class: 'mono' }, one.name, ' ', chip(isPaused ? 'PAUSED' : 'SCHEDULED', one.state)),
    who.can.includes('operate') && h('div', { class: 'buttons' },
      action('Trigger now', async () => { const made = await post(`/v1/schedules/${one.id}/trigger`); go('tasks', made.id); return 'A task was made.'; }),
      isPaused
        ? action('Resume', async () => { await post(`/v1/schedules/${one.id}/resume`); refresh(); return 'It fires again.'; })
        : action('Pause', async () => {
          const given = await ask({ title: `Pause ${one.name}?`, confirm: 'Pause', fields: [{ name: 'reason', label: 'Why', required: true, most: 200 }] });
          if (!given) return null;
          await post(`/v1/schedules/${one.id}/pause`, { reason: given.reason });
          refresh();
          return 'Paused.';
        })),
    h('p', { class: 'verdict' }, one.cron ? `${cronInWords(one.cron)} (${one.cron})` : `every ${duration(one.every_s)}`, ` in ${one.timezone}; a missed fire: ${one.misfire}; overlap: ${one.overlap}.`),
    h('div', { class: 'columns' },
      panel('Next fires', preview ? h('ol', { class: 'mono' }, ...(preview.fires ?? preview.items ?? []).map((fire) => h('li', {}, when(fire.at ?? fire.nominal_at ?? fire.due_at ?? fire)))) : emptyState('No preview.')),
      panel('Task', jsonBlock(one.task, 'Task'))),
    panel('Ledger', heatStrip([...ledger.items].reverse(), { label: 'what became of the last fires', tone: (each) => tone(each.verdict), title: (each) => `${each.verdict}\n${each.nominal_at}` }),
      table('Ledger', [
        { title: 'Nominal', cell: (each) => when(each.nominal_at) },
        { title: 'Verdict', cell: (each) => h('span', { class: `tone-${tone(each.verdict)}` }, each.verdict.replaceAll('_', ' ')) },
        { title: 'Late', align: 'right', cell: (each) => duration(each.late_s) },
        { title: 'Task', cell: (each) => (each.task_id ? h('a', { href: link('tasks', each.task_id), class: 'mono' }, each.task_id) : '–') },
      ], ledger.items, { rowKey: (each) => each.nominal_at, empty: emptyState('It has not fired yet.') })),
  ];
}

function tone(verdict) {
  if (/fired|triggered|backfilled/i.test(verdict)) return 'good';
  return /late|coalesced/i.test(verdict) ? 'warn' : 'bad';
}
