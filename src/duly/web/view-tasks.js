// Tasks: the filter is the URL, rows are dense, and what is selected can be acted on, page or not.

import { h } from './dom.js';
import { get, post } from './api.js';
import { count, when, duration, shortId } from './text.js';
import { chip, table, emptyState, filterForm, pager, ask, action, commandLine, toast } from './parts.js';
import { filter, link } from './place.js';

const STATES = ['', 'WAITING', 'SCHEDULED', 'READY', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED', 'SKIPPED'];
const PAGE = 50;
const chosen = new Set();
let chosenFor = '';

export async function tasksView({ who, filters, refresh }) {
  const { cursor, q, tag, type, state, order } = filters;
  const asked = { state, type, tag, order, cursor, limit: PAGE };
  const page = q ? await get('/v1/search', { q, type, tag, cursor, limit: PAGE }) : await get('/v1/tasks', asked);
  const key = JSON.stringify(filters);
  if (key !== chosenFor) { chosen.clear(); chosenFor = key; }
  const canAct = who.can.includes('operate') || who.can.includes('submit');
  const rows = page.items;
  return [
    h('h1', {}, 'Tasks'),
    filterForm([
      { name: 'q', label: 'Search', placeholder: 'id, type, tag, payload or error text', isSearch: true, size: 28 },
      { name: 'state', label: 'State', options: STATES.map((each) => [each, each || 'any']) },
      { name: 'type', label: 'Type', placeholder: 'email.send', size: 16 },
      { name: 'tag', label: 'Tag', placeholder: 'env:prod', size: 12 },
      { name: 'order', label: 'Order', options: [['', 'newest'], ['run_at', 'fire time']] },
    ], filters, (changes) => {
      if (/^[0-9a-f]{8}-[0-9a-f]{4}-/.test(changes.q ?? '')) location.hash = link('tasks', changes.q);
      else filter(changes);
    }),
    canAct && bulkBar({ filters, rows, refresh }),
    table('Tasks', [
      { title: 'State', cell: (task) => chip(task.state) },
      { title: 'Type', cell: (task) => h('a', { href: link('tasks', task.id), class: 'mono clip', title: `${task.type}\n${task.id}` }, task.type) },
      { title: 'Id', cell: (task) => h('a', { href: link('tasks', task.id), class: 'mono quiet', title: task.id, tabindex: '-1' }, shortId(task.id)) },
      { title: 'Target', cell: (task) => h('span', { class: 'mono clip', title: task.target?.url ?? task.target?.pool }, task.target?.url ?? task.target?.pool ?? '–') },
      { title: 'Attempt', align: 'right', cell: (task) => `${task.attempt}/${task.max_attempts}` },
      { title: 'Priority', align: 'right', cell: (task) => task.priority },
      { title: 'Fires', cell: fires },
      { title: 'Created', cell: (task) => when(task.created_at) },
      { title: 'Ended', cell: (task) => (task.finished_at ? h('span', { title: duration((new Date(task.finished_at) - new Date(task.created_at)) / 1000) }, when(task.finished_at)) : h('span', { class: 'quiet' }, '–')) },
    ], rows, {
      empty: emptyState(Object.keys(filters).length ? 'No task matches these filters.' : 'No tasks yet. Submit the first:', Object.keys(filters).length ? null : `duly tasks submit email.send '{"to": "a@example.com"}'`),
      rowKey: (task) => task.id,
      rowLink: (task) => link('tasks', task.id),
      onSelect: canAct ? (ids) => { chosen.clear(); ids.forEach((id) => chosen.add(id)); refresh(); } : null,
      selected: chosen,
    }),
    pager(filters, page.next_cursor, (next) => filter({ cursor: next })),
  ];
}

// A task that waits for other nodes, or for a signal, has no fire time yet.
function fires(task) {
  if (task.state !== 'WAITING') return when(task.run_at);
  return h('a', { href: link('workflows', task.workflow, { node: task.node }), title: 'It starts when its workflow lets it' }, `waits in ${task.node ?? 'its workflow'}`);
}

function bulkBar({ filters, rows, refresh }) {
  const { state, type, tag, q } = filters;
  const named = { ...(state && { state }), ...(type && { type }), ...(tag && { tag }) };
  const byFilter = !chosen.size;
  const what = chosen.size ? `${chosen.size} selected` : 'all that match';
  const isWide = byFilter && !Object.keys(named).length;
  const command = byFilter
    ? `duly bulk cancel ${Object.entries(named).map(([name, value]) => `--${name} ${value}`).join(' ')} --dry-run`
    : `duly tasks cancel ${[...chosen].slice(0, 3).join(' ')}${chosen.size > 3 ? ' …' : ''}`;
  const each = async (title, call) => {
    let done = 0;
    const refused = [];
    for (const id of chosen) {
      try { await call(id); done += 1; } catch (error) { refused.push(error.message); }
    }
    chosen.clear();
    refresh();
    if (refused.length) toast(`${refused.length} refused: ${refused[0]}`, 'bad');
    return `${title}: ${done}`;
  };
  const start = (name, title, danger) => action(title, async () => {
    if (chosen.size) {
      const yes = await ask({ title: `${title} ${chosen.size} tasks?`, confirm: title, danger });
      if (!yes) return null;
      const path = { cancel: 'cancel', run_now: 'run-now' }[name];
      return each(title, (id) => post(`/v1/tasks/${id}/${path}`));
    }
    return byBulk(name, title, named, danger, refresh);
  }, { danger });
  return h('div', { class: 'bulk', role: 'group', 'aria-label': 'Actions on tasks' },
    h('span', { class: 'quiet' }, isWide || q ? 'Select rows, or filter by state, type or tag, to act on many.' : what),
    !(isWide || q) || chosen.size ? [start('cancel', 'Cancel', true), start('run_now', 'Run now', false), h('span', { class: 'space' }), commandLine(command)] : null,
    h('span', { class: 'quiet space-left' }, `${count(rows.length)} on this page`));
}

// Beyond the page: look first, then start a durable operation and follow it.
export async function byBulk(name, title, named, danger, refresh) {
  const preview = await post('/v1/bulk', { action: name, filter: named, dry_run: true });
  const sample = (preview.sample ?? []).slice(0, 5);
  const yes = await ask({
    title: `${title} ${count(preview.matched)}${preview.has_more ? ' or more' : ''} tasks?`,
    text: 'It goes on in the server, also when this page is closed, and can be stopped.',
    detail: h('ul', { class: 'mono' }, ...sample.map((item) => h('li', {}, `${item.type ?? ''} ${item.id ?? item}`))),
    confirm: title, danger,
    fields: [
      { name: 'canary', label: 'First only so many (empty: all)', kind: 'number', min: 1 },
      { name: 'rate', label: 'Tasks a second', kind: 'number', min: 1, value: '100' },
    ],
  });
  if (!yes) return null;
  const operation = await post('/v1/bulk', { action: name, filter: named, rate_per_s: Number(yes.rate) || 100, ...(yes.canary ? { canary: Number(yes.canary) } : {}) });
  follow(operation.id, title, refresh);
  return `${title}: started`;
}

function follow(id, title, refresh) {
  const bar = h('progress', { max: 1, value: 0, 'aria-label': title });
  const text = h('span', {}, `${title}: starting`);
  const act = (title, verb) => h('button', { type: 'button', class: 'small', onclick: () => post(`/v1/bulk/${id}/${verb}`).catch((error) => toast(error.message, 'bad')) }, title);
  const stop = act('Stop', 'stop');
  const goOn = act('Continue', 'continue');
  goOn.hidden = true;
  const note = h('p', { class: 'toast' }, text, ' ', bar, ' ', goOn, ' ', stop);
  document.getElementById('toasts').append(note);
  const timer = setInterval(async () => {
    try {
      const seen = await get(`/v1/bulk/${id}`);
      bar.max = Math.max(1, seen.matched ?? 0);
      bar.value = (seen.done ?? 0) + (seen.refused ?? 0);
      text.textContent = `${title}: ${count(seen.done)} of ${count(seen.matched)}${seen.refused ? `, ${count(seen.refused)} refused` : ''}`;
      goOn.hidden = seen.state !== 'PAUSED_AFTER_CANARY';
      if (!goOn.hidden) text.textContent += '; the canary is done';
      else if (seen.state !== 'RUNNING') {
        clearInterval(timer);
        stop.remove();
        text.textContent += ` (${seen.state.toLowerCase()})`;
        setTimeout(() => note.remove(), 8000);
        refresh();
      }
    } catch (error) {
      clearInterval(timer);
      text.textContent = error.message;
      setTimeout(() => note.remove(), 8000);
    }
  }, 1000);
}
