// Dead letters by error: what fails, since when, and one decision for all of a kind.

import { h } from './dom.js';
import { get, post } from './api.js';
import { count, when, clip, shortId } from './text.js';
import { table, emptyState, filterForm, pager, action, ask } from './parts.js';
import { filter, link } from './place.js';

export async function lettersView(context) {
  return context.filters.fingerprint ? oneGroup(context) : groups(context);
}

async function groups({ who, filters, refresh }) {
  const { type, reason, cursor } = filters;
  const page = await get('/v1/dead-letters', { group_by: 'fingerprint', type, reason, cursor, limit: 50 });
  return [
    h('h1', {}, 'Dead letters'),
    filterForm([
      { name: 'type', label: 'Type', isSearch: true, size: 20 },
      { name: 'reason', label: 'Reason', options: ['', 'exhausted', 'rejected', 'expired', 'poison', 'timeout'].map((each) => [each, each || 'any']) },
    ], filters, (changes) => filter(changes)),
    table('Failures by error', [
      { title: 'Tasks', align: 'right', cell: (group) => h('a', { href: link('dead-letters', null, { fingerprint: group.fingerprint, type: group.type }) }, count(group.count)) },
      { title: 'Error', className: 'grow', cell: (group) => h('a', { href: link('dead-letters', null, { fingerprint: group.fingerprint, type: group.type }), class: 'mono clip wide', title: group.example }, clip(group.example ?? group.reason, 300)) },
      { title: 'Type', cell: (group) => h('span', { class: 'mono clip' }, group.type) },
      { title: 'Reason', cell: (group) => group.reason },
      { title: 'Last', cell: (group) => [when(group.last_at), h('span', { class: 'quiet first' }, ' · since ', when(group.first_at))] },
      ...(who.can.includes('operate') ? [{ title: 'Act', cell: (group) => h('span', { class: 'buttons' }, replay(group, refresh), purge(group, refresh)) }] : []),
    ], page.items, { rowKey: (group) => `${group.fingerprint}:${group.type}`, rowLink: (group) => link('dead-letters', null, { fingerprint: group.fingerprint, type: group.type }), empty: emptyState('No dead letters. Tasks that fail for good appear here, grouped by error.') }),
    pager(filters, page.next_cursor, (next) => filter({ cursor: next })),
  ];
}

async function oneGroup({ who, filters, refresh }) {
  const { fingerprint, type, cursor } = filters;
  const page = await get('/v1/dead-letters', { fingerprint, type, cursor, limit: 50 });
  const group = { fingerprint, type, count: null };
  return [
    h('p', { class: 'crumbs' }, h('a', { href: link('dead-letters') }, 'Dead letters')),
    h('h1', { class: 'clip' }, clip(page.items[0]?.error ?? fingerprint, 160)),
    who.can.includes('operate') && h('div', { class: 'buttons' }, replay(group, refresh), purge(group, refresh)),
    table('Dead letters', [
      { title: 'Task', cell: (letter) => h('a', { href: link('tasks', letter.id), class: 'mono', title: letter.id }, shortId(letter.id)) },
      { title: 'Type', cell: (letter) => h('span', { class: 'mono' }, letter.type) },
      { title: 'Attempts', align: 'right', cell: (letter) => letter.attempts },
      { title: 'Failed', cell: (letter) => when(letter.failed_at) },
      { title: 'Error', className: 'grow', cell: (letter) => h('span', { class: 'mono clip wide', title: letter.error }, clip(letter.error ?? '', 300)) },
      { title: 'Replayed as', cell: (letter) => (letter.replayed_as ? h('a', { href: link('tasks', letter.replayed_as), class: 'mono' }, shortId(letter.replayed_as)) : '–') },
    ], page.items, { rowKey: (letter) => letter.id, rowLink: (letter) => link('tasks', letter.id), empty: emptyState('Nothing of this kind is left.') }),
    pager(filters, page.next_cursor, (next) => filter({ cursor: next })),
  ];
}

const named = (group) => ({ fingerprint: group.fingerprint, ...(group.type ? { type: group.type } : {}) });

function replay(group, refresh) {
  return action('Replay', async () => {
    const preview = await post('/v1/dead-letters/replay', { filter: named(group), dry_run: true });
    const given = await ask({ title: `Replay ${count(preview.matched)}${preview.has_more ? ' or more' : ''} tasks?`, text: 'Each becomes a new task with the old execution key.', confirm: 'Replay', fields: [{ name: 'rate', label: 'Tasks a second', kind: 'number', min: 1, value: '50' }] });
    if (!given) return null;
    const made = await post('/v1/dead-letters/replay', { filter: named(group), rate_per_s: Number(given.rate) || 50 });
    refresh();
    return `Replayed: ${count(made.done)}${made.has_more ? '; there are more' : ''}`;
  }, { className: 'small' });
}

function purge(group, refresh) {
  return action('Purge', async () => {
    const preview = await post('/v1/dead-letters/purge', { filter: named(group), dry_run: true });
    if (!await ask({ title: `Purge ${count(preview.matched)}${preview.has_more ? ' or more' : ''} dead letters?`, text: 'Their payloads are erased. This cannot be undone.', confirm: 'Purge', danger: true })) return null;
    const made = await post('/v1/dead-letters/purge', { filter: named(group) });
    refresh();
    return `Purged: ${count(made.done)}`;
  }, { danger: true, className: 'small' });
}
